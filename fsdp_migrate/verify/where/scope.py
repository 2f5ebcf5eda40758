"""Two frames that run the same lines: what their variables are, and which of them are tainted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fsdp_migrate.verify.where.forms import Grade, grade
from fsdp_migrate.verify.where.mapping import File
from fsdp_migrate.verify.where.rows import Unit
from fsdp_migrate.verify.where.statements import Statement, Statements
from fsdp_migrate.verify.where.traces import Frame


@dataclass(eq=False)
class Scope:
    """A pair of frames that run: their variables, and which of them are tainted.

    Attributes:
        caller: the scope that called them, and `at` the unit in which it did.
        rounds: the lines of a loop over flat parameters that is running: FSDP1 has other rounds than FSDP2.
        modules: the variables that are other modules than in the original, by the unit that gave them.
        later: what differed in it, by the unit that changed it; only what is left at the loop's end counts.
    """

    frame: Frame
    file: File
    statements: Statements
    caller: Scope | None
    at: Unit | None
    old: dict[str, str] = field(default_factory=dict)
    new: dict[str, str] = field(default_factory=dict)
    tainted: set[str] = field(default_factory=set)
    rounds: tuple[int, int] = (0, 0)
    later: dict[str, Unit] = field(default_factory=dict)
    modules: dict[str, Unit] = field(default_factory=dict)

    def statement(self, unit: Unit) -> Statement:
        """The original's statement."""
        return self.statements.at(unit.key[0])

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


def over_flat_parameters(statement: Statement, state: dict[str, str]) -> bool:
    return any(state.get(name, "").startswith("~flat") for name in statement.targets)
