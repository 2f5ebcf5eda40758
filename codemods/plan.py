"""What becomes of one constructor call: of each of its arguments, and of the whole.

Each argument's codemod says how plain PyTorch expresses the argument, or why only the runtime can. One argument that needs
the runtime sends the whole call there: `shard_model` has FSDP1's signature and takes the arguments as they stand.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

from fsdp_migrate.codemods.constructor_call import Constructor
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Edit, Need, Rule
from fsdp_migrate.index.models import Site
from fsdp_migrate.index.module import Assigned
from fsdp_migrate.index.names import KINDS, Kind
from fsdp_migrate.index.values import Origin


@dataclass(frozen=True)
class Units:
    """Which modules below the root are units of their own.

    Attributes:
        classes: the second argument of `isinstance`, as source.
        may_hold_root: the root itself can be of these classes, and must be skipped.
    """

    classes: str
    may_hold_root: bool


@dataclass(frozen=True, eq=False)
class Plain:
    """What an argument adds to the plain PyTorch form.

    Attributes:
        shared, child, root: keyword arguments, as source, of every `fully_shard` call, of those below the root, and of
            the root's.
        units: which modules are units of their own, if any but the root is.
        setup: statements in front.
        prepare: a call in front that is given the model: the function, and its further arguments as source.
        edits: changes elsewhere, such as a `MixedPrecision(...)` bound to a name further up.
        spent: assignments that have no other use and go away.
        gone: code that goes away with the edits.
    """

    shared: dict[str, str] = field(default_factory=dict)
    child: dict[str, str] = field(default_factory=dict)
    root: dict[str, str] = field(default_factory=dict)
    units: Units | None = None
    setup: tuple[str, ...] = ()
    prepare: tuple[str, str] | None = None
    needs: tuple[Need, ...] = ()
    edits: tuple[Edit, ...] = ()
    spent: tuple[Assigned, ...] = ()
    gone: tuple[ast.AST, ...] = ()


@dataclass(frozen=True, eq=False)
class Form:
    """What a whole call becomes: the edits, the names that they use, and the code that goes away."""

    edits: tuple[Edit, ...]
    needs: tuple[Need, ...]
    gone: tuple[ast.AST, ...]


@dataclass(frozen=True, eq=False)
class Translation:
    """What becomes of one argument, given or left at its default, or of what the model is.

    Attributes:
        message: what becomes of it; where the runtime is needed, why.
        plain: None if plain PyTorch cannot express it.
        in_runtime: whether `shard_model` is given the argument; False if it means nothing under FSDP2.
        refused: nothing sound can be written at all.
        note: worth a finding though no argument is given for it.
    """

    rule: Rule
    message: str
    plain: Plain | None = None
    in_runtime: bool = True
    refused: bool = False
    note: bool = False


@dataclass(frozen=True, eq=False)
class Plan:
    """What becomes of one constructor call as a whole.

    Attributes:
        translations: by argument name; arguments that are left out are there as well when they matter.
    """

    constructor: Constructor
    translations: dict[str, Translation]

    @property
    def site(self) -> Site:
        return self.constructor.site

    @property
    def refused(self) -> list[Translation]:
        return [t for t in self.translations.values() if t.refused]

    @property
    def needs_runtime(self) -> list[Translation]:
        """The translations that plain PyTorch cannot express."""
        return [t for t in self.translations.values() if t.plain is None and not t.refused]

    @property
    def plain(self) -> bool:
        """Whether the call becomes plain PyTorch."""
        return (
            not self.needs_runtime
            and not self.refused
            and not self.constructor.splat
            and not self.constructor.wrapped_before
        )

    def merged(self) -> Plain:
        """The plain forms of all arguments together."""
        parts = [t.plain for t in self.translations.values() if t.plain is not None]
        return Plain(
            shared=_merge([p.shared for p in parts]),
            child=_merge([p.child for p in parts]),
            root=_merge([p.root for p in parts]),
            units=next((p.units for p in parts if p.units), None),
            setup=tuple(line for p in parts for line in p.setup),
            prepare=next((p.prepare for p in parts if p.prepare), None),
            needs=tuple(need for p in parts for need in p.needs),
            edits=tuple(edit for p in parts for edit in p.edits),
            spent=tuple(binding for p in parts for binding in p.spent),
            gone=tuple(node for p in parts for node in p.gone),
        )


def spent_with(
    constructor: Constructor, made: Origin
) -> tuple[tuple[Assigned, ...], tuple[ast.AST, ...]]:
    """What goes away with an argument: the assignments that made it and have no other use, and the object itself."""
    context = constructor.context
    alone = all(
        context.is_only_use(name) and context.stands_alone(context.module.statement(name.target))
        for name in made.names
    )
    if not alone or made.module is not context.module or made.node is None:
        return (), ()
    return made.names, (made.node,)


def without_effect(
    constructor: Constructor, name: str, rule: Rule, message: str
) -> Translation | None:
    """What becomes of an argument that means nothing under FSDP2, whatever its value.

    An expression that could do something when it is evaluated stays, and the call goes to the runtime.
    """
    value = constructor.value(name)
    if value is None:
        return None
    if is_pure(constructor.context, value):
        return Translation(rule, message, Plain(gone=(value,)), in_runtime=False)
    return Translation(
        rule, f"{message}; its expression may do more than give a value, so it stays"
    )


def switch(
    constructor: Constructor, name: str, rule: Rule, *, off: str, on: str
) -> Translation | None:
    """What becomes of an argument that is off by default: nothing to do if it is off, the runtime's if it is on."""
    value = constructor.value(name)
    if value is None:
        return None
    if constructor.constant(name, False) is False and is_pure(constructor.context, value):
        return Translation(rule, off, Plain(), in_runtime=False)
    return Translation(rule, on)


def is_pure(context: Context, value: ast.AST) -> bool:
    """Whether an expression only gives a value: no assignment, no await, and calls of what is known to do nothing else."""
    if isinstance(value, ast.Lambda):
        return True
    if isinstance(value, ast.Await | ast.NamedExpr | ast.Yield | ast.YieldFrom):
        return False
    if isinstance(value, ast.Call) and not _only_makes(context, value.func):
        return False
    return all(is_pure(context, child) for child in ast.iter_child_nodes(value))


def _only_makes(context: Context, function: ast.expr) -> bool:
    """Whether a function makes an object and does nothing else: FSDP1's options and policies, and a few others."""
    name = context.fsdp1(function)
    if name is not None:
        return KINDS[name] in {Kind.OPTION, Kind.POLICY}
    dotted = context.project.dotted(function, context.module)
    if dotted:
        return dotted <= {"functools.partial", "torch.device", "torch.cuda.current_device"}
    if not isinstance(function, ast.Name) or function.id not in {"set", "tuple", "list"}:
        return False
    return context.means_builtin(function.id, function)


def _merge(parts: Sequence[dict[str, str]]) -> dict[str, str]:
    merged: dict[str, str] = {}
    for part in parts:
        merged.update(part)
    return merged
