"""Two traces walked side by side: what differs first, and what differs later without coming from that.

A variable that differs is tainted; what a line computes from a tainted variable is not reported again. Once something
tainted has acted on an object (`optimizer.step()`), numbers differ anywhere: from then on only other things are reported,
as names, counts and the way that the program takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from fsdp_migrate.verify.where.forms import Grade, grade, only_numbers
from fsdp_migrate.verify.where.lines import Line, Pair
from fsdp_migrate.verify.where.mapping import File, Mapping
from fsdp_migrate.verify.where.rows import Unit, rejoin, units, without_wrappers
from fsdp_migrate.verify.where.statements import Statement, Statements
from fsdp_migrate.verify.where.traces import Frame, Trace, below
from fsdp_migrate.verify.where.weights import SUFFIX

GOES_ON = "the next line"
"""The name under which a line's way on is reported."""

_PAIRS = 3
"""At most so many values of a line."""

Noise = frozenset[tuple[str, int, str]]
"""File, line and name of what differs between two runs of one program."""


@dataclass
class _Scope:
    """A pair of frames that run: their variables, and which of them are tainted.

    Attributes:
        caller: the scope that called them, and `at` the unit in which it did.
    """

    frame: Frame
    file: File
    statements: Statements
    caller: _Scope | None
    at: Unit | None
    old: dict[str, str] = field(default_factory=dict)
    new: dict[str, str] = field(default_factory=dict)
    tainted: set[str] = field(default_factory=set)

    def statement(self, unit: Unit) -> Statement:
        """The original's statement."""
        return self.statements.at(unit.key[0])

    def differing(self, names: Iterable[str], tolerance: float) -> dict[str, Grade]:
        """How much variables that both programs have differ."""
        both = [name for name in names if name in self.old and name in self.new]
        return {name: grade(self.old[name], self.new[name], tolerance) for name in both}


