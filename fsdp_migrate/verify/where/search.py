"""Two traces walked side by side: what differs first, and what differs later without coming from that.

A variable that differs is tainted; what a line computes from a tainted variable is not reported again. Once something
tainted has acted on an object (`optimizer.step()`), numbers differ anywhere: from then on only other things are reported,
as names, counts and the way that the program takes.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from fsdp_migrate.verify.where.forms import Grade, only_numbers, other_modules
from fsdp_migrate.verify.where.known import is_known
from fsdp_migrate.verify.where.lines import GOES_ON, Line, Pair, is_unwrapped
from fsdp_migrate.verify.where.mapping import File, Mapping
from fsdp_migrate.verify.where.pairs import MOST_PAIRS, first_of, pair_of
from fsdp_migrate.verify.where.rows import (
    Unit,
    is_left_there,
    modules_given,
    of_the_module,
    rejoin,
    units,
    update,
    without_wrapper_calls,
    without_wrappers,
)
from fsdp_migrate.verify.where.scope import (
    Scope,
    is_in,
    is_other_code,
    is_over,
    is_tainted,
    names_read,
)
from fsdp_migrate.verify.where.statements import Statement, Statements
from fsdp_migrate.verify.where.traces import Frame, Trace, below
from fsdp_migrate.verify.where.weights import SUFFIXES

_TRAINED = (*SUFFIXES, ".requires_grad")
_GROUP = ".param_groups["
"""Parts of a model and of an optimizer: where they differ, all numbers differ from the next step on."""

_EMPTY = "~part of a flat parameter (0,)"
"""FSDP1's part of a parameter on a rank that has none of it, nor a gradient."""

Noise = frozenset[tuple[str, int, str]]
"""File, line and name of what differs between two runs of one program."""


