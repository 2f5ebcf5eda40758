"""What the contract's rules ask of a file: its calls of `fully_shard`, and what they shard."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.expressions import shortened
from fsdp_migrate.codemods.rule import Draft, Rule
from fsdp_migrate.findings import Action
from fsdp_migrate.index.flow import unchained
from fsdp_migrate.index.module import Assigned, Module, Opaque
from fsdp_migrate.index.order import block_of
from fsdp_migrate.index.sharded import Place
from fsdp_migrate.index.values import origin

Access = tuple[str, ...]


def breach(
    rule: Rule, context: Context, node: ast.AST, message: str, construct: str | None = None
) -> Draft:
    """A finding of the contract: nothing is rewritten, and no model is held back."""
    return Draft(rule, node, Action.MANUAL, message, construct or shortened(context.source(node)))


def holds(context: Context, expression: ast.expr) -> bool:
    """Whether an expression of this file holds a module sharded by `fully_shard`."""
    assert context.sharded is not None
    return context.sharded.holds(expression, context.module)


def shardings(context: Context) -> list[Place]:
    """The calls of `fully_shard` in a file, in source order."""
    assert context.sharded is not None
    found = [
        place
        for place in context.sharded.places
        if place.module is context.module
        and place.is_direct
        and context.sharded.is_fully_shard(place.call, place.module)
    ]
    return sorted(found, key=lambda place: (place.call.lineno, place.call.col_offset))


def given(context: Context, call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """The keyword arguments of a call with what each gives, those of a dictionary in sight among them."""
    for keyword in call.keywords:
        if keyword.arg is not None:
            yield keyword.arg, keyword.value
        else:
            yield from _items(context, keyword.value)


def _items(context: Context, mapping: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    made = origin(context.project, mapping, context.module)
    if made is not None and made.module is context.module:
        node = made.node
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value, value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "dict" and not node.args:
                yield from ((k.arg, k.value) for k in node.keywords if k.arg is not None)
    if isinstance(mapping, ast.Name):
        yield from _stored(context.module, mapping)


def _stored(module: Module, mapping: ast.Name) -> Iterator[tuple[str, ast.expr]]:
    """`kwargs["mp_policy"] = ...`."""
    for load in module.loads.get(mapping.id, ()):
        parent = module.parents[load]
        statement = module.parents[parent]
        if (
            isinstance(parent, ast.Subscript)
            and isinstance(parent.ctx, ast.Store)
            and isinstance(statement, ast.Assign)
            and isinstance(parent.slice, ast.Constant)
            and isinstance(parent.slice.value, str)
            and module.scope_of(load) is module.scope_of(mapping)
        ):
            yield parent.slice.value, statement.value


def access(context: Context, model: ast.expr) -> Access:
    """How a module is reached from a name: `model.layers` is (model, layers), each of a loop over it (model, layers, *).

    Empty where that is not in sight.
    """
    model = unchained(model)
    if isinstance(model, ast.Attribute):
        owner = access(context, model.value)
        return (*owner, model.attr) if owner else ()
    if isinstance(model, ast.Subscript):
        owner = access(context, model.value)
        return (*owner, f"[{ast.unparse(model.slice)}]") if owner else ()
    if not isinstance(model, ast.Name):
        return ()
    loop = loop_of(context.module, model)
    if loop is None:
        return (model.id,)
    owner = access(context, _looped(loop.iter))
    return (*owner, "*") if owner else ()


def _looped(iterable: ast.expr) -> ast.expr:
    """The container of `enumerate(model.layers)`, `model.layers.items()`, `reversed(...)`."""
    while isinstance(iterable, ast.Call):
        function = iterable.func
        if isinstance(function, ast.Name) and function.id in {"enumerate", "reversed", "list"}:
            if not iterable.args:
                return iterable
            iterable = iterable.args[0]
        elif isinstance(function, ast.Attribute) and function.attr in {"values", "items"}:
            iterable = function.value
        else:
            return iterable
    return iterable


def loop_of(module: Module, name: ast.Name) -> ast.For | None:
    """The loop whose element a name is, and nothing else."""
    scope = module.scope_of(name)
    bindings = scope.bindings.get(name.id, [])
    loops = [b.node for b in bindings if isinstance(b, Opaque) and isinstance(b.node, ast.For)]
    inside = [loop for loop in loops if loop in module.ancestors(name)]
    if len(inside) != 1 or any(isinstance(b, Assigned) for b in bindings):
        return None
    loop = inside[0]
    target = loop.target
    last = target.elts[-1] if isinstance(target, ast.Tuple) and target.elts else target
    return loop if isinstance(last, ast.Name) and last.id == name.id else None


def certainly_before(module: Module, first: ast.AST, second: ast.AST) -> bool:
    """Whether a statement has run whenever a later one of the same function runs."""
    around = list(module.ancestors(second))
    child: ast.AST = module.statement(first)
    for parent in module.ancestors(child):
        if isinstance(parent, ast.If | ast.Try | ast.While | ast.ExceptHandler):
            if parent not in around:
                return False
            if isinstance(parent, ast.If | ast.Try):
                if not _same_branch(module, parent, child, second):
                    return False
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return parent in around
        child = parent
    return True


def _same_branch(module: Module, parent: ast.stmt, child: ast.AST, second: ast.AST) -> bool:
    other: ast.AST = second
    for node in module.ancestors(second):
        if node is parent:
            break
        other = node
    if not isinstance(child, ast.stmt) or not isinstance(other, ast.stmt):
        return False
    return block_of(parent, child) is block_of(parent, other)


def words_around(context: Context) -> str:
    """The source of all files that hang together with this one."""
    around = context.project.connected(context.module)
    return "\n".join(module.text for module in around)