class Search:
    """Compares the traces of one rank.

    Attributes:
        found: the lines, in the order in which the program came to them.
        noise: what differs at all, whether it is reported or not.
    """

    def __init__(
        self, mapping: Mapping, rank: int, tolerance: float, known: Noise = frozenset()
    ) -> None:
        self.found: dict[tuple[str, int], Line] = {}
        self.noise: set[tuple[str, int, str]] = set()
        self._mapping = mapping
        self._rank = rank
        self._tolerance = tolerance
        self._known = known
        self._statements: dict[str, Statements] = {}
        self._modules: dict[str, _Scope] = {}
        self._fields: set[str] = set()
        self._writers: dict[str, tuple[_Scope, Unit]] = {}
        self._acted = False
        self._events = 0

    def run(self, original: Trace, migrated: Trace) -> None:
        """Compare two traces."""
        self._frames(original.frames, migrated.frames, None, None)

    def _frames(
        self, olds: list[Frame], news: list[Frame], caller: _Scope | None, at: Unit | None
    ) -> None:
        """Compare the calls of one line, in their order; what only one program calls is left out."""
        place = 0
        for old in olds:
            file = self._mapping.file(old.file)
            if file is None:
                continue
            for index in range(place, len(news)):
                if self._is_same(old, news[index], file):
                    place = index + 1
                    self._frame(old, news[index], file, caller, at)
                    break

    def _is_same(self, old: Frame, new: Frame, file: File) -> bool:
        lines = file.old.get(old.first), file.new.get(new.first)
        return (
            old.name == new.name
            and old.file == self._mapping.name(new.file)
            and (lines[0] == lines[1] or old.name == "<module>")
        )

    def _frame(
        self, old: Frame, new: Frame, file: File, caller: _Scope | None, at: Unit | None
    ) -> None:
        if old.file not in self._statements:
            self._statements[old.file] = Statements("\n".join(file.text))
        scope = _Scope(old, file, self._statements[old.file], caller, at)
        if old.name == "<module>":
            self._modules[old.file] = scope
        news = units(new, file.new, file.rewritten)
        olds = without_wrappers(units(old, file.old, file.rewritten), news)
        self._walk(scope, olds, news)

    def _walk(self, scope: _Scope, a: list[Unit], b: list[Unit]) -> None:
        i = j = 0
        last: Unit | None = None
        while i < len(a) and j < len(b):
            if a[i].key == b[j].key:
                self._both(scope, a[i], b[j])
                last = a[i]
                i, j = i + 1, j + 1
                continue
            if "raise" in (a[i].kind, b[j].kind) or "open" in (a[i].kind, b[j].kind):
                self._both(scope, a[i], b[j], only_calls=True)
                return
            i_next, j_next = rejoin(a, i, b, j)
            self._parted(scope, last, a[i:i_next], b[j:j_next])
            i, j = i_next, j_next

    def _both(self, scope: _Scope, a: Unit, b: Unit, only_calls: bool = False) -> None:
        """A unit that both programs ran."""
        self._left_out(scope, a)
        events = self._events
        self._frames(a.children, b.children, scope, a)
        from_call = self._events > events
        if only_calls:
            return
        _update(scope.old, a.values)
        _update(scope.new, b.values)
        names = {**a.values, **b.values}
        grades = scope.differing(names, self._tolerance)
        for name, how in grades.items():
            if how != Grade.OTHER:
                scope.tainted.discard(name)
        other = [name for name, how in grades.items() if how == Grade.OTHER]
        statement = scope.statement(a)
        reads = self._reads_tainted(scope, a, statement)
        if other:
            self._differ(scope, a, other, reads or from_call)
        for name in names:
            if "." in name and a.kind != "call":
                self._writers[name.partition(".")[2]] = scope, a
        if statement.acts and (reads or other):
            self._acted = True

    def _left_out(self, scope: _Scope, unit: Unit) -> None:
        """Rounds that only the original ran: only what came of them counts."""
        scope.old.update({name: form for name, (form, _) in unit.left_out.items()})
        for name, how in scope.differing(unit.left_out, self._tolerance).items():
            if how == Grade.OTHER:
                writer = unit.left_out[name][1]
                derived = self._reads_tainted(scope, writer, scope.statement(writer))
                self._differ(scope, writer, [name], derived)

    def _reads_tainted(self, scope: _Scope, unit: Unit, statement: Statement) -> bool:
        """Whether a statement, or for arguments the one that called, reads what is tainted."""
        if unit.kind == "call":
            if scope.caller is None or scope.at is None:
                return False
            return self._reads_tainted(scope.caller, scope.at, scope.caller.statement(scope.at))
        module = self._modules.get(scope.frame.file, scope)
        for path in statement.reads:
            name, _, attribute = path.partition(".")
            home = scope if name in scope.old or module is scope else module
            if attribute in self._fields or _is_tainted(path, home):
                return True
        return False

    def _differ(self, scope: _Scope, unit: Unit, names: list[str], derived: bool) -> None:
        place = scope.frame.file, unit.key[0]
        self.noise.update((*place, name) for name in names)
        self._events += 1
        fresh = [name for name in names if (*place, name) not in self._known]
        if self._acted:
            fresh = [n for n in fresh if not only_numbers(scope.old[n], scope.new[n])]
        # What differed before, and differs still, is not new.
        fresh = [name for name in fresh if name not in scope.tainted]
        if fresh and not derived:
            self._report(scope, unit, fresh)
        scope.tainted.update(names)
        self._fields.update(name.partition(".")[2] for name in names if "." in name)

    def _report(self, scope: _Scope, unit: Unit, names: list[str]) -> None:
        pairs = [Pair(name, scope.old[name], scope.new[name]) for name in names]
        writer = self._writer_of_weights(scope, unit, pairs[0])
        if writer is not None:
            scope, unit = writer
        elif unit.kind == "call":
            # Between the program's own lines: an attribute is the last writer's, an argument the caller's.
            last = self._writers.get(names[0].partition(".")[2])
            if last is not None:
                scope, unit = last
            elif (caller := scope.caller) is not None and (at := scope.at) is not None:
                function = scope.frame.name
                pairs = [replace(pair, name=f"{pair.name} of {function}") for pair in pairs]
                scope, unit = caller, at
        self._add(scope, unit, [*pairs, *self._read_values(scope, unit, names)])

    def _writer_of_weights(
        self, scope: _Scope, unit: Unit, pair: Pair
    ) -> tuple[_Scope, Unit] | None:
        """The line of a function that was called here and wrote to the first of the weights that differ."""
        if not pair.name.endswith(SUFFIX):
            return None
        both = zip(pair.original.split(", "), pair.migrated.split(", "), strict=False)
        names = [one.partition(" ")[0] for one, other in both if one != other]
        for name in names:
            writer = self._writers.get(name.rpartition(".")[2])
            if writer is not None and any(writer[0].frame is f for f in below(unit.children)):
                return writer
        return None

    def _read_values(self, scope: _Scope, unit: Unit, but: list[str]) -> list[Pair]:
        """What a statement reads that is written differently, though it means the same."""
        found = []
        for path in sorted(scope.statement(unit).reads | scope.statement(unit).targets):
            old, new = scope.old.get(path), scope.new.get(path)
            if path not in but and old is not None and new is not None and old != new:
                found.append(Pair(path, old, new))
        return found

    def _add(self, scope: _Scope, unit: Unit, pairs: list[Pair]) -> None:
        file, line = place = scope.frame.file, unit.key[0]
        if place not in self.found:
            source, around = scope.file.source(line), scope.file.around(line)
            self.found[place] = Line(
                file, line, source, tuple(pairs[:_PAIRS]), self._rank, around=around
            )

    def _parted(self, scope: _Scope, last: Unit | None, a: list[Unit], b: list[Unit]) -> None:
        """Both programs went on at other lines after `last`, until they met again."""
        before = dict(scope.old), dict(scope.new)
        for unit in a:
            scope.old.update({name: form for name, (form, _) in unit.left_out.items()})
            _update(scope.old, unit.values)
        for unit in b:
            _update(scope.new, unit.values)
        changed = {name: unit for unit in [*a, *b] for name in unit.values}
        statement = scope.statement(last) if last is not None else Statement()
        if last is None or self._over_parameters(statement, before):
            # FSDP1 has other numbers of parameters: only what came of it counts.
            for name, how in scope.differing(changed, self._tolerance).items():
                if how == Grade.OTHER:
                    self._differ(scope, changed[name], [name], False)
            return
        place = scope.frame.file, last.key[0]
        self.noise.add((*place, GOES_ON))
        self._events += 1
        derived = self._reads_tainted(scope, last, statement)
        if not derived and (*place, GOES_ON) not in self._known:
            whole = dict(scope.old), dict(scope.new)
            scope.old, scope.new = before
            read = self._read_values(scope, last, [])
            scope.old, scope.new = whole
            self._add(scope, last, [Pair(GOES_ON, _first(scope, a), _first(scope, b)), *read])
        scope.tainted.update(
            name
            for name, how in scope.differing(changed, self._tolerance).items()
            if how == Grade.OTHER
        )
        if any(scope.statement(unit).acts for unit in [*a, *b]):
            self._acted = True

    def _over_parameters(
        self, statement: Statement, states: tuple[dict[str, str], dict[str, str]]
    ) -> bool:
        """Whether a loop runs over parameters."""
        return statement.loops and any(
            state.get(name, "").startswith("~") for name in statement.targets for state in states
        )


def _update(state: dict[str, str], values: dict[str, str]) -> None:
    """Take over new values; another object in a variable has no parts but those that come with it."""
    changed = {name for name in values if "." not in name}
    for path in [path for path in state if path.partition(".")[0] in changed and "." in path]:
        del state[path]
    state.update(values)


def _is_tainted(path: str, scope: _Scope) -> bool:
    """Whether a variable or an attribute is; a method reads all of its object."""
    name, _, attribute = path.partition(".")
    if name in scope.tainted:
        return True
    if attribute and path in scope.old:
        return path in scope.tainted
    return any(known.startswith(f"{name}.") for known in scope.tainted)


def _first(scope: _Scope, rest: list[Unit]) -> str:
    if not rest:
        return "where both meet again"
    line, ends = rest[0].key
    return (
        "the end of the function"
        if ends and not line
        else f"line {line}: {scope.file.source(line)}"
    )
