"""The code of a constructor in torch's words, which its arguments add to, and the values that the file shows for it."""

import ast
import re
from dataclasses import dataclass, field

from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.imports import is_pure
from fsdp_migrate.codemods.rule import Import
from fsdp_migrate.facts.names import TORCH
from fsdp_migrate.facts.scopes import Assigned, Imported

_NAME = re.compile(r"[^\W\d]\w*")


class AtRunTime(Exception):
    """An argument whose value only a run knows, or which only the runtime gives FSDP2; the message is for users."""


@dataclass(eq=False)
class Code:
    """What the arguments of one constructor become.

    Attributes:
        said: what is said of each argument, by its name.
        shared: keyword arguments, as source, of every `fully_shard` call.
        child, root: those of the units below the root, and of the root.
        units: the condition by which `{module}` is a unit of its own, as source; "" where the root alone is one.
        above: statements in front, with `{model}` for the model.
        like_fsdp1: keyword arguments of `like_fsdp1`, and `below` the statements that do the same without it.
        imports: the names that all this uses.
    """

    said: dict[str, str] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)
    child: dict[str, str] = field(default_factory=dict)
    root: dict[str, str] = field(default_factory=dict)
    units: str = ""
    above: list[str] = field(default_factory=list)
    like_fsdp1: list[str] = field(default_factory=list)
    below: list[str] = field(default_factory=list)
    imports: list[Import] = field(default_factory=list)

    def use(self, construction: Construction, name: str, module: str = TORCH) -> None:
        """Lets the file import a name that the code uses."""
        self.imports.append(Import(module, name, construction.call.func))

    @property
    def names(self) -> frozenset[str]:
        """The names that the code reads."""
        given = (*self.shared.values(), *self.child.values(), *self.root.values())
        every = (*given, self.units, *self.above, *self.like_fsdp1, *self.below)
        return frozenset(_NAME.findall(" ".join(every)))


def shown(construction: Construction, value: ast.expr) -> ast.expr:
    """The expression that gives an argument its value, if its code at the constructor has the same one.

    Raises:
        AtRunTime: if it has not, or another file gives the value.
    """
    context, file = construction.context, construction.context.file
    made = context.value(value)
    if made is None or made.file is not file:
        raise AtRunTime
    if made.node is not value:
        reads = file.reads(value) if isinstance(value, ast.Name) else []
        is_changed = any(isinstance(file.parents[read], ast.Attribute) for read in reads)
        is_kept = is_pure(context, made.node) and is_same(context, made.node, construction.call)
        if is_changed or not is_kept:
            raise AtRunTime
    return made.node


def is_same(context: Context, value: ast.expr, at: ast.AST) -> bool:
    """Whether the names in an expression mean at another place what they mean where it is, and have one value."""
    for name in (node for node in ast.walk(value) if isinstance(node, ast.Name)):
        here, there = context.file.variable(name), context.file.variable(name, at)
        if (here and here.scope) is not (there and there.scope):
            return False
        # The statement of the constructor reads the value of before: `model = FSDP(model)`.
        bindings = [
            each
            for each in (here.bindings if here is not None else ())
            if not isinstance(each, Assigned)
            or context.file.statement(each.target) is not context.file.statement(at)
        ]
        if len(bindings) > 1 and not all(isinstance(each, Imported) for each in bindings):
            return False
    return True
