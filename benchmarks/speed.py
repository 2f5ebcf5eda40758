"""What the tool costs on a tree, beside other tools of its kind: `python -P benchmarks/speed.py TREE...`.

CPU seconds and peak memory of whole processes, as the system accounts for them: the least of several rounds, in which the
commands take turns, since all else that runs on the machine only adds. Of django-upgrade, pyupgrade and ruff those are run
that are beside this Python or on PATH; they work on a copy of the tree, since they write.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

BIN = Path(sys.executable).parent
PATH = os.pathsep.join([str(BIN), os.environ.get("PATH", os.defpath)])
# Modules are compiled once, as an installation does: neither tool is to compile its own in each run.
_COMPILED = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
START = {
    "python -c 'import click'": [sys.executable, "-c", "import click"],
    "fsdp-migrate --version": [str(BIN / "fsdp-migrate"), "--version"],
}
OURS = {
    "fsdp-migrate check": ["fsdp-migrate", "check", "."],
    "fsdp-migrate --diff": ["fsdp-migrate", ".", "--diff"],
    "fsdp-migrate --diff --form bridge": ["fsdp-migrate", ".", "--diff", "--form", "bridge"],
}
# They take files, and change little or nothing in code of another kind.
OTHERS = {
    "django-upgrade": ["django-upgrade", "--target-version", "4.2"],
    "pyupgrade": ["pyupgrade", "--py39-plus"],
    "ruff check": ["ruff", "check", "--isolated", "--no-cache", "--select", "E,F"],
}


def cost(command: Sequence[str], folder: Path) -> tuple[float, float]:
    """CPU seconds and MiB of one run."""
    process = subprocess.Popen(
        command, cwd=folder, env=_COMPILED, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0  # it is waited for; 1 says that there are findings
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def measure(commands: dict[str, list[str]], folder: Path, rounds: int) -> None:
    """Prints a line for each command."""
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, command in commands.items():
            run = cost(command, folder)
            if number:  # the first fills the caches of the system
                runs[name].append(run)
    for name, measured in runs.items():
        seconds, memory = (min(column) for column in zip(*measured, strict=True))
        print(f"  {name:36} {seconds:8.2f} s {memory:8.0f} MiB")


def on_tree(tree: Path, rounds: int, copies: int) -> None:
    """Prints what each tool costs on a tree, and ours on several copies of it in one folder."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(tree, copy, symlinks=True)
        files = [str(file) for file in sorted(copy.rglob("*.py")) if file.is_file()]
        print(f"{tree.name}: {len(files)} files")
        commands = {name: [str(BIN / tool), *rest] for name, (tool, *rest) in OURS.items()}
        for name, (tool, *rest) in OTHERS.items():
            if found := shutil.which(tool, path=PATH):
                commands[name] = [found, *rest, *files]
        measure(commands, copy, rounds)
        for number in range(copies):
            shutil.copytree(tree, Path(folder) / "copies" / str(number), symlinks=True)
        if copies:
            print(f"{tree.name}: {copies} copies")
            measure(
                {"fsdp-migrate check": commands["fsdp-migrate check"]}, Path(folder) / "copies", 1
            )


def main() -> None:
    """Runs all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trees", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--copies", type=int, default=0, help="also of so many copies of each tree")
    arguments = parser.parse_args()
    print("start-up")
    measure(START, Path.cwd(), arguments.rounds)
    for tree in arguments.trees:
        on_tree(tree.resolve(), arguments.rounds, arguments.copies)


if __name__ == "__main__":
    main()