class Search:
    """Compares the traces of one rank.

    Attributes:
        found: the lines, each with how many lines had run before: the ranks of a program run about the same ones.
        noise: what differs at all, whether it is reported or not.
    """

    def __init__(
        self, mapping: Mapping, rank: int, tolerance: float, known: Noise = frozenset()
    ) -> None:
        self.found: dict[tuple[str, int], tuple[int, Line]] = {}
        self.noise: set[tuple[str, int, str]] = set()
        self._mapping = mapping
        self._rank = rank
        self._tolerance = tolerance
        self._known = known
        self._statements: dict[str, Statements] = {}
        self._modules: dict[str, Scope] = {}
        self._fields: set[str] = set()
        self._writers: dict[str, tuple[Scope, Unit]] = {}
        self._actors: set[tuple[Scope, str]] = set()
        self._unsettled: dict[tuple[Scope, str], tuple[str, int]] = {}
        self._events = 0
        self._ran = 0

    def run(self, original: Trace, migrated: Trace) -> None:
        """Compare two traces."""
        self._frames(original.frames, migrated.frames, None, None)

    def _frames(
        self, olds: list[Frame], news: list[Frame], caller: Scope | None, at: Unit | None
    ) -> None:
        """Compare the calls of one line, in their order; what only one program calls is left out."""
        place = 0
        for old in self._without_wrapper_calls(olds, news):
            file = self._mapping.file(old.file)
            if file is None:
                continue
            for index in range(place, len(news)):
                if self._is_same(old, news[index], file):
                    place = index + 1
                    new = news[index]
                    own = of_the_module(old, new, file.old, file.new)
                    self._frame(own, new, file, caller, at)
                    break

    def _without_wrapper_calls(self, olds: list[Frame], news: list[Frame]) -> list[Frame]:
        """The original's calls that the migrated program can have; the calls of one file are next to each other."""
        kept: list[Frame] = []
        for name, calls in groupby(olds, lambda frame: frame.file):
            file = self._mapping.file(name)
            own = [frame for frame in news if self._mapping.name(frame.file) == name]
            if file is not None:
                kept += without_wrapper_calls([*calls], own, file.old, file.new)
        return kept

    def _is_same(self, old: Frame, new: Frame, file: File) -> bool:
        lines = file.old.get(old.first), file.new.get(new.first)
        modules = modules_given(old)[:1] + modules_given(new)[:1]
        if len(modules) == 2 and other_modules(*modules):
            return False
        return (
            old.name == new.name
            and old.file == self._mapping.name(new.file)
            and (lines[0] == lines[1] or old.name == "<module>")
        )

    def _frame(
        self, old: Frame, new: Frame, file: File, caller: Scope | None, at: Unit | None
    ) -> None:
        if old.file not in self._statements:
            self._statements[old.file] = Statements("\n".join(file.text))
        scope = Scope(old, file, self._statements[old.file], self._rank, caller, at)
        if old.name == "<module>":
            self._modules[old.file] = scope
        news = units(new, file.new, file.rewritten)
        olds = without_wrappers(units(old, file.old, file.rewritten), news)
        self._walk(scope, olds, news)
        self._settle(scope, scope.later)

    def _walk(self, scope: Scope, a: list[Unit], b: list[Unit]) -> None:
        i = j = 0
        last: Unit | None = None
        while i < len(a) and j < len(b):
            if a[i].key == b[j].key:
                self._both(scope, a[i], b[j])
                last = a[i]
                i = i + 1
                j = j + 1
                continue
            if {a[i].kind, b[j].kind} & {"raise", "open"} or is_left_there(a[i:], b[j:]):
                self._both(scope, a[i], b[j], only_calls=True)
                return
            i_next, j_next = rejoin(a, i, b, j, scope.loop(a[i], b[j]))
            self._parted(scope, last, a[i:i_next], b[j:j_next])
            i = i_next
            j = j_next

    def _both(self, scope: Scope, a: Unit, b: Unit, only_calls: bool = False) -> None:
        """A unit that both programs ran."""
        self._ran += 1
        self._left_out(scope, a)
        events = self._events
        self._frames(a.children, b.children, scope, a)
        from_call = self._events > events
        if only_calls:
            return
        update(scope.old, a.values)
        update(scope.new, b.values)
        names = {**a.values, **b.values}
        grades = scope.differing(names, self._tolerance)
        self._heal(scope, a, grades)
        statement = scope.statement(a)
        other = [name for name, how in grades.items() if how == Grade.OTHER]
        other = self._but_noise(scope, a, [n for n in other if not is_known(scope, a, b, n)])
        reads = self._reads_tainted(scope, a, statement)
        self._watch_rounds(scope, a, statement)
        other = [*scope.without_waiting(dict.fromkeys(other, a))]
        if other:
            self._differ(scope, a, other, reads or from_call)
        for name in names:
            if "." in name and a.kind != "call":
                self._writers[name.partition(".")[2]] = scope, a
        if statement.acts and (reads or other):
            self._act(scope, statement.adds_to)

    def _heal(self, scope: Scope, unit: Unit, grades: dict[str, Grade]) -> None:
        """Variables that are the same again, and those that are modules of other classes."""
        collects = scope.statement(unit).collects
        for name, how in grades.items():
            if how != Grade.OTHER and name in scope.tainted:
                scope.tainted.discard(name)
                if collects:
                    self._withdraw(scope, name)
            if other_modules(scope.old[name], scope.new[name]):
                scope.modules[name] = unit
            else:
                scope.modules.pop(name, None)

    def _watch_rounds(self, scope: Scope, unit: Unit, statement: Statement) -> None:
        """Note the beginning and the end of a loop over FSDP1's parameters."""
        running = scope.rounds[1] or scope.shares[1]
        if running and not is_in(scope.rounds, unit) and not is_in(scope.shares, unit):
            scope.rounds = scope.shares = 0, 0
            self._settle(scope, scope.later)
            scope.later = {}
            running = 0
        if not running and statement.body and is_over("~flat", statement, scope.old):
            scope.rounds = statement.body
        elif not running and statement.body and is_over("~part", statement, scope.old):
            scope.shares = statement.body

    def _settle(self, scope: Scope, changed: dict[str, Unit]) -> None:
        """Report what differs after rounds that were not the same ones, at the line that changed it."""
        for name, how in scope.differing(changed, self._tolerance).items():
            unit = changed[name]
            if how != Grade.OTHER or is_known(scope, unit, unit, name):
                continue
            if self._but_noise(scope, unit, [name]):
                derived = self._reads_tainted(scope, unit, scope.statement(unit))
                self._differ(scope, unit, [name], derived)

    def _left_out(self, scope: Scope, unit: Unit) -> None:
        """Rounds that only the original ran: only what came of them counts."""
        scope.old.update({name: form for name, (form, _) in unit.left_out.items()})
        self._settle(scope, {name: writer for name, (_, writer) in unit.left_out.items()})

    def _reads_tainted(self, scope: Scope, unit: Unit, statement: Statement) -> bool:
        """Whether a statement, or for arguments the one that called, reads what is tainted."""
        if unit.kind == "call":
            if scope.caller is None or scope.at is None:
                return False
            return self._reads_tainted(scope.caller, scope.at, scope.caller.statement(scope.at))
        module = self._modules.get(scope.frame.file, scope)
        for path in statement.reads:
            name, _, attribute = path.partition(".")
            home = module
            if name in scope.old or module is scope:
                home = scope
            if attribute in self._fields or is_tainted(path, home):
                return True
        return False

    def _but_noise(self, scope: Scope, unit: Unit, names: list[str]) -> list[str]:
        """What differs without what differs between two runs of the original, which means nothing and taints nothing."""
        place = scope.frame.file, unit.key[0]
        self.noise.update([(*place, name) for name in names])
        return [name for name in names if (*place, name) not in self._known]

    def _differ(self, scope: Scope, unit: Unit, names: list[str], derived: bool) -> None:
        self._events += 1
        fresh = names
        if self._actors:
            numbers = [n for n in fresh if only_numbers(scope.old[n], scope.new[n])]
            fresh = [n for n in fresh if n not in numbers and not n.endswith(SUFFIXES)]
        # What differed before, and differs still, is not new.
        fresh = [name for name in fresh if name not in scope.tainted]
        if fresh and not derived:
            self._report(scope, unit, fresh)
        if any(name.endswith(_TRAINED) or _GROUP in name for name in names):
            self._act(scope)
        scope.tainted.update(names)
        self._fields.update([name.partition(".")[2] for name in names if "." in name])

    def _act(self, scope: Scope, name: str = "") -> None:
        """Note that a difference has changed more than variables; if it was added to one, only until that one is the same."""
        self._actors.add((scope, name))

    def _withdraw(self, scope: Scope, name: str) -> None:
        """Take a line back: a rank's own share of a sum differs, where FSDP1 gave it other parts, and the sum does not."""
        self._actors.discard((scope, name))
        place = self._unsettled.pop((scope, name), None)
        if place is not None and place not in self._unsettled.values():
            self.found.pop(place, None)

    def _report(self, scope: Scope, unit: Unit, names: list[str]) -> None:
        pairs = [pair_of(name, scope.old[name], scope.new[name]) for name in names]
        writer = self._writer_of_weights(scope, unit, pairs[0])
        own = scope
        other = [name for name in names_read(scope, unit) if name in scope.modules]
        if other and writer is None:
            # What gave the other module comes before what was done with it.
            unit = scope.modules[other[0]]
            given = [pair_of(name, scope.old[name], scope.new[name]) for name in other]
            pairs = [*dict.fromkeys([*given, *pairs])]
        elif writer is not None:
            scope, unit = writer
        elif unit.kind == "call":
            # Between the program's own lines: an attribute is the last writer's, an argument the caller's.
            last = self._writers.get(names[0].partition(".")[2])
            if last is not None:
                scope, unit = last
            elif (caller := scope.caller) is not None and (at := scope.at) is not None:
                function = scope.frame.name
                pairs = [replace(pair, name=f"{pair.name} of {function}") for pair in pairs]
                scope = caller
                unit = at
        pairs = [*dict.fromkeys([*pairs, *self._read_values(scope, unit, names)])]
        line = unit.alone.get(names[0], unit.key[0])
        if self._add(scope, line, pairs):
            place = scope.frame.file, line
            self._unsettled.update({(own, name): place for name in names})

    def _writer_of_weights(self, scope: Scope, unit: Unit, pair: Pair) -> tuple[Scope, Unit] | None:
        """The line of a function that was called here and wrote to the first of the weights that differ."""
        if not pair.name.endswith(SUFFIXES):
            return None
        names = [item.partition(" ")[0] for item in pair.original.split(", ")]
        for name in names:
            writer = self._writers.get(name.rpartition(".")[2])
            if writer is not None and writer[0].frame in below(unit.children):
                return writer
        return None

    def _read_values(self, scope: Scope, unit: Unit, but: list[str]) -> list[Pair]:
        """What a statement reads that is written differently, though it means the same."""
        found = []
        for path in names_read(scope, unit):
            old = scope.old.get(path, "")
            new = scope.new.get(path, "")
            if path not in but and old and new and not is_unwrapped(old, new):
                found.append(Pair(path, old, new))
        return found

    def _add(self, scope: Scope, line: int, pairs: list[Pair]) -> bool:
        """Add a line; returns whether it is new."""
        file, _ = place = scope.frame.file, line
        if place in self.found:
            return False
        source = scope.file.source(line)
        around = scope.file.around(line)
        shown = tuple(pairs[:MOST_PAIRS])
        self.found[place] = (self._ran, Line(file, line, source, shown, self._rank, around=around))
        return True

    def _parted(self, scope: Scope, last: Unit | None, a: list[Unit], b: list[Unit]) -> None:
        """Both programs went on at other lines after `last`, until they met again."""
        before = dict(scope.old), dict(scope.new)
        for unit in a:
            scope.old.update({name: form for name, (form, _) in unit.left_out.items()})
            update(scope.old, unit.values)
        for unit in b:
            update(scope.new, unit.values)
        changed = {name: unit for unit in [*a, *b] for name in unit.values}
        statement = scope.statement(last) if last is not None else Statement()
        known = last is not None and any(
            name in scope.modules or before[0].get(name) == _EMPTY
            for name in names_read(scope, last)
        )
        if (
            last is None
            or known
            or scope.frame.name == "<genexpr>"  # what comes of it counts
            or self._over_parameters(statement, before)
            or (not (a and b) and scope.rounds[1] and [*a, *b][0].key[0] == scope.rounds[0])
            or is_other_code(scope, last, a, b)
        ):
            # FSDP1 has other parameters and more modules: only what came of it counts.
            self._settle(scope, scope.without_waiting(changed))
            return
        is_new = bool(self._but_noise(scope, last, [GOES_ON]))
        self._events += is_new
        derived = self._reads_tainted(scope, last, statement)
        if is_new and not derived:
            whole = dict(scope.old), dict(scope.new)
            scope.old, scope.new = before
            read = self._read_values(scope, last, [])
            scope.old, scope.new = whole
            self._add(
                scope, last.key[0], [Pair(GOES_ON, first_of(scope, a), first_of(scope, b)), *read]
            )
        scope.tainted.update(
            [
                name
                for name, how in scope.differing(changed, self._tolerance).items()
                if how == Grade.OTHER
            ]
        )
        if is_new and any(scope.statement(unit).acts for unit in [*a, *b]):
            self._act(scope)

    def _over_parameters(
        self, statement: Statement, states: tuple[dict[str, str], dict[str, str]]
    ) -> bool:
        """Whether a loop runs over parameters."""
        return statement.loops and any(
            state.get(name, "").startswith("~") for name in statement.targets for state in states
        )
