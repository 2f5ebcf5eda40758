"""How many constructors of the bundled programs are plain by their files, and by a run: ``python benchmarks/values.py FOLDER``.

Every program of `fixtures` and `tests/cases` is run once as it says, on the CPU, and migrated with what was recorded.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.discover import discover
from fsdp_migrate.engine import analyse
from fsdp_migrate.findings import Action
from fsdp_migrate.settings import Options
from fsdp_migrate.values import Values, read
from fsdp_migrate.verify.errors import ProgramFailed
from fsdp_migrate.verify.launch import Launcher
from fsdp_migrate.verify.values import record

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
CONSTRUCTOR = "FSDP002"


@dataclass(frozen=True)
class Program:
    """A program with one of its command lines."""

    name: str
    script: Path
    arguments: list[str]
    ranks: int = 2
    launcher: Launcher = Launcher.TORCHRUN


def programs() -> Iterator[Program]:
    """The first run of each."""
    for file in sorted((ROOT / "fixtures").glob("*/case.toml")):
        settings = tomllib.loads(file.read_text("utf-8"))
        settings |= settings.get("runs", [{}])[0]
        script = file.parent / "original" / settings["entry"]
        launcher = Launcher(settings["launcher"])
        yield Program(file.parent.name, script, settings["arguments"], settings["ranks"], launcher)
    for folder in sorted((ROOT / "tests/cases/programs").iterdir()):
        lines = (folder / "ARGS").read_text() if (folder / "ARGS").exists() else "\n"
        ranks = (folder / "NPROC").read_text() if (folder / "NPROC").exists() else "2"
        arguments = shlex.split(lines.splitlines()[0])
        yield Program(f"case {folder.name}", folder / "train.py", arguments, int(ranks))


def constructors(folder: Path, values: Values | None) -> list[bool]:
    """For each constructor of a program, whether it is plain."""
    report = analyse(discover([folder]), Options(values=values))
    assert not report.errors, report.errors
    found = [f for f in report.findings if f.code == CONSTRUCTOR and "import" not in f.construct]
    return [finding.action is Action.REWRITE for finding in found]


def recording(program: Program, file: Path) -> Values | None:
    """What a run of the program gave; None if it fails. A file that is there is taken as it is."""
    if not file.exists():
        try:
            record(
                program.script,
                file,
                ranks=program.ranks,
                arguments=program.arguments,
                launcher=program.launcher,
                device="cpu",
            )
        except ProgramFailed as failure:
            print(f"{program.name}: {failure}", file=sys.stderr)
            return None
    return read([file])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the recordings are, or go")
    folder = parser.parse_args().folder
    folder.mkdir(exist_ok=True)
    print("| program | constructors | plain by files | plain by a run |")
    print("|---|---:|---:|---:|")
    sums = [0, 0, 0]
    for program in programs():
        values = recording(program, folder / f"{program.name}.json")
        by_files = constructors(program.script.parent, None)
        by_run = constructors(program.script.parent, values)
        row = [len(by_files), sum(by_files), sum(by_run)]
        sums = [total + number for total, number in zip(sums, row, strict=True)]
        print(f"| {program.name} | {' | '.join(map(str, row))} |", flush=True)
    print(f"| total | {' | '.join(map(str, sums))} |")


if __name__ == "__main__":
    main()
