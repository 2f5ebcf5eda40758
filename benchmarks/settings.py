"""What releases of libraries make of settings, as they are and as the tool leaves them.

python benchmarks/settings.py FOLDER [LIBRARY...]

FOLDER holds an environment for each release, which is made where it is missing; torch is borrowed from the environment of
this Python. Written are tests/codemods/libraries/releases.json, which the tests compare with, and docs/results/settings.md.
With names of libraries, the others keep what is there of them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests" / "codemods" / "libraries"
sys.path[:0] = [str(TESTS)]

import yaml  # noqa: E402
from release_shapes import SETTINGS, Settings  # noqa: E402

from fsdp_migrate.discover import discover  # noqa: E402
from fsdp_migrate.engine import analyse  # noqa: E402

# What is installed for a release; axolotl's own lists say what belongs to it. Composer's package is only read.
RELEASES = {
    "transformers": {
        "4.57.6": ["transformers==4.57.6", "accelerate==1.10.1"],
        "5.9.0": ["transformers==5.9.0", "accelerate==1.13.0"],
        "5.24.0": ["transformers==5.24.0", "accelerate==1.15.0"],
    },
    "accelerate": {
        "1.5.2": ["transformers==4.49.0", "accelerate==1.5.2"],
        "1.10.1": ["transformers==4.57.6", "accelerate==1.10.1"],
        "1.15.0": ["transformers==5.24.0", "accelerate==1.15.0"],
    },
    "axolotl": {
        "0.10.0": ["transformers==4.52.3", "accelerate==1.7.0", "pydantic"],
        "0.13.2": ["transformers==4.57.6", "accelerate==1.12.0", "pydantic"],
        "0.19.0": ["transformers==5.16.1", "accelerate==1.13.0", "pydantic"],
    },
    "composer": {each: ["accelerate==1.15.0"] for each in ("0.28.0", "0.31.0", "0.32.1")},
    "lightning": {
        "2.2.5": ["lightning==2.2.5", "accelerate==1.15.0", "setuptools<81"],
        "2.6.6": ["lightning==2.6.6", "accelerate==1.15.0"],
    },
}
# Packages that are read and not installed: their name, and a file of theirs.
READ = {
    "axolotl": ("axolotl", "axolotl/utils/trainer.py"),
    "composer": ("mosaicml", "composer/utils/parallelism.py"),
}
FACTS = TESTS / "releases.json"
PAGE = ROOT / "docs" / "results" / "settings.md"
HEAD = """\
# Settings by release

What releases make of settings of FSDP1, and of what the tool makes of them: *pinned*, in a project that takes that release
alone, and *open*, in one that does not say what it takes. Each release read each file itself. What is compared is the plugin
that Accelerate shards by: over which ranks, whether parameters are freed after the forward, units, offloading, the kind of
state dict, checkpointing, loading and dtypes. `python benchmarks/settings.py FOLDER` writes this page and what tests look at.

*FSDP2* is version 2 and else the same; *FSDP1* is the same as before; *by hand* is a finding, and the file stays. Where
something else differs, it is named. *refused* is what the release does not read before either.

What differs is said by the finding, or is what the release does by itself. transformers before 5.10 saves sharded states under
version 2, unless the environment says another. 5.9.0 frees parameters under FSDP1 also for `shard_grad_op`, and shards for
`no_shard`; axolotl 0.13.2 frees them under FSDP2 also for `shard_grad_op`. Accelerate before 1.6 passes over a version in a
file and refuses it in Python: "Use it with Accelerate 1.6" is in the finding. Units by size that transformers 5.24.0 no longer
takes from `auto_wrap` are units by size again.

