"""The rows of a frame in units that both programs have, and where two lists of units meet again."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import accumulate

from fsdp_migrate.verify.where.traces import Frame, Row

_AHEAD = 4000
"""Rows that are searched for the place where both programs meet again."""
_AGREE = 2
"""So many more rows must agree there."""
_WRAPPER = re.compile(r"module FSDP\(?")

Key = tuple[int, bool]
"""The original's line, and whether the frame ends there."""


@dataclass(eq=False)
class Unit:
    """A row, or several of a block that was rewritten, under the original's line; `line` is the program's own.

    `left_out` are units that ran before, in a round of a loop that only this program has: what each variable was last
    given there, and by which unit. `alone` has the lines that only this program has, by the variables that they changed.
    """

    key: Key
    line: int
    values: dict[str, str] = field(default_factory=dict)
    children: list[Frame] = field(default_factory=list)
    kind: str = "line"
    left_out: dict[str, tuple[str, Unit]] = field(default_factory=dict)
    alone: dict[str, int] = field(default_factory=dict)


def update(state: dict[str, str], values: dict[str, str]) -> None:
    """Take over new values; another object in a variable has no parts but those that come with it."""
    changed = {name for name in values if "." not in name}
    for path in [path for path in state if path.partition(".")[0] in changed and "." in path]:
        del state[path]
    state.update(values)


def units(frame: Frame, lines: dict[int, int], rewritten: set[int]) -> list[Unit]:
    """A frame's rows; what rows changed that only one program has is added to the row before."""
    found: list[Unit] = []
    for row in frame.rows:
        place = lines.get(row.line)
        if row.kind == "call":
            place = lines.get(row.line, 0)
        if place is None:
            if found:
                update(found[-1].values, row.values)
                found[-1].alone.update(dict.fromkeys(row.values, row.line))
            continue
        # What is not the last of a frame is a value that a generator yields: it goes on behind it.
        ends = row.kind == "raise" or (row.kind == "return" and row is frame.rows[-1])
        key = place, ends
        if place in rewritten and found and _goes_on(found[-1], place):
            _extend(found[-1], row)
            found[-1].key = key
            found[-1].kind = row.kind
        else:
            found.append(Unit(key, row.line, dict(row.values), [*row.children], row.kind))
    return found


def _goes_on(unit: Unit, line: int) -> bool:
    return unit.key == (line, False) and unit.kind == "line"


def _extend(unit: Unit, row: Row) -> None:
    update(unit.values, row.values)
    unit.children.extend(row.children)


def rejoin(a: list[Unit], i: int, b: list[Unit], j: int, loop: int = 0) -> tuple[int, int]:
    """The next places at which both lists go on alike, with as few rows left out as possible; their ends if there are none.

    With the line of a loop that both are in, they go on in the same round of it: one may have left a round early.
    """
    rounds_a = _rounds(a[i : i + _AHEAD], loop)
    rounds_b = _rounds(b[j : j + _AHEAD], loop)
    places: dict[tuple[Key, int], list[int]] = {}
    for place, rounds in enumerate(rounds_b):
        places.setdefault((b[j + place].key, rounds), []).append(j + place)
    best = len(a), len(b)
    cost = _AHEAD * 2
    for place, rounds in enumerate(rounds_a):
        if place >= cost:
            break
        for other in places.get((a[i + place].key, rounds), []):
            if place + other - j >= cost:
                break
            if _agree(a, i + place, b, other):
                best = (i + place, other)
                cost = place + other - j
                break
    if loop and best == (len(a), len(b)):
        return rejoin(a, i, b, j)
    return best


def _rounds(units_: list[Unit], loop: int) -> list[int]:
    """How many rounds of a loop began before each unit; 0 for no loop."""
    begun = accumulate((unit.key[0] == loop for unit in units_), initial=0)
    return [*begun][:-1]


def _agree(a: list[Unit], i: int, b: list[Unit], j: int) -> bool:
    both = zip(a[i : i + 1 + _AGREE], b[j : j + 1 + _AGREE], strict=False)
    return all(one.key == other.key for one, other in both)


def is_left_there(a: list[Unit], b: list[Unit]) -> bool:
    """Whether two lists have the same line and one ends with it: a generator that nobody asked again."""
    return a[0].key[0] == b[0].key[0] and 1 in (len(a), len(b))


def without_wrappers(a: list[Unit], b: list[Unit]) -> list[Unit]:
    """The original's units without the rounds of loops over modules that only FSDP1 has.

    FSDP1's wrapper and the module in it are two rounds; under FSDP2 they are one. Of the two the round is kept that did
    what the round of the migrated program did.
    """
    if not any(map(_wrapper, a)) or any(map(_wrapper, b)):
        return a
    kept: list[Unit] = []
    waiting: dict[str, tuple[str, Unit]] = {}
    i = j = 0
    while i < len(a):
        if _wrapper(a[i]):
            second = _next(a, i)
        else:
            second = len(a)
        if second == len(a) or _inner(a[i]) != a[second].values.get(_wrapper(a[i])):
            a[i].left_out.update(waiting)
            waiting = {}
            kept.append(a[i])
            j = _find(b, j, a[i].key, j - 1) + 1
            i += 1
            continue
        j = _find(b, j, a[i].key, len(b) - 1)
        one = a[i:second]
        two = a[second : _end(a, second, i)]
        chosen, other = _chosen(one, two, b[j : _end(b, j, j - 1)])
        j += 1
        if other is one:
            _take_over(chosen, one)
        given = {name for unit in chosen for name in unit.values}
        gave = {name: (form, unit) for unit in other for name, form in unit.values.items()}
        chosen[0].left_out.update(waiting)
        waiting = {name: last for name, last in gave.items() if name not in given}
        kept += chosen
        i += len(one) + len(two)
    return kept


