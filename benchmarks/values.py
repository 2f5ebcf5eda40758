"""How many constructors of the bundled programs are plain by their files, and by a run: ``python benchmarks/values.py FOLDER``.

Every program of `fixtures` and `tests/cases` is run as it says, on the CPU, and migrated with what its first run gave, or its
first runs where one does not reach all constructors. With ``--verify`` it is also trained as that leaves it, by each of
these runs, and compared bit by bit. What was recorded and compared is kept in FOLDER: a run that is interrupted goes on.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from fsdp_migrate.discover import discover
from fsdp_migrate.engine import analyse
from fsdp_migrate.findings import Action
from fsdp_migrate.settings import Options
from fsdp_migrate.values import Values, read
from fsdp_migrate.vendor import runtime_folder
from fsdp_migrate.verify import processes
from fsdp_migrate.verify.errors import ProgramFailed, Unverifiable
from fsdp_migrate.verify.launch import Launcher
from fsdp_migrate.verify.main import verify
from fsdp_migrate.verify.values import record

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from forkserver import ForkServer  # noqa: E402

CONSTRUCTOR = "FSDP002"


@dataclass(frozen=True)
class Program:
    """A program with its command lines."""

    name: str
    script: Path
    runs: list[list[str]]
    ranks: int = 2
    launcher: Launcher = Launcher.TORCHRUN

    def options(self, number: int) -> dict[str, Any]:
        """One of the runs, as `record` and `verify` take it."""
        given: dict[str, Any] = {"ranks": self.ranks, "arguments": self.runs[number]}
        return given | {"launcher": self.launcher, "device": "cpu"}


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
        shards = max(2, int(ranks))  # one rank alone shards nothing
        yield Program(f"case {folder.name}", folder / "train.py", runs, shards)


def constructors(folder: Path, values: Values | None) -> list[bool]:
    """For each constructor of a program, whether it is plain."""
    report = analyse(discover([folder]), Options(values=values))
    assert not report.errors, report.errors
    found = [f for f in report.findings if f.code == CONSTRUCTOR and "import" not in f.construct]
    return [finding.action is Action.REWRITE for finding in found]


def plain_by_run(program: Program, folder: Path) -> tuple[list[bool], list[Path]]:
    """For each constructor, whether it is plain by the first run of the program, or by as many as make more plain."""
    best, used = constructors(program.script.parent, None), list[Path]()
    files: list[Path] = []
    for number in range(len(program.runs)):
        if all(best):
            break
        files.append(folder / f"{program.name}{f' {number}' if number else ''}.json")
        if not files[-1].exists():
            try:
                record(program.script, files[-1], **program.options(number))
            except ProgramFailed as failure:
                print(f"{program.name} {program.runs[number]}: {failure}", file=sys.stderr)
                break
        found = constructors(program.script.parent, read(files))
        if sum(found) > sum(best):
            best, used = found, [*files]
    return best, used


def verdict(program: Program, values: list[Path], folder: Path) -> str:
    """Whether a program trains the same as its recorded runs make it: `bitwise`, or what differs."""
    recorded = _of_copy(read(values), program.script.parent) if values else None
    report = analyse(
        discover([program.script.parent]), Options(values=read(values) if values else None)
    )
    migrated = sha256(repr([change.after for change in report.changes]).encode()).hexdigest()[:12]
    said = folder / f"{program.name} {migrated}.txt"
    if not said.exists():
        lines = []
        for number in range(len(values) or len(program.runs)):
            try:
                how = program.options(number)
                found = verify(program.script, tolerance=0, recorded=recorded, **how)
            except ProgramFailed as failure:
                lines.append(f"{program.runs[number]}: {str(failure).splitlines()[0][:100]}")
            except Unverifiable:  # these arguments choose another way to train
                continue
            else:
                assert "fully_shard" in found.sources.diff, "the copy did not become plain"
                lines.append("bitwise" if found.bitwise else found.line())
        told = {f.code for f in report.findings if f.action is Action.MANUAL}
        if any(line != "bitwise" for line in lines) and told:
            lines.append(f"by hand: {', '.join(sorted(told))}")
        assert lines, "no run of it trains with FSDP"
        said.write_text("; ".join(dict.fromkeys(lines)))
    return said.read_text()


def _of_copy(values: Values, folder: Path) -> Values:
    """Recorded values with paths relative to the program's folder, of which `verify` makes a copy."""
    prefix = f"{folder.relative_to(ROOT).as_posix()}/"
    entries = tuple(e | {"file": e["file"].removeprefix(prefix)} for e in values.entries)
    return Values(entries, {n.removeprefix(prefix): d for n, d in values.files.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the recordings are, or go")
    parser.add_argument("--verify", action="store_true", help="train what becomes plain, too")
    parser.add_argument("--seconds", type=float, default=1e9, help="how long to go on")
    parser.add_argument("--only", nargs="*", default=[], help="these programs alone")
    given = parser.parse_args()
    given.folder.mkdir(exist_ok=True)
    server, end = ForkServer(runtime_folder() / "record"), time.monotonic() + given.seconds
    processes.run = server.run
    print("| program | constructors | plain by files | plain by a run | trains |")
    print("|---|---:|---:|---:|---|")
    sums = [0, 0, 0]
    for program in programs():
        if time.monotonic() > end:
            sys.exit("not all: run it again to go on")
        if given.only and program.name not in given.only:
            continue
        by_files = constructors(program.script.parent, None)
        by_run, values = plain_by_run(program, given.folder)
        # A class that an expression chooses is known for a constructor only by a run.
        row = [max(len(by_files), len(by_run)), sum(by_files), sum(by_run)]
        trains = verdict(program, values, given.folder) if given.verify and any(by_run) else ""
        sums = [total + number for total, number in zip(sums, row, strict=True)]
        print(f"| {program.name} | {' | '.join(map(str, row))} | {trains} |", flush=True)
    print(f"| total | {' | '.join(map(str, sums))} | |")
    server.close()


if __name__ == "__main__":
    main()
