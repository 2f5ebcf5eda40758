"""How many constructors of the bundled programs are plain by their files, and by a run: ``python benchmarks/values.py FOLDER``.

Every program of `fixtures` and `tests/cases` is run as it says, on the CPU, and migrated with what its first run gave, or its
first runs where one does not reach all constructors.
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
    """A program with its command lines."""

    name: str
    script: Path
    runs: list[list[str]]
    ranks: int = 2
    launcher: Launcher = Launcher.TORCHRUN


def programs() -> Iterator[Program]:
    """All of them."""
    for file in sorted((ROOT / "fixtures").glob("*/case.toml")):
        settings = tomllib.loads(file.read_text("utf-8"))
        runs = [run["arguments"] for run in settings.get("runs", [settings])]
        script = file.parent / "original" / settings["entry"]
        launcher = Launcher(settings["launcher"])
        yield Program(file.parent.name, script, runs, settings["ranks"], launcher)
    for folder in sorted((ROOT / "tests/cases/programs").iterdir()):
        lines = (folder / "ARGS").read_text() if (folder / "ARGS").exists() else "\n"
        ranks = (folder / "NPROC").read_text() if (folder / "NPROC").exists() else "2"
        runs = [shlex.split(line) for line in lines.splitlines()]
        yield Program(f"case {folder.name}", folder / "train.py", runs, int(ranks))


def constructors(folder: Path, values: Values | None) -> list[bool]:
    """For each constructor of a program, whether it is plain."""
    report = analyse(discover([folder]), Options(values=values))
    assert not report.errors, report.errors
    found = [f for f in report.findings if f.code == CONSTRUCTOR and "import" not in f.construct]
    return [finding.action is Action.REWRITE for finding in found]


def plain_by_run(program: Program, folder: Path) -> list[bool]:
    """For each constructor, whether it is plain by the first run of the program, or by as many as make more plain."""
    best = constructors(program.script.parent, None)
    files: list[Path] = []
    for number, arguments in enumerate(program.runs):
        if all(best):
            break
        files.append(folder / f"{program.name}{f' {number}' if number else ''}.json")
        if not files[-1].exists():
            try:
                _record(program, arguments, files[-1])
            except ProgramFailed as failure:
                print(f"{program.name} {arguments}: {failure}", file=sys.stderr)
                break
        best = max(best, constructors(program.script.parent, read(files)), key=sum)
    return best


def _record(program: Program, arguments: list[str], file: Path) -> None:
    record(
        program.script,
        file,
        ranks=program.ranks,
        arguments=arguments,
        launcher=program.launcher,
        device="cpu",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the recordings are, or go")
    folder = parser.parse_args().folder
    folder.mkdir(exist_ok=True)
    print("| program | constructors | plain by files | plain by a run |")
    print("|---|---:|---:|---:|")
    sums = [0, 0, 0]
    for program in programs():
        by_files = constructors(program.script.parent, None)
        by_run = plain_by_run(program, folder)
        row = [len(by_files), sum(by_files), sum(by_run)]
        sums = [total + number for total, number in zip(sums, row, strict=True)]
        print(f"| {program.name} | {' | '.join(map(str, row))} |", flush=True)
    print(f"| total | {' | '.join(map(str, sums))} |")


if __name__ == "__main__":
    main()
