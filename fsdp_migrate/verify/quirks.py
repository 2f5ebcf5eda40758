"""What `like_fsdp1` did for the migrated program, line by line, and what the line may become."""

import ast
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fsdp_migrate.verify.records import Run

NAME = "like_fsdp1"
_SHOWN = 3
"""Examples in a text."""

_LISTED = 20
"""The runtime keeps no more examples of one quirk."""

_WORDS = {
    "whole_state_dicts": "returned {n} whole state dict{s}",
    "older_optimizers": "gave an optimizer from before sharding {n} sharded parameter{s}",
    "data_writes": "kept {n} assignment{s} to `p.data`",
    "class_names": "printed {n} name{s} of classes as FSDP1 did",
    "sharded_after_forward": "showed sharded parameters {n} time{s} where fully_shard shows gathered ones",
    "autocast_cache": "cast parameters anew under autocast in {n} forward{s}",
    "whole_in_apply": "gathered whole parameters {n} time{s} for model.apply",
    "zero_gradients": "gave {n} unused parameter{s} gradients of zeros{named}",
    "parameter_attributes": "kept {n} attribute{s} of parameters{named}",
    "list_inputs": "let {n} class{es} of units change lists and dictionaries that they are given{named}",
    "root_inputs": "cast the inputs of {n} unit{s} outside of the model's forward{named}",
    "interface": "gave the model {n} name{s} of FSDP1's interface{named}",
}
"""How often a quirk acted; where it is `named`, on how many things, and which."""

_UNSEEN = "class_names"
"""A name that is compared leaves no trace: whether it was needed is not known."""


@dataclass(frozen=True)
class Line:
    """One `with like_fsdp1(model)`, all times that it ran, on all ranks.

    Attributes:
        place: `file:line` in the user's files, relative to the program's folder.
        call: as the source has it, `like_fsdp1(model)`.
        acted: how often each quirk that did something did so, for the model and on the rank where it did most, and
            examples.
        idle: the other quirks, without those that are switched off already.
        edit: what the call may become; empty where nothing acted, or everything did.
        is_written: whether the tool wrote the line into a temporary copy: the place is then the code that it was written for.
        findings: of a line that did nothing, what needs the user in the form torch, which has no such line.
    """

    place: str
    call: str
    acted: dict[str, dict[str, Any]] = field(default_factory=dict)
    idle: tuple[str, ...] = ()
    edit: str = ""
    is_written: bool = False
    findings: tuple[str, ...] = ()

    @property
    def may_go(self) -> bool:
        """Whether the run needed nothing of it, and the form torch has no findings."""
        return not self.acted and not self.findings

    def text(self) -> str:
        """What it did, and what follows from it, in one line."""
        if not self.acted:
            return f"{self._start()} {self._not_needed()}"
        rest = ""
        if self.edit:
            rest = f". Nothing else was needed in this run, so you can write `{self.edit}`"
        return f"{self.did()}{rest}"

    def did(self) -> str:
        """What each switch did."""
        did = [f"`{name}` {_words(name, **done)}" for name, done in self.acted.items()]
        return f"{self._start()} {'; '.join(did)}"

    def _start(self) -> str:
        written = ""
        if self.is_written:
            written = ", written for this line"
        return f"{self.place} {self.call}{written}:"

    def _not_needed(self) -> str:
        nothing = "nothing of it was needed in this run."
        if self.findings:
            shown = ", ".join(self.findings[:_SHOWN])
            if len(self.findings) > _SHOWN:
                shown += f" and {len(self.findings) - _SHOWN} more"
            return (
                f"{nothing} To do without it, use `--form torch` and look at its findings: {shown}"
            )
        if self.is_written:
            way = "`--form torch` writes the program without it"
        else:
            way = "You can remove the line and dedent its block"
        return f"{nothing} {way}, if no code compares class names"

    def to_json(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            **vars(self),
            "idle": list(self.idle),
            "findings": list(self.findings),
            "may_go": self.may_go,
        }


def read(run: Run, root: Path) -> list[Line]:
    """The lines that ran, of the program in the folder `root`."""
    places: dict[str, list[dict[str, Any]]] = {}
    for rank in run.ranks:
        for record in rank.quirks:
            places.setdefault(record["place"], []).append(record)
    lines = []
    for place, records in places.items():
        off = {name for record in records for name in record["switched_off"]}
        known = records[0]["known"]
        done = {name: _most(name, records) for record in records for name in record["acted"]}
        acted = {name: done[name] for name in {**dict.fromkeys(known), **done} if done.get(name)}
        idle = tuple(name for name in known if name not in {*off, *acted, _UNSEEN})
        call = _call_at(place, root)
        edit = ""
        if acted and idle:
            edit = _switched_off(call, idle)
        lines.append(Line(place, ast.unparse(call), acted, idle, edit))
    return lines


def _most(name: str, records: list[dict[str, Any]]) -> dict[str, Any]:
    """How often a quirk acted, in the record with most, and the examples of all; empty where it never did."""
    all_done = [record["acted"][name] for record in records if name in record["acted"]]
    count = max(done["count"] for done in all_done)
    examples = dict.fromkeys([example for done in all_done for example in done["examples"]])
    if count:
        return {"count": count, "examples": [*examples]}
    return {}


def _call_at(place: str, root: Path) -> ast.Call:
    """The call as the source has it; `like_fsdp1(...)` where it cannot be found."""
    name, _, line = place.rpartition(":")
    try:
        tree = ast.parse((root / name).read_bytes())
    except (OSError, ValueError, SyntaxError):
        tree = ast.Module([], [])
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and call.lineno <= int(line) <= (call.end_lineno or 0):
            if ast.unparse(call.func).rpartition(".")[2] == NAME:
                return call
    return ast.Call(ast.Name(NAME), [ast.Constant(...)], [])


def _switched_off(call: ast.Call, names: tuple[str, ...]) -> str:
    """The call with these quirks switched off, too."""
    kept = [keyword for keyword in call.keywords if keyword.arg not in names]
    more = [ast.keyword(name, ast.Constant(False)) for name in names]
    return ast.unparse(ast.Call(call.func, call.args, [*kept, *more]))


def _words(name: str, count: int, examples: list[str]) -> str:
    """What a quirk did, in a few words: `zero gradients for 3 parameters (head.weight, ...)`."""
    words = _WORDS.get(name, "acted {n} time{s}{named}")
    shown = examples[:_SHOWN]
    if len(examples) > _SHOWN:
        shown = [*shown, "..."]
    named = ""
    if examples:
        named = f" ({', '.join(shown)})"
    more = ""
    if "{named}" in words and name in _WORDS:
        count = len(examples)
        if len(examples) >= _LISTED:
            more = " or more"
    several = count != 1
    return words.format(n=f"{count}{more}", s="s" * several, es="es" * several, named=named)
