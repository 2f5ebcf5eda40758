"""Settings as each release of a library reads them, recorded by `benchmarks/settings.py`, which asks the releases."""

import json
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from .release_shapes import SETTINGS, Settings
from .test_project import migrated

HERE = Path(__file__).parent
FACTS: dict[str, dict[str, Any]] = json.loads((HERE / "releases.json").read_text())
EACH = [
    pytest.param(release, shape, id=f"{release}: {shape.title}")
    for release in FACTS
    for shape in SETTINGS
    if shape.library == release.split()[0]
]
# What changes on purpose, and is said: the kind of states before transformers 5.10, and whether parameters are freed where a
# release takes no notice of it.
_SAID = {"transformers 5.9.0": {"saves", "frees"}, "axolotl 0.13.2": {"frees"}}


@pytest.mark.parametrize(("release", "shape"), EACH)
def test_a_release_reads_what_is_written_for_it(
    release: str, shape: Settings, tmp_path: Path
) -> None:
    facts = FACTS[release][shape.title]
    before, after = facts["before"], facts["pinned"]
    library, number = release.replace("composer", "mosaicml").split()
    made, _ = migrated(tmp_path, f"{library}=={number}", shape.text, f"settings.{shape.ending}")
    assert made == after["text"], "run benchmarks/settings.py: what is written has changed"
    if made == shape.text:
        assert after["says"]
        assert after["means"] == before
        return
    if isinstance(before, str):  # it did not read the settings at all
        assert not isinstance(after["means"], str)
        return
    assert after["means"].get("version", 2) == 2
    assert not _differs(before, after["means"]) - _SAID.get(release, set())


@pytest.mark.parametrize(("release", "shape"), EACH)
def test_without_a_limit_it_trains_the_same(release: str, shape: Settings, tmp_path: Path) -> None:
    facts = FACTS[release][shape.title]
    before, after = facts["before"], facts["open"]
    made, _ = migrated(tmp_path, "", shape.text, f"settings.{shape.ending}")
    assert made == after["text"], "run benchmarks/settings.py: what is written has changed"
    if (
        release == "accelerate 1.5.2"
    ):  # "Use it with Accelerate 1.6": a file's version is passed over, others are refused
        return
    if isinstance(before, str):
        return
    assert not isinstance(after["means"], str)
    said = {"wraps"} if shape.title == "a list, and units by size" else set()
    assert not _differs(before, after["means"]) - _SAID.get(release, set()) - said


@pytest.mark.parametrize("side", ["pinned", "open"])
@pytest.mark.parametrize("shape", [each.title for each in SETTINGS if each.library == "composer"])
def test_composer_trains_the_same_with_what_the_finding_says(shape: str, side: str) -> None:
    facts = FACTS["composer 0.32.1"][shape]
    before, told = facts["before"], facts[side]["told"]
    assert told.get("version", 2) == 2
    assert _differs(before, told) == ({"offloads"} if shape == "offloading" else set())


@pytest.mark.parametrize("release", ["0.28.0", "0.31.0"])
@pytest.mark.parametrize("shape", [each for each in SETTINGS if each.library == "composer"])
def test_an_older_composer_is_to_be_raised(release: str, shape: Settings, tmp_path: Path) -> None:
    _, said = migrated(tmp_path, f"mosaicml=={release}", shape.text)
    assert "Raise that requirement" in said
    assert "told" not in FACTS[f"composer {release}"][shape.title]["pinned"]


def _differs(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """What differs of two meanings; nothing is left of the others where nothing is sharded."""
    if "frees" not in after:
        return set()
    return {key for key, value in after.items() if key != "version" and value != before.get(key)}


def test_twelve_shapes_and_two_releases_of_each_library() -> None:
    for library in ("transformers", "accelerate", "axolotl", "composer", "lightning"):
        assert len([shape for shape in SETTINGS if shape.library == library]) >= 12
        assert len([release for release in FACTS if release.startswith(library)]) >= 2


@cache
def _installed(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return ""


@pytest.mark.slow
@pytest.mark.parametrize("library", ["transformers", "accelerate"])
def test_the_release_that_is_installed_reads_them_so(library: str, tmp_path: Path) -> None:
    release = f"{library} {_installed(library)}"
    if release not in FACTS:
        pytest.skip(f"{release} has no facts")
    shapes = [shape for shape in SETTINGS if shape.library == library]
    for number, shape in enumerate(shapes):
        text = FACTS[release][shape.title]["pinned"]["text"]
        (tmp_path / f"{number:02}.{shape.ending}").write_text(text)
    command = [sys.executable, str(HERE / "meanings.py"), str(tmp_path), library]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found = [*json.loads(done.stdout).values()]
    assert found == [FACTS[release][shape.title]["pinned"]["means"] for shape in shapes]
