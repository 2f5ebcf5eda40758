"""Two frames that run the same lines: what their variables are, and which of them are tainted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fsdp_migrate.verify.where.forms import Grade, grade
from fsdp_migrate.verify.where.mapping import File
from fsdp_migrate.verify.where.rows import Unit
from fsdp_migrate.verify.where.statements import Statement, Statements
from fsdp_migrate.verify.where.traces import Frame
from fsdp_migrate.verify.where.weights import SUFFIXES


@dataclass(eq=False)
class Scope:
    """A pair of frames that run: their variables, and which of them are tainted.

    Attributes:
        rank: of the process.
        caller: the scope that called them, and `at` the unit in which it did.
        rounds: the lines of a loop over flat parameters that is running: FSDP1 has other rounds than FSDP2.
        shares: those of one over parts of flat parameters: until its end the ranks are at different parameters.
        modules: the variables that are other modules than in the original, by the unit that gave them.
        later: what differed in it, by the unit that changed it; only what is left at the loop's end counts.
    """

    frame: Frame
    file: File
    statements: Statements
    rank: int
    caller: Scope | None
    at: Unit | None
    old: dict[str, str] = field(default_factory=dict)
    new: dict[str, str] = field(default_factory=dict)
    tainted: set[str] = field(default_factory=set)
    rounds: tuple[int, int] = (0, 0)
    shares: tuple[int, int] = (0, 0)
    later: dict[str, Unit] = field(default_factory=dict)
    modules: dict[str, Unit] = field(default_factory=dict)

    def statement(self, unit: Unit) -> Statement:
        """The original's statement."""
        return self.statements.at(unit.key[0])

    def without_waiting(self, changed: dict[str, Unit]) -> dict[str, Unit]:
        """Variables by the units that changed them, without those that count only at the end of a loop over parameters."""
        waiting = changed
        if not self.rounds[1]:
            waiting = {
                n: unit for n, unit in changed.items() if self.shares[1] and n.endswith(SUFFIXES)
            }
        self.later.update(waiting)
        return {name: unit for name, unit in changed.items() if name not in waiting}

    def loop(self, *both: Unit) -> int:
        """The line of the innermost `for` that these are in; 0 for none."""
        return self.statements.loop(*[unit.key[0] for unit in both])

    def differing(self, names: Iterable[str], tolerance: float) -> dict[str, Grade]:
        """How much variables that both programs have differ."""
        both = [name for name in names if name in self.old and name in self.new]
        return {name: grade(self.old[name], self.new[name], tolerance) for name in both}


def is_tainted(path: str, scope: Scope) -> bool:
    """Whether a variable or an attribute is; a method reads all of its object."""
    name, _, attribute = path.partition(".")
    if name in scope.tainted:
        return True
    if attribute and path in scope.old:
        return path in scope.tainted
    return any(known.startswith(f"{name}.") for known in scope.tainted)


def names_read(scope: Scope, unit: Unit) -> list[str]:
    """The variables and attributes that a statement reads, and those of its loops."""
    statement = scope.statement(unit)
    read = set(statement.targets)
    for path in statement.reads:
        if path in scope.old:
            read.add(path)
        else:
            read.add(path.partition(".")[0])
    return sorted(read)


def over_parameters_in(statement: Statement, scope: Scope, both: list[Unit]) -> bool:
    """Whether a comprehension runs over parameters, in this frame or in one of its own."""
    rows = [row for unit in both for frame in unit.children for row in frame.rows]
    states = [scope.old, scope.new, *[row.values for row in rows]]
    return any(
        state.get(name, "").startswith("~") for name in statement.targets for state in states
    )


def is_other_code(scope: Scope, last: Unit, a: list[Unit], b: list[Unit]) -> bool:
    """Whether the next line after `last` is another one by the source alone: no value chose it."""
    statement = scope.statement(last)
    changed = scope.file.changed
    if not statement.decides:
        return any(unit.key[0] in changed for unit in a[:1] + b[:1])
    if (a and b) or statement.blocks.isdisjoint(changed):
        return False
    # Only one program has lines of a block that was rewritten, which may be shorter now.
    grades = scope.differing(names_read(scope, last), 0.0)
    return all(how == Grade.SAME for how in grades.values())


def is_in(lines: tuple[int, int], unit: Unit) -> bool:
    """Whether a unit is within these lines."""
    return lines[0] <= unit.key[0] <= lines[1]


def is_over(form: str, statement: Statement, state: dict[str, str]) -> bool:
    """Whether a loop runs over parameters of this form."""
    return any(state.get(name, "").startswith(form) for name in statement.targets)
