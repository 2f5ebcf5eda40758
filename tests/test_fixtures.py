"""The bundled programs: what the tool makes of them is what docs/gallery shows, to the byte."""

from collections import Counter
from pathlib import Path

import pytest

from fsdp_migrate.codemods.edit.text import comments
from fsdp_migrate.engine import analyse

from .bundled import CASES, FIXTURES, python_files
from .gallery import GALLERY, migrated, pages, write_migrated


@pytest.mark.parametrize("name", pages())
def test_the_gallery_shows_what_the_tool_makes(name: str) -> None:
    """If this fails, and the new program is better: `make fixtures`."""
    assert (GALLERY / name).read_text("utf-8") == pages()[name]


@pytest.mark.parametrize("case", CASES)
def test_a_second_run_changes_nothing(case: str, tmp_path: Path) -> None:
    report = analyse([*python_files(write_migrated(case, tmp_path)).values()])
    assert report.changes == []
    assert report.is_done, "FSDP1 of torch is used nowhere, and nothing is left for a person"


# They speak of an argument without effect, which auto removes: here of `use_orig_params`.
GONE = {("transformer", "auto"): Counter(["# so that weight decay could be set per parameter"])}


@pytest.mark.parametrize("form", ["auto", "bridge"])
@pytest.mark.parametrize("case", CASES)
def test_no_comment_is_lost(case: str, form: str) -> None:
    _, result = migrated(case, form)
    lost = Counter[str]()
    for name, path in python_files(FIXTURES / case / "original").items():
        before, after = comments(path.read_text("utf-8")), comments(result[name].decode())
        lost += Counter(before) - Counter(after)
    assert lost == GONE.get((case, form), Counter())


@pytest.mark.parametrize("case", CASES)
def test_bridge_changes_nothing_but_the_paths_and_places_of_imports(case: str) -> None:
    _, result = migrated(case, "bridge")
    for name, path in python_files(FIXTURES / case / "original").items():
        before = path.read_text("utf-8")
        swapped = before.replace("torch.distributed.fsdp", "fsdp_migrate.runtime")
        assert sorted(result[name].decode().splitlines()) == sorted(swapped.splitlines())
