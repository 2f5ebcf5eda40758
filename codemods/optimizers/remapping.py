"""An optimizer that is given the sharded parameters where its model is sharded: `with remap_optimizer(optimizer, model):`.

It must be at hand there: as a parameter, an attribute, or a name that holds it whenever the constructor runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import RUNTIME, Context
from fsdp_migrate.codemods.expressions import dotted
from fsdp_migrate.codemods.optimizers.kept_parameters import Kept, is_optimizer_name, unchained
from fsdp_migrate.codemods.optimizers.sharding_places import Place
from fsdp_migrate.codemods.rule import Enclose, Need
from fsdp_migrate.index.module import Module, Parameter

# What a program reads of an optimizer.
_MEMBERS = frozenset(
    {"param_groups", "state", "step", "zero_grad", "state_dict", "load_state_dict"}
)


def remapped(
    context: Context, place: Place, optimizer: str
) -> tuple[Enclose, tuple[Need, ...]] | None:
    """The context around the statement that shards, and what to import for it; None if it cannot stand there."""
    statement = context.module.statement(place.call)
    expression = unchained(place.model)
    model = dotted(expression)
    if not model or isinstance(expression, ast.Subscript) or not context.stands_alone(statement):
        return None
    name, needs = context.name(RUNTIME, "remap_optimizer", use=place.call)
    return Enclose(context.syntax.statement(statement), f"{name}({optimizer}, {model})"), needs


def at_hand(context: Context, kept: Kept, place: Place) -> str | None:
    """The name that holds an optimizer wherever the model is sharded; None if there is none."""
    target = bound_to(kept)
    statement = context.module.statement(place.call)
    if not kept.optimizer or target is None:
        return None
    return target if _is_at_hand(context, kept.chain[-1], statement, target) else None


def bound_to(kept: Kept) -> str | None:
    """The name that an optimizer is bound to, dotted."""
    statement = kept.chain[-1]
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0]
    if statement.value is not kept.node:
        return None
    if isinstance(target, ast.Tuple):  # `optimizer, scheduler = build(model)`
        named = [e for e in target.elts if "optim" in dotted(e).lower()]
        target = named[0] if len(named) == 1 else target
    return dotted(target) if isinstance(target, ast.Name | ast.Attribute) else None


def _is_at_hand(context: Context, made: ast.stmt, sharded: ast.stmt, target: str) -> bool:
    """Whether a name holds the optimizer wherever the model is sharded."""
    module = context.module
    block = module.parents[made]
    function = module.enclosing_function(made)
    if module.enclosing_function(sharded) is not function:  # `__init__` and another method
        return block is function and target.startswith("self.")
    if block in module.ancestors(sharded) and _same_branch(block, made, sharded, module):
        return True
    parent = module.parents[block] if isinstance(block, ast.If) else None
    if parent is None or parent not in module.ancestors(sharded) or not isinstance(block, ast.If):
        return False
    return _binds(block.body, target) and _binds(block.orelse, target)


def _same_branch(block: ast.AST, made: ast.stmt, sharded: ast.stmt, module: Module) -> bool:
    """Whether what runs the second of two statements below one has run the first: they are not in opposite branches."""
    inner: ast.AST = sharded
    while module.parents[inner] is not block:
        inner = module.parents[inner]
    return any(
        made in statements and inner in statements
        for statements in (getattr(block, name, None) for name in ("body", "orelse", "finalbody"))
        if isinstance(statements, list)
    )


def _binds(statements: list[ast.stmt], target: str) -> bool:
    """Whether a block certainly binds a name."""
    return any(
        (isinstance(s, ast.Assign) and any(dotted(t) == target for t in s.targets))
        or (isinstance(s, ast.If) and _binds(s.body, target) and _binds(s.orelse, target))
        for s in statements
    )


def optimizers_of(module: Module, function: ast.AST) -> Iterator[tuple[str, int | None]]:
    """The parameters of a function that are optimizers: their names, and their positions."""
    scope = module.scopes.get(function)
    for name, bindings in scope.bindings.items() if scope else ():
        for binding in bindings:
            if isinstance(binding, Parameter) and _is_optimizer(module, binding):
                yield name, binding.position


def attributes_of(module: Module, cls: ast.ClassDef) -> Iterator[str]:
    """The attributes that `__init__` binds to optimizers that it is given, and nothing else binds."""
    stored = [
        (ast.unparse(target), target, statement.value)
        for statement in ast.walk(cls)
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Attribute)
    ]
    for name, target, value in stored:
        around = module.enclosing_function(target)
        if not isinstance(value, ast.Name) or not is_optimizer_name(name):
            continue
        if getattr(around, "name", "") != "__init__" or not name.startswith("self."):
            continue
        found = module.lookup(value.id, module.scope_of(value))
        given = found is not None and all(isinstance(b, Parameter) for b in found[1])
        loads = [
            node
            for node in ast.walk(cls)
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Load)
            and ast.unparse(node) == name
        ]
        if (
            given
            and sum(other == name for other, _, _ in stored) == 1
            and any(_is_member(module, load) for load in loads)
            and all(_reads_optimizer(module, load) for load in loads)
        ):
            yield name


def _is_member(module: Module, load: ast.AST) -> bool:
    parent = module.parents[load]
    return isinstance(parent, ast.Attribute) and parent.attr in _MEMBERS


def _is_optimizer(module: Module, parameter: Parameter) -> bool:
    """Whether a parameter is an optimizer that has been built: by its annotation, or its name and what is read of it."""
    name, annotation = parameter.argument.arg, parameter.argument.annotation
    if annotation is not None:
        words = ast.unparse(annotation).replace("'", "").replace('"', "")
        kinds = {"Optimizer", "optim.Optimizer", "torch.optim.Optimizer"}
        return bool(
            {word.strip() for word in words.replace("Optional[", "").strip("]").split("|")} & kinds
        )
    if not is_optimizer_name(name):
        return False
    scope = module.scopes[parameter.function]
    if len(scope.bindings[name]) != 1:
        return False
    loads = [n for n in module.loads.get(name, ()) if module.scope_of(n) is scope]
    return bool(loads) and all(_reads_optimizer(module, load) for load in loads)


def _reads_optimizer(module: Module, load: ast.Name | ast.Attribute) -> bool:
    """Whether an optimizer can stand where a name is read: it is returned, given on, or one of its members is used."""
    parent = module.parents[load]
    if isinstance(parent, ast.Attribute):
        return parent.attr in _MEMBERS
    if isinstance(parent, ast.Call):
        return parent.func is not load
    return isinstance(parent, ast.Return | ast.Tuple | ast.keyword | ast.Assign | ast.Dict)
