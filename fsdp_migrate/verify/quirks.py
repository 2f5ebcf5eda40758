"""What `like_fsdp1` did for the migrated program, line by line, and what the line may become."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fsdp_migrate.verify.records import Run

NAME = "like_fsdp1"
_SHOWN = 3
"""Examples in a text."""

_LISTED = 20
"""The runtime keeps no more examples of one quirk."""

# Each with a number in front, and an `s` where there are several; those in the second place count what is different,
# and name it.
_TIMES = {
    "whole_state_dicts": "{n} whole state dict{s}",
    "older_optimizers": "{n} parameter{s} of older optimizers",
    "data_writes": "{n} write{s} to p.data",
    "class_names": "{n} printed name{s} of classes",
    "sharded_after_forward": "{n} forward{s} with sharded parameters after it",
    "autocast_cache": "{n} forward{s} with autocast's casts anew",
    "whole_in_apply": "{n} call{s} of model.apply",
}
_THINGS = {
    "zero_gradients": "zero gradients for {n} parameter{s}",
    "parameter_attributes": "{n} attribute{s} of parameters",
    "list_inputs": "lists and dictionaries given to {n} class{es} of units",
    "interface": "{n} name{s} of FSDP1's interface",
}


@dataclass(frozen=True)
class Line:
    """One `with like_fsdp1(model)`, all times that it ran, on all ranks.

    Attributes:
        place: `file:line`, relative to the program's folder.
        call: as the source has it, `like_fsdp1(model)`.
        acted: how often each quirk that did something did so, on the rank where it did most, and examples.
        idle: the other quirks, without those that are switched off already.
        edit: what the call may become; empty where the line may go, or everything acted.
    """

    place: str
    call: str
    acted: dict[str, dict[str, Any]] = field(default_factory=dict)
    idle: tuple[str, ...] = ()
    edit: str = ""

    @property
    def may_go(self) -> bool:
        """Whether the run needed nothing of it."""
        return not self.acted

    def text(self) -> str:
        """What it did, and what follows from it, in one line."""
        start = f"{self.place} {self.call}:"
        if self.may_go:
            return f"{start} nothing: the line may go (dedent its block), where no code compares names of classes"
        did = "; ".join(_words(name, **done) for name, done in self.acted.items())
        rest = f"; nothing else: `{self.edit}` says so" if self.edit else ""
        return f"{start} {did}{rest}"

    def to_json(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "place": self.place,
            "call": self.call,
            "acted": self.acted,
            "idle": list(self.idle),
            "may_go": self.may_go,
            "edit": self.edit,
        }


def read(run: Run, root: Path) -> list[Line]:
    """The lines that ran, of the program in the folder `root`."""
    ranks = [_of_rank(rank.quirks) for rank in run.ranks]
    return [_line(place, ranks, root) for place in dict.fromkeys(p for rank in ranks for p in rank)]


def _of_rank(records: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """One rank's records by place: a function that shards several models runs the same line again."""
    places: dict[str, dict[str, Any]] = {}
    for record in records:
        one = places.setdefault(record["place"], {"known": record["known"], "off": [], "acted": {}})
        one["off"] += record["switched_off"]
        for name, done in record["acted"].items():
            if done["count"]:
                sofar = one["acted"].setdefault(name, {"count": 0, "examples": []})
                sofar["count"] += done["count"]
                sofar["examples"] = _together(sofar["examples"], done["examples"])
    return places


# A name that is compared leaves no trace: whether it was needed is not known.
_UNSEEN = "class_names"


def _line(place: str, ranks: list[dict[str, dict[str, Any]]], root: Path) -> Line:
    found = [rank[place] for rank in ranks if place in rank]
    off, known = {name for one in found for name in one["off"]}, found[0]["known"]
    acted: dict[str, dict[str, Any]] = {}
    for one in found:
        for name, done in one["acted"].items():
            most = acted.setdefault(name, {"count": 0, "examples": []})
            most["count"] = max(most["count"], done["count"])
            most["examples"] = _together(most["examples"], done["examples"])
    acted = {name: acted[name] for name in dict.fromkeys([*known, *acted]) if name in acted}
    idle = tuple(name for name in known if name not in {*off, *acted, _UNSEEN})
    call = _call_at(place, root)
    edit = _switched_off(call, idle) if acted and idle else ""
    return Line(place, ast.unparse(call), acted, idle, edit)


def _together(some: list[str], others: list[str]) -> list[str]:
    return [*dict.fromkeys([*some, *others])][:_LISTED]


def _call_at(place: str, root: Path) -> ast.Call:
    """The call as the source has it; `like_fsdp1(...)` where it cannot be found."""
    name, _, line = place.rpartition(":")
    try:
        tree = ast.parse((root / name).read_bytes())
    except (OSError, ValueError, SyntaxError):
        tree = ast.Module([], [])
    calls = (call for call in ast.walk(tree) if isinstance(call, ast.Call))
    there = (call for call in calls if call.lineno <= int(line) <= (call.end_lineno or 0))
    wanted = (call for call in there if ast.unparse(call.func).rpartition(".")[2] == NAME)
    unknown = ast.Call(ast.Name(NAME), [ast.Constant(...)], [])
    return next(wanted, unknown)


def _switched_off(call: ast.Call, names: tuple[str, ...]) -> str:
    """The call with these quirks switched off, too."""
    kept = [keyword for keyword in call.keywords if keyword.arg not in names]
    more = [ast.keyword(name, ast.Constant(False)) for name in names]
    return ast.unparse(ast.Call(call.func, call.args, [*kept, *more]))


def _words(name: str, count: int, examples: list[str]) -> str:
    """What a quirk did, in a few words: `zero gradients for 3 parameters (head.weight, ...)`."""
    if name in _TIMES:
        return _counted(_TIMES[name], count)
    number = len(examples)
    named = f" ({', '.join(_shown(examples))})" if examples else ""
    if name in _THINGS:
        return _counted(_THINGS[name], number, "or more " if number >= _LISTED else "") + named
    return _counted(f"{name.replace('_', ' ')} {{n}} time{{s}}", count) + named


def _counted(words: str, number: int, more: str = "") -> str:
    several = number != 1
    return words.format(n=f"{number} {more}".strip(), s="s" * several, es="es" * several)


def _shown(examples: list[str]) -> Iterator[str]:
    yield from examples[:_SHOWN]
    if len(examples) > _SHOWN:
        yield "..."