def _wrapper(unit: Unit) -> str:
    """The variable that is a wrapper of FSDP1, if the row gave it one."""
    return next((n for n, form in unit.values.items() if _WRAPPER.match(form) and "." not in n), "")


def _inner(unit: Unit) -> str:
    return "module " + unit.values[_wrapper(unit)].removeprefix("module FSDP(").removesuffix(")")


def _next(units_: list[Unit], start: int) -> int:
    """The next row of the same line: the loop's next round."""
    for index in range(start + 1, len(units_)):
        if units_[index].key == units_[start].key:
            return index
    return len(units_)


def _find(units_: list[Unit], start: int, key: Key, otherwise: int) -> int:
    for index in range(start, len(units_)):
        if units_[index].key == key:
            return index
    return otherwise


def _end(units_: list[Unit], start: int, previous: int) -> int:
    """Where a round ends; those of a comprehension are a row each."""
    if start + 1 < len(units_) and units_[start + 1].key == units_[start].key:
        return start + 1
    if previous == start - 1 and units_[previous].key == units_[start].key:
        return start + 1
    return _next(units_, start)


def _take_over(units_: list[Unit], before: list[Unit]) -> None:
    """Give units what the round before has changed at the same lines: a row has only what changed since then."""
    for unit in units_:
        earlier = next((each for each in before if each.key == unit.key), None)
        if earlier is not None:
            unit.values = {**earlier.values, **unit.values}


def _chosen(
    one: list[Unit], two: list[Unit], migrated: list[Unit]
) -> tuple[list[Unit], list[Unit]]:
    """Of the wrapper's round and the module's the one to keep, and the other one."""
    keys = [unit.key for unit in migrated]
    if [unit.key for unit in two] == keys:
        return two, one
    if [unit.key for unit in one] == keys:
        return one, two
    # One round did some of it, and the other one the rest.
    merged = []
    for key in keys:
        found = [unit for unit in [*two, *one] if unit.key == key and unit not in merged]
        merged += found[:1]
    if len(merged) == len(keys):
        return merged, [unit for unit in [*one, *two] if unit not in merged]
    return two, one


def without_wrapper_calls(
    olds: list[Frame], news: list[Frame], old_lines: dict[int, int], new_lines: dict[int, int]
) -> list[Frame]:
    """The original's calls without those that only FSDP1 has: for a wrapper next to the same function's for the module in it.

    Of the two the call is kept that did what the migrated program's did.
    """
    if len(olds) <= len(news):
        return olds
    dropped: set[int] = set()
    for index, frame in enumerate(olds):
        inner = _inner_of(frame)
        next_to = [*olds[max(index - 1, 0) : index], *olds[index + 1 : index + 2]]
        pairs = [
            f for f in next_to if inner and f.first == frame.first and inner in modules_given(f)
        ]
        if not pairs:
            continue
        ways = [
            _way(f, new_lines) for f in news if f.name == frame.name and inner in modules_given(f)
        ]
        is_wrapper = _way(frame, old_lines) in ways and _way(pairs[0], old_lines) not in ways
        if is_wrapper:
            dropped.add(id(pairs[0]))
        else:
            dropped.add(id(frame))
    return [frame for frame in olds if id(frame) not in dropped]


def of_the_module(
    old: Frame, new: Frame, old_lines: dict[int, int], new_lines: dict[int, int]
) -> Frame:
    """The original's call for a wrapper, or the one that it makes of the same function for the module in it.

    Under FSDP2 both are one: the one that went the way of the migrated program's call is compared.
    """
    inner = _inner_of(old)
    way = _way(new, new_lines)
    if not inner or _way(old, old_lines) == way:
        return old
    for row in old.rows:
        for frame in row.children:
            same = frame.name == old.name and frame.first == old.first
            same = same and _other_arguments(frame) == _other_arguments(new)
            if same and inner in modules_given(frame) and _way(frame, old_lines) == way:
                return frame
    return old


def _other_arguments(frame: Frame) -> dict[str, str]:
    """What a call was given beside modules."""
    if frame.rows:
        first = frame.rows[0].values
    else:
        first = {}
    return {
        name: form
        for name, form in first.items()
        if "." not in name and not form.startswith("module ")
    }


def _way(frame: Frame, lines: dict[int, int]) -> list[int]:
    """The original's lines that a call ran, in order."""
    return [lines[row.line] for row in frame.rows if row.line in lines and row.kind != "call"]


def _inner_of(frame: Frame) -> str:
    for form in modules_given(frame):
        if _WRAPPER.match(form):
            return "module " + form.removeprefix("module FSDP(").removesuffix(")")
    return ""


def modules_given(frame: Frame) -> list[str]:
    """The forms of the modules among a call's arguments."""
    if frame.rows:
        first = frame.rows[0].values
    else:
        first = {}
    return [form for name, form in first.items() if form.startswith("module ") and "." not in name]
