"""Which files of the migrated program are other than the original's."""

from __future__ import annotations

from fsdp_migrate.verify.folders import Program


def changed(before: Program, after: Program) -> tuple[str, ...]:
    """The Python files that differ or are new; to be called before the programs run, which may write files of their own."""
    olds, news = _texts(before), _texts(after)
    script, other = (str(p.script.relative_to(p.root)) for p in (before, after))
    if script != other:
        # Two scripts, maybe of one folder: one takes the place of the other.
        news.pop(script, None)
        olds[other] = olds.pop(script)
    return tuple(name for name in sorted(news) if olds.get(name) != news[name])


def _texts(program: Program) -> dict[str, bytes]:
    return {
        str(path.relative_to(program.root)): path.read_bytes()
        for path in program.root.rglob("*.py")
        if path.is_file()
    }
