"""How the Python files of both programs differ."""

from __future__ import annotations

from difflib import unified_diff

from fsdp_migrate.verify.folders import Program


def compared(before: Program, after: Program) -> tuple[tuple[str, ...], str]:
    """The migrated program's files that differ or are new, and a unified diff of all.

    To be called before the programs run, which may write files of their own.
    """
    olds, news = _texts(before), _texts(after)
    script, other = (str(p.script.relative_to(p.root)) for p in (before, after))
    if script != other:
        # Two scripts, maybe of one folder: one takes the place of the other.
        news.pop(script, None)
        olds[other] = olds.pop(script)
    names = [n for n in sorted(olds.keys() | news.keys()) if olds.get(n) != news.get(n)]
    lines = (
        line
        for name in names
        for line in unified_diff(
            olds.get(name, "").splitlines(),
            news.get(name, "").splitlines(),
            f"a/{name}",
            f"b/{name}",
            lineterm="",
        )
    )
    return tuple(name for name in names if name in news), "\n".join(lines)


def _texts(program: Program) -> dict[str, str]:
    return {
        str(path.relative_to(program.root)): path.read_text("utf-8", errors="backslashreplace")
        for path in program.root.rglob("*.py")
        if path.is_file()
    }
