"""The line length of the target's own formatter, for the statements that are inserted."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT = 88  # black's and ruff's


def line_length(path: Path) -> int:
    """The line length that the nearest `pyproject.toml` above a file gives to black or ruff."""
    return _of_folder(path.absolute().parent)


@cache
def _of_folder(folder: Path) -> int:
    try:
        tools = tomllib.loads((folder / "pyproject.toml").read_text("utf-8")).get("tool", {})
    except (OSError, ValueError, RecursionError):
        return DEFAULT if folder.parent == folder else _of_folder(folder.parent)
    for tool in ("black", "ruff"):
        length = tools.get(tool, {}).get("line-length")
        if isinstance(length, int):
            return length
    return DEFAULT
