"""Where each value of a JSON text is, so that one can be replaced and all else keeps its layout."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_SPACE = re.compile(r"[ \t\r\n]*")
_COMMA = re.compile(r"[ \t\r\n]*,[ \t\r\n]*")
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_ATOM = re.compile(r"[-+.\w]+")
# One character of a string as it is written: a pair of surrogates, an escape, or the character itself.
_CHARACTER = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|[^\\]"
)


@dataclass(frozen=True)
class Place:
    """Where a value begins and ends, with the places of an object's members or a list's elements."""

    start: int
    end: int
    members: dict[str, Place] = field(default_factory=dict)
    elements: list[Place] = field(default_factory=list)


def places(text: str) -> Place:
    """The places in a text that `json.loads` takes."""
    return _value(text, _after_space(text, 0))


def separator(text: str, place: Place) -> str:
    """What stands between two values, behind the value at a place; empty if that is the last one."""
    found = _COMMA.match(text, place.end)
    if found:
        return found[0]
    return ""


def characters(text: str, place: Place) -> list[int]:
    """Where each character of a string begins."""
    inner = (place.start + 1, place.end - 1)
    return [found.start() for found in _CHARACTER.finditer(text, *inner)]


def _value(text: str, start: int) -> Place:
    if text[start] == "{":
        return _object(text, start)
    if text[start] == "[":
        return _list(text, start)
    if text[start] == '"':
        kind = _STRING
    else:
        kind = _ATOM
    return Place(start, _end(kind, text, start))


def _object(text: str, start: int) -> Place:
    members = {}
    at = _after_space(text, start + 1)
    while text[at] != "}":
        end = _end(_STRING, text, at)
        colon = _after_space(text, end)
        value = _value(text, _after_space(text, colon + 1))
        members[text[at + 1 : end - 1]] = value
        at = _next(text, value)
    return Place(start, at + 1, members=members)


def _list(text: str, start: int) -> Place:
    elements = []
    at = _after_space(text, start + 1)
    while text[at] != "]":
        elements.append(_value(text, at))
        at = _next(text, elements[-1])
    return Place(start, at + 1, elements=elements)


def _next(text: str, value: Place) -> int:
    """Where the value behind another one begins, or what closes both."""
    comma = _COMMA.match(text, value.end)
    if comma:
        return comma.end()
    return _after_space(text, value.end)


def _after_space(text: str, at: int) -> int:
    return _end(_SPACE, text, at)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    if found is None:
        raise ValueError(f"character {at} is no JSON")
    return found.end()
