"""A pyproject.toml or a Pipfile: lists of requirements, and tables of versions."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

from fsdp_migrate.requirements.declared import Declared, Read, of_pip, of_poetry

# The last name of a table that has a package a key, as in `tool.poetry.group.train.dependencies`.
_TABLES = re.compile(r"(?:.*-)?(?:dependencies|packages)")


def parsed(text: str) -> dict[str, Any]:
    """A file's tables; raises ValueError if they cannot be read."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)


def read_toml(text: str) -> Read:
    """What such a file says."""
    table = parsed(text)
    found = {(each.start, each.text): each for each in _all(table, text)}
    itself = of_pip(str(table.get("project", {}).get("name", "")), 0)
    declared = [*found.values()]
    if itself:
        declared.append(itself)
    return Read(tuple(declared))


def _all(table: dict[str, Any], text: str) -> Iterator[Declared]:
    for name, value in table.items():
        if isinstance(value, list):
            yield from _of_list(value, text)
        elif isinstance(value, dict):
            if _TABLES.fullmatch(name):
                yield from _of_table(value, text)
            yield from _all(value, text)


def _of_list(values: list[Any], text: str) -> Iterator[Declared]:
    for value in values:
        if isinstance(value, dict):
            yield from _all(value, text)
        elif isinstance(value, str):
            for place in _quoted(value, text):
                declared = of_pip(value, place)
                if declared is not None:
                    yield declared


def _of_table(table: dict[str, Any], text: str) -> Iterator[Declared]:
    """Entries such as `torch = "^2.1"` and `torch = { version = "2.1.2", source = "pytorch" }`."""
    for name, value in table.items():
        entries = value
        if not isinstance(value, list):
            entries = [value]
        for each in entries:
            versions = each
            if isinstance(each, dict):
                versions = each.get("version")
            if isinstance(versions, str):
                yield from _of_entry(name, versions, text)


def _of_entry(name: str, versions: str, text: str) -> Iterator[Declared]:
    """An entry of a table, at each line that has it."""
    entry = re.compile(rf"^[ \t]*['\"]?{re.escape(name)}['\"]?[ \t]*=.*$", re.MULTILINE)
    for line in entry.finditer(text):
        for place in _quoted(versions, text, *line.span()):
            declared = of_poetry(name, versions, place)
            if declared is not None:
                yield declared


def _quoted(value: str, text: str, start: int = 0, end: int | None = None) -> Iterator[int]:
    """The places of a string in a text, as it is written with either quotes, outside of comments."""
    quoted = re.compile(f"(['\"]){re.escape(value)}\\1")
    if end is None:
        end = len(text)
    for found in quoted.finditer(text, start, end):
        line = text[text.rfind("\n", 0, found.start()) + 1 : found.start()]
        if not line.lstrip().startswith("#"):
            yield found.start() + 1