Of the settings of Composer and Lightning nothing is rewritten: *by hand, then* is what a release makes of them once they are
written as the finding says. It names the first release that has what it says: 0.32 of Composer, 2.3 of Lightning, where
`configure_model` shards the model, and so decides all else.
"""


def main(folder: Path, libraries: list[str]) -> None:
    """Asks each release of some libraries, or of all, and writes the facts and the page."""
    folder = folder.absolute()
    facts: dict[str, dict[str, Any]] = json.loads(FACTS.read_text())
    for library, releases in RELEASES.items():
        if libraries and library not in libraries:
            continue
        for release, packages in releases.items():
            place = folder / f"{library}-{release}"
            python = environment(place, packages)
            package = unpacked(place, library, release) if library in READ else None
            shapes = [each for each in SETTINGS if each.library == library]
            facts[f"{library} {release}"] = asked(python, package, shapes, library, release)
    FACTS.write_text(json.dumps(facts, indent=1) + "\n")
    PAGE.write_text(page(facts))


def environment(place: Path, packages: list[str]) -> str:
    """The Python of an environment with some packages, and this one's torch."""
    python = place / "bin" / "python"
    if not python.exists():
        import torch

        venv.create(place, with_pip=True)
        site = next(place.glob("lib/python*/site-packages"))
        borrowed = Path(torch.__file__).parents[1]
        (site / "borrowed.pth").write_text(f"{borrowed}\n")
        limits = place / "constraints.txt"
        limits.write_text(f"torch=={torch.__version__}\n")
        pip = [str(python), "-m", "pip", "install", "-q", "-c", str(limits)]
        subprocess.run([*pip, *packages], check=True)
    return str(python)


def unpacked(place: Path, library: str, release: str) -> Path:
    """The folder of a library's package, taken from what it publishes: it is not installed."""
    name, file = READ[library]
    source = place / "source"
    if not source.exists():
        source.mkdir()
        wanted = ["--no-deps", "--no-build-isolation", "-d", str(source), f"{name}=={release}"]
        python = str(place / "bin" / "python")
        subprocess.run([python, "-m", "pip", "download", "-q", *wanted], check=True)
        (archive,) = source.iterdir()
        if archive.suffix == ".whl":
            zipfile.ZipFile(archive).extractall(source)
        else:
            with tarfile.open(archive) as packed:
                packed.extractall(source, filter="data")
    return next(source.rglob(file)).parents[1]


def asked(
    python: str, package: Path | None, shapes: list[Settings], library: str, release: str
) -> dict[str, Any]:
    """What a release makes of each shape: `before`, `pinned` in a project with that release, `open` in any other."""
    name = READ[library][0] if library in READ else library
    pinned = [migrated(shape, f"{name}=={release}") for shape in shapes]
    free = [migrated(shape, "") for shape in shapes]
    texts = {
        "before": [shape.text for shape in shapes],
        "pinned": [after for after, _ in pinned],
        "open": [after for after, _ in free],
        "pinned, told": [
            told(shape, says) for shape, (_, says) in zip(shapes, pinned, strict=True)
        ],
        "open, told": [told(shape, says) for shape, (_, says) in zip(shapes, free, strict=True)],
    }
    with tempfile.TemporaryDirectory() as made:
        for side, written in texts.items():
            folder = Path(made, side)
            folder.mkdir()
            for number, (shape, text) in enumerate(zip(shapes, written, strict=True)):
                if text:
                    (folder / f"{number:02}.{_ending(shape, side)}").write_text(text)
        command = [python, str(TESTS / "meanings.py"), made, library]
        command += [str(package)] if package else []
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        means = json.loads(done.stdout.replace(f"{made}/", ""))
    found = {}
    for number, shape in enumerate(shapes):
        name = f"{number:02}.{shape.ending}"
        found[shape.title] = {
            "before": means[f"before/{name}"],
            "pinned": {**_of(pinned[number]), "means": means[f"pinned/{name}"]},
            "open": {**_of(free[number]), "means": means[f"open/{name}"]},
        }
        for side in ("pinned", "open"):
            place = f"{side}, told/{number:02}.{_ending(shape, f'{side}, told')}"
            if place in means:
                found[shape.title][side]["told"] = means[place]
    return found


_LIGHTNING = """\
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import ModelParallelStrategy

strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
made = Trainer(strategy=strategy, accelerator="cuda", devices=2)
"""

