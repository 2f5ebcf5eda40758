"""What a run gave to each FSDP1 construct: a small JSON file that `values` writes and `migrate --values` reads.

    {"version": 1, "program": "train.py --strategy zero2", "ranks": 2, "files": {"train.py": "<sha256>"},
     "constructs": [{"call": "FullyShardedDataParallel", "file": "train.py", "line": 30, "end_line": 34, "end_column": 6,
                     "arguments": {"sharding_strategy": "ShardingStrategy.SHARD_GRAD_OP"}, "units": {...}, ...}]}

One entry is one call in the source. What was not the same on all ranks and in all calls is under `differs`, with the
values that were seen, and counts as unknown; so does what differs between several recordings.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from fsdp_migrate.exit_codes import Unusable
from fsdp_migrate.findings import Problem
from fsdp_migrate.source import shown_path

VERSION = 1
NOT_GIVEN = "<not given>"
CHANGED = "not as it was when its values were recorded: none of them is used; record them again"
NOT_THERE = "recorded by a run, but not among these files: record the program where it is now"
_PLACE = ("call", "file", "line", "end_line", "end_column", "function")
_OTHER = ("arguments", "differs", "names", "times")
_MOST_SEEN = 4

Entry = dict[str, Any]


@dataclass(frozen=True)
class Recorded:
    """One call in the source, or one `.module`, as it ran.

    Attributes:
        call: `FullyShardedDataParallel`, a method of it, or `module`, which is read.
        line, end_line, end_column: of the call, counted from 1, in bytes; no end on Python 3.10.
        arguments: the Python text of those that were given and the same everywhere.
        differs: what was not the same, with the texts that were seen.
        names: plain values that the function could name, as `args.strategy`; keys of dictionaries are written as
            fields.
        facts: of a constructor, what was true of its model and its units (`runtime/record/constructs.py`).
    """

    call: str
    line: int
    end_line: int
    end_column: int
    arguments: dict[str, str] = field(default_factory=dict)
    differs: dict[str, list[str]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def is_at(self, node: ast.Call | ast.Attribute) -> bool:
        """Whether an expression of the source is this one: no two of the same kind end at the same place."""
        if self.end_line:
            return (self.end_line, self.end_column) == (
                node.end_lineno,
                (node.end_col_offset or 0) + 1,
            )
        return self.line == node.lineno


@dataclass(frozen=True)
class Values:
    """Recordings of one program: entries by file, and each file's hash."""

    entries: tuple[Entry, ...] = ()
    files: dict[str, str] = field(default_factory=dict)

    def of(self, paths: Iterable[Path]) -> tuple[dict[Path, list[Recorded]], list[Problem]]:
        """What is known of each file; nothing if one of the recorded files is another now, or none is there, and a problem
        that names it."""
        problems: list[Problem] = []
        roots = dict.fromkeys(root for path in paths for root in self._roots(path.resolve()))
        if not roots and self.files:
            problems.append(Problem(min(self.files), 0, NOT_THERE))
        for root in roots:
            changed = [
                name for name, digest in self.files.items() if _digest(root / name) != digest
            ]
            if not changed:
                places = {
                    name: [e for e in self.entries if e["file"] == name] for name in self.files
                }
                return {root / n: [_recorded(e) for e in known] for n, known in places.items()}, []
            problems.append(Problem(shown_path(root / changed[0]), 0, CHANGED))
        return {}, problems[:1]

    def _roots(self, path: Path) -> Iterator[Path]:
        """The folders that a recorded name can be relative to, if it means a path."""
        for name in self.files:
            parts = Path(name).parts
            if path.parts[-len(parts) :] == parts:
                yield Path(*path.parts[: -len(parts)])


def read(paths: Iterable[Path]) -> Values:
    """The values that several recordings agree on; raises Unusable for a file that is no recording."""
    runs = [_read(path) for path in paths]
    files: dict[str, str] = {}
    for path, run in zip(paths, runs, strict=True):
        for name, digest in run["files"].items():
            if files.setdefault(name, digest) != digest:
                raise Unusable(f"{path}: {name} is not the file that the others recorded")
    return Values(tuple(merged(entry for run in runs for entry in run["constructs"])), files)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        version = data["version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Unusable(f"{path}: no recording of `fsdp-migrate values`: {error}") from None
    if version != VERSION:
        raise Unusable(f"{path}: version {version}; this release reads version {VERSION}")
    return dict(data)


def merged(entries: Iterable[Entry]) -> list[Entry]:
    """One entry for each place, with what all calls there agree on."""
    places: dict[tuple[Any, ...], list[Entry]] = {}
    for entry in entries:
        places.setdefault(tuple(entry.get(key) for key in _PLACE), []).append(entry)
    return [_together(places[place]) for place in sorted(places, key=repr)]


def _together(calls: Sequence[Entry]) -> Entry:
    seen: dict[str, list[Any]] = {}  # of arguments and facts, whose names have nothing in common
    names = {name for call in calls for name in call["arguments"]}
    facts = dict.fromkeys(name for call in calls for name in call if name not in (*_PLACE, *_OTHER))
    for call in calls:
        known = {name: call["arguments"].get(name, NOT_GIVEN) for name in sorted(names)}
        known |= {name: call.get(name) for name in facts}
        differs = call.get("differs", {})
        for name in known | differs:
            seen.setdefault(name, []).extend(differs.get(name) or [known[name]])
    one = {name: values[0] for name, values in seen.items() if all(v == values[0] for v in values)}
    entry = {key: calls[0][key] for key in _PLACE if calls[0].get(key) is not None}
    entry["times"] = sum(call.get("times", 1) for call in calls)
    entry["arguments"] = {name: one[name] for name in sorted(names & one.keys())}
    entry |= {name: one[name] for name in facts if name in one}
    if len(one) < len(seen):
        entry["differs"] = {n: _few(values) for n, values in seen.items() if n not in one}
    first = calls[0]["names"]
    entry["names"] = {n: t for n, t in first.items() if all(c["names"].get(n) == t for c in calls)}
    return entry


def _few(seen: Iterable[Any]) -> list[str]:
    texts = dict.fromkeys(each if isinstance(each, str) else json.dumps(each) for each in seen)
    return sorted(texts)[:_MOST_SEEN]


def _recorded(entry: Entry) -> Recorded:
    return Recorded(
        entry["call"],
        entry["line"],
        entry.get("end_line", 0),
        entry.get("end_column", 0),
        entry["arguments"],
        entry.get("differs", {}),
        entry["names"],
        {name: value for name, value in entry.items() if name not in (*_PLACE, *_OTHER)},
    )


def _digest(path: Path) -> str:
    try:
        return sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
