"""How wide the lines of a target are: as its formatter is told, or, where it has none, as its files show."""

import configparser
import io
import re
import sys
import tokenize
from pathlib import Path
from typing import Any

LINE_LENGTH = 88  # black's and ruff's default
_WIDEST = 120
_LARGEST = 1_000_000  # bytes of a file of settings
_COMMANDS = (".pre-commit-config.yaml", "Makefile")
_GIVEN = re.compile(r"(?<![\w-])--line-length\W+(\d+)|\bblack\b.*\s-l\s*(\d+)")
_HOOK = re.compile(r"\bid:\s*(?:black|black-jupyter|ruff-format|ufmt)\s*$", re.MULTILINE)
_RUFF = ("ruff.toml", ".ruff.toml")
_INI = ("setup.cfg", ".flake8", "tox.ini", ".style.yapf")
_LIMITS = ("max-line-length", "max_line_length", "column_limit")
_NO_CODE = (
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
)


def of_project(folder: Path) -> int | None:
    """The width that the settings of formatters and linters give to a folder, up to its repository; None if none does.

    Those of the nearest folder that has any, a formatter's before a linter's.
    """
    found = _in_folder(folder)
    if found is not None or folder.parent == folder or (folder / ".git").exists():
        return found
    return of_project(folder.parent)


def of_code(text: str) -> int:
    """The width that one line of code in fifty reaches, at least three of a file: between black's default and 120.

    Files that are formatted for 88 or for 120 columns come out within a few columns of it. Comments and strings of several
    lines do not count.
    """
    widths = sorted(_widths(text))
    few = max(3, len(widths) // 50)
    if len(widths) < few:
        return LINE_LENGTH
    return min(max(widths[-few], LINE_LENGTH), _WIDEST)


def _in_folder(folder: Path) -> int | None:
    tables = _toml(folder / "pyproject.toml").get("tool", {})
    if not isinstance(tables, dict):
        tables = {}
    formatters = [tables.get(tool) for tool in ("black", "ruff", "yapf")]
    formatters += [_toml(folder / name) for name in _RUFF]
    for given in formatters:
        length = _length_in(given)
        if length is not None:
            return length
    commands = [_text(folder / name) for name in _COMMANDS]
    for found in map(_GIVEN.search, commands):
        if found is not None:
            return int(found[1] or found[2])
    if "black" in tables or any(map(_HOOK.search, commands)):
        return LINE_LENGTH
    for name in _INI:
        length = _limit(folder / name)
        if length:
            return length
    return None


def _length_in(table: object) -> int | None:
    """The width in the table of a formatter."""
    if not isinstance(table, dict):
        return None
    for key in ("line-length", "line_length", "column_limit"):
        length = table.get(key)
        if isinstance(length, int):
            return length
    return None


def _limit(file: Path) -> int | None:
    """The width in a file of sections; what a linter allows beyond 120 columns is nobody's width."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(_text(file))
    except configparser.Error:
        return None
    for name in parser.sections():
        if name == "isort":
            continue
        for key in _LIMITS:
            value = parser[name].get(key, "")
            if value.isdecimal() and 0 < int(value) <= _WIDEST:
                return int(value)
    return None


def _toml(file: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(_text(file))
    except (ValueError, RecursionError):
        return {}


def _text(file: Path) -> str:
    """The text of a file; "" if there is none that can be read."""
    try:
        if not file.is_file() or file.stat().st_size > _LARGEST:
            return ""
        return file.read_text("utf-8")
    except (OSError, ValueError):
        return ""


def _widths(text: str) -> list[int]:
    """Where the code of each line ends."""
    ends: dict[int, int] = {}
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            first, _ = token.start
            last, column = token.end
            if token.type not in _NO_CODE and first == last:
                ends[last] = max(ends.get(last, 0), column)
    except (tokenize.TokenError, SyntaxError):
        pass
    return list(ends.values())