_FABRIC = """\
from lightning.fabric import Fabric
from lightning.fabric.strategies import ModelParallelStrategy


def parallelize(model, device_mesh):
    return model


strategy = ModelParallelStrategy(parallelize, data_parallel_size=2, tensor_parallel_size=1)
made = Fabric(strategy=strategy, accelerator="cuda", devices=2)
"""


def told(shape: Settings, says: list[str]) -> str:
    """Settings as the finding says to write them, where nothing is rewritten; "" where it does not."""
    if shape.library == "lightning":
        return _FABRIC if "parallelize" in says[0] else _LIGHTNING
    if shape.library != "composer":
        return ""
    settings = yaml.safe_load(shape.text)
    (said,) = says
    home, key = settings, "fsdp_config"
    if "parallelism_config" in settings:
        home, key = settings["parallelism_config"], "fsdp"
    if "Remove these settings" in said:
        del home[key]
    elif "Raise that requirement" in said:
        return ""
    else:
        gone = re.search(r"Remove ([^.]*), which FSDP2 does not have", said)
        without = re.findall(r"`(\w+)`", gone[1]) if gone else []
        for name in ("sharding_strategy", *without):
            home[key].pop(name, None)
        for name, value in re.findall(r"`(\w+): (\w+)`", said):
            home[key][name] = yaml.safe_load(value)
        if "`device_mesh`" in said:
            home[key]["device_mesh"] = ["nodes", "devices"]
    return json.dumps({"FSDP_VERSION": 2, **settings})


def _ending(shape: Settings, side: str) -> str:
    """The ending of a file; what Lightning is told is Python."""
    if shape.library == "lightning" and side.endswith("told"):
        return "py"
    return shape.ending


def _of(migrated: tuple[str, list[str]]) -> dict[str, Any]:
    return {"text": migrated[0], "says": migrated[1]}


def migrated(shape: Settings, needs: str) -> tuple[str, list[str]]:
    """A shape in a project with some requirements: its text afterwards, and what is said by hand."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "requirements.txt").write_text(f"{needs}\n")
        Path(folder, f"settings.{shape.ending}").write_text(shape.text)
        report = analyse(discover([Path(folder)]))
        assert not report.errors, report.errors
        after = report.changes[0].after.decode() if report.changes else shape.text
        said = [each.message.replace(folder, "") for each in report.manual]
        return after, said


def outcome(shape: Settings, before: Any, after: dict[str, Any]) -> str:
    """What became of a shape, in a few words."""
    means = after["means"]
    if "told" in after:
        changed = {"text": "", "means": after["told"]}
        return f"by hand, then {outcome(shape, before, changed)}"
    if after["text"] == shape.text:
        return "by hand"
    if isinstance(means, str):
        return "refused" if means == before else f"**fails: {means.partition(', please')[0]}**"
    if isinstance(before, str):
        return f"FSDP{means['version']}" if "version" in means else "unsharded"
    differs = {k: v for k, v in means.items() if k != "version" and v != before.get(k)}
    said = f"FSDP{means['version']}" if "version" in means else "unsharded"
    if not differs:
        return said
    if "frees" not in means:
        return f"{said}; before, it was sharded"
    changes = ", ".join(f"{key} {before.get(key)} to {value}" for key, value in differs.items())
    return f"{said}; {changes}"


def page(facts: dict[str, dict[str, Any]]) -> str:
    """The page with a table for each library."""
    lines = [HEAD]
    for library, releases in RELEASES.items():
        columns = [f"{release}, {side}" for release in releases for side in ("pinned", "open")]
        lines += [f"## {library}", "", f"| settings | {' | '.join(columns)} |"]
        lines += ["|" + "---|" * (len(columns) + 1)]
        for shape in SETTINGS:
            if shape.library == library:
                cells = [_cell(shape, facts[f"{library} {each}"][shape.title]) for each in releases]
                lines.append(f"| {shape.title} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def _cell(shape: Settings, found: dict[str, Any]) -> str:
    return " | ".join(outcome(shape, found["before"], found[side]) for side in ("pinned", "open"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
