"""How the source of both programs differs."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.verify.folders import Program


@dataclass(frozen=True)
class Sources:
    """A unified diff of the Python text of both programs, and the files of the migrated one that differ or are new."""

    diff: str = ""
    changed: tuple[str, ...] = ()


def read(before: Program, after: Program) -> Sources:
    """Read two copies; to be called before the programs run, which may write files of their own."""
    olds, news = _texts(before), _texts(after)
    script, other = (str(p.script.relative_to(p.root)) for p in (before, after))
    if script != other:
        # Two scripts, maybe of one folder: one takes the place of the other.
        olds.pop(other, None)
        news.pop(script, None)
        news[script] = news.pop(other)
    names = sorted(olds.keys() | news.keys())
    return Sources(
        diff="".join(
            line
            for name in names
            for line in _diff(name, olds.get(name, ""), news.get(name, ""))
            if olds.get(name) != news.get(name)
        ),
        changed=tuple(
            other if name == script else name
            for name in names
            if name in news and olds.get(name) != news[name]
        ),
    )


def _texts(program: Program) -> dict[str, str]:
    return {
        str(path.relative_to(program.root)): path.read_text(encoding="utf-8", errors="replace")
        for path in sorted(program.root.rglob("*.py"))
        if path.is_file()
    }


def _diff(name: str, old: str, new: str) -> Iterator[str]:
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    for line in difflib.unified_diff(before, after, f"a/{name}", f"b/{name}"):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
