"""Who keeps the parameters that a program takes from a model: an optimizer, a list, an attribute.

Followed from `model.parameters()` outwards, through containers, comprehensions, loops and names, to what holds on to the
parameter objects. What only looks at them (`sum(p.numel() for p in model.parameters())`) keeps none.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.expressions import values_given
from fsdp_migrate.index.flow import unchained as unchained
from fsdp_migrate.index.module import Assigned, Module, Scope
from fsdp_migrate.index.order import after
from fsdp_migrate.index.project import Definition

TAKING = frozenset({"parameters", "named_parameters"})
FILLING = frozenset({"append", "extend", "insert", "add", "update", "add_param_group"})

# Functions that give the parameters on, and functions that look at parameters and keep none.
_PASSING = frozenset(
    {"list", "tuple", "dict", "set", "iter", "filter", "sorted", "reversed", "zip", "enumerate"}
)
_LOOKING = frozenset(
    {"sum", "len", "any", "all", "max", "min", "next", "print", "isinstance", "str", "map", "id"}
)
_DEPTH = 4
_OPTIMIZERS = frozenset({"optimizer", "optim", "opt"})


def is_optimizer_name(name: str) -> bool:
    """Whether a name says that it means one optimizer: `optimizer`, `self.actor_opt`."""
    return name.rpartition(".")[2].rpartition("_")[2] in _OPTIMIZERS


@dataclass(frozen=True, eq=False)
class Kept:
    """Parameters that are kept.

    Attributes:
        node: what keeps them: a call, or the value that a name is bound to.
        chain: the statements through which they went, the keeper's own last.
        optimizer: whether the keeper is an optimizer, or a function that makes one.
        unseen: a function between took the parameters: `AdamW(groups_of(model))`.
    """

    node: ast.expr
    chain: tuple[ast.stmt, ...]
    optimizer: bool
    unseen: bool = False


def kept_above(context: Context, scope: Scope, names: list[str], until: ast.AST) -> Iterator[Kept]:
    """What keeps parameters that one scope takes from a model above a node, and goes on being used.

    Args:
        names: the dumped expressions that stand for the model.
    """
    for call in context.module.calls:
        if context.module.scope_of(call) is scope and after(until, call):
            yield from kept_from(context, call, names, until)


def kept_from(
    context: Context, call: ast.Call, names: list[str], until: ast.AST | None = None
) -> Iterator[Kept]:
    """What keeps the parameters that one call takes from a model.

    Args:
        until: what is read behind this node is read after sharding; None if everything else is.
    """
    function = call.func
    if isinstance(function, ast.Attribute) and function.attr in TAKING:
        if any(_is_of(function.value, n) or _has_part(function.value, n) for n in names):
            yield from _Follower(context, until).follow(call, (), 0)
        return
    if isinstance(function, ast.Attribute) and "optim" in function.attr.lower():
        if any(_is_of(function.value, name) for name in names):  # `model.configure_optimizers()`
            yield from _of_method(context, call, until)
    takes_model = any(ast.dump(argument) in names for argument in values_given(call))
    if takes_model and _makes_optimizer(context, call, names):
        yield Kept(call, (context.module.statement(call),), True)
    elif _names_optimizer(context, call):
        given = [k.value for k in call.keywords if k.arg == "params"] or call.args[:1]
        if any(_comes_from(context.module, value, names, 0) for value in given):
            statement = context.module.statement(call)
            kept = any(_goes_on(context.module, value, statement) for value in given)
            yield Kept(call, (statement,), not kept, unseen=True)


def _goes_on(module: Module, value: ast.expr, statement: ast.stmt) -> bool:
    """Whether a name of parameters is read below the optimizer, by what may use them: a list that is clipped."""
    if not isinstance(value, ast.Name):
        return False
    for load in module.loads.get(value.id, ()):
        call = module.parents[load]
        looking = (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id in _LOOKING
        )
        if module.scope_of(load) is module.scope_of(value) and after(load, statement):
            if not looking:
                return True
    return False


def _comes_from(module: Module, value: ast.expr, names: list[str], depth: int) -> bool:
    """Whether an optimizer's parameters may be the model's: the model is in the expression, in a name's, or in a method's."""
    for node in ast.walk(value):
        if not isinstance(node, ast.Name | ast.Attribute) or depth >= _DEPTH:
            continue
        if any(_is_of(node, name) for name in names):
            return True
        if isinstance(node, ast.Name):
            found = module.lookup(node.id, module.scope_of(value))
            if is_optimizer_name(node.id):
                continue  # what is made from an optimizer, such as a scheduler, keeps the optimizer
            for binding in found[1] if found else ():
                if isinstance(binding, Assigned) and binding.value is not value:
                    if _comes_from(module, binding.value, names, depth + 1):
                        return True
        elif isinstance(node.value, ast.Name) and node.value.id == "self":
            if any(_takes(method, names) for method in _methods(module, value, node.attr)):
                return True
    return False


def _methods(module: Module, place: ast.AST, name: str) -> list[ast.stmt]:
    """The method or property of the class around a place."""
    cls = module.enclosing_class(place)
    return [s for s in cls.body if getattr(s, "name", "") == name] if cls else []


def _takes(method: ast.stmt, names: list[str]) -> bool:
    """Whether a method takes the model's parameters."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in TAKING
        and any(_is_of(node.value, name) or _has_part(node.value, name) for name in names)
        for node in ast.walk(method)
    )


def _of_method(context: Context, call: ast.Call, until: ast.AST | None) -> Iterator[Kept]:
    """A method of the model that makes an optimizer, or the groups of parameters for one."""
    statement = context.module.statement(call)
    assert isinstance(call.func, ast.Attribute)
    if "group" in call.func.attr or "param" in call.func.attr:
        yield from _Follower(context, until).follow(call, (), 0)
    elif isinstance(statement, ast.Assign) and statement.value is call:
        yield Kept(call, (statement,), True)


class _Follower:
    def __init__(self, context: Context, until: ast.AST | None) -> None:
        self.context = context
        self.module = context.module
        self.until = until

    def follow(self, taken: ast.expr, chain: tuple[ast.stmt, ...], depth: int) -> Iterator[Kept]:
        """Outwards from an expression that holds parameters."""
        child: ast.AST = taken
        for parent in self.module.ancestors(taken):
            if isinstance(parent, ast.Call):
                if child is parent.func:
                    return
                if not self._passes(parent):
                    yield from self._given(parent, chain, depth)
                    return
            elif isinstance(parent, ast.comprehension):
                if child is not parent.iter:
                    return
            elif isinstance(parent, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
                results = (
                    [parent.key, parent.value] if isinstance(parent, ast.DictComp) else [parent.elt]
                )
                if isinstance(child, ast.comprehension) and not _hold(results, _held_by(child)):
                    return
            elif isinstance(parent, ast.Assign | ast.AnnAssign):
                targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
                assert parent.value is not None
                for target in targets:
                    yield from self._bound(target, parent.value, (*chain, parent), depth)
                return
            elif isinstance(parent, ast.AugAssign):
                yield from self._bound(parent.target, parent.value, (*chain, parent), depth)
                return
            elif isinstance(parent, ast.For | ast.AsyncFor):
                if child is parent.iter:
                    yield from self._looped(parent, chain, depth)
                return
            elif isinstance(parent, ast.Attribute):
                call = self.module.parents[parent]
                if parent.attr not in {"items", "values"} or not isinstance(call, ast.Call):
                    return
            elif isinstance(parent, ast.stmt | ast.Compare | ast.UnaryOp | ast.Lambda):
                return
            child = parent

    def _passes(self, call: ast.Call) -> bool:
        """Whether a call gives on the parameters that it is given."""
        if isinstance(call.func, ast.Name):
            return call.func.id in _PASSING
        if isinstance(call.func, ast.Attribute) and call.func.attr in {"items", "values"}:
            return True
        return any(
            path.startswith("itertools.")
            for path in self.context.project.dotted(call.func, self.module)
        )

    def _given(self, call: ast.Call, chain: tuple[ast.stmt, ...], depth: int) -> Iterator[Kept]:
        """A call is given the parameters."""
        function = call.func
        if isinstance(function, ast.Name) and function.id in _LOOKING:
            return
        if call in self.context.plans:  # ignored parameters are given to the constructor
            return
        dotted = self.context.project.dotted(function, self.module)
        optimizer = _names_optimizer(self.context, call)
        if not optimizer and any(p.startswith(("torch.nn.", "torch.distributed.")) for p in dotted):
            return
        statement = self.module.statement(call)
        if isinstance(function, ast.Attribute) and function.attr in FILLING:
            yield from self._bound(function.value, call, (*chain, statement), depth)
        else:
            yield Kept(call, (*chain, statement), optimizer)

    def _bound(
        self, target: ast.expr, value: ast.expr, chain: tuple[ast.stmt, ...], depth: int
    ) -> Iterator[Kept]:
        """A name, an attribute or an element holds the parameters from here on."""
        while isinstance(target, ast.Subscript):
            target = target.value
        if isinstance(target, ast.Attribute):
            yield Kept(value, chain, False)
        if not isinstance(target, ast.Name) or depth >= _DEPTH:
            return
        scope = self.module.scope_of(value)
        for load in self.module.loads.get(target.id, ()):
            found = self.module.lookup(target.id, self.module.scope_of(load))
            if load is target or found is None or found[0] is not self._owner(target.id, scope):
                continue
            if not after(load, chain[-1]):
                continue
            later = self.until is None or after(load, self.until)
            if later or self.module.scope_of(load) is not scope:
                yield Kept(value, chain, False)
            else:
                yield from self.follow(load, chain, depth + 1)

    def _owner(self, name: str, scope: Scope) -> Scope | None:
        found = self.module.lookup(name, scope)
        return found[0] if found else None

    def _looped(
        self, loop: ast.For | ast.AsyncFor, chain: tuple[ast.stmt, ...], depth: int
    ) -> Iterator[Kept]:
        """`for p in model.parameters(): groups.append(p)`."""
        names = _held_by(loop)
        for statement in loop.body:
            for node in ast.walk(statement):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    if node.func.attr in FILLING and _hold(node.args, names):
                        yield from self._filled(node.func.value, node, loop, chain, depth)
                elif isinstance(node, ast.Assign) and _hold([node.value], names):
                    for target in node.targets:
                        if not isinstance(target, ast.Name):
                            yield from self._filled(target, node.value, loop, chain, depth)

    def _filled(
        self,
        target: ast.expr,
        value: ast.expr,
        loop: ast.stmt,
        chain: tuple[ast.stmt, ...],
        depth: int,
    ) -> Iterator[Kept]:
        ends = [target.body, target.orelse] if isinstance(target, ast.IfExp) else [target]
        for end in ends:
            yield from self._bound(end, value, (*chain, loop), depth)


def _held_by(loop: ast.For | ast.AsyncFor | ast.comprehension) -> set[str]:
    """The loop's names that mean parameters: not the name or the number that comes with each."""
    target = loop.target
    paired = isinstance(target, ast.Tuple) and not (
        isinstance(loop.iter, ast.Call) and ast.unparse(loop.iter.func) == "zip"
    )
    ends = target.elts[1:] if isinstance(target, ast.Tuple) and paired else [target]
    return {n.id for end in ends for n in ast.walk(end) if isinstance(n, ast.Name)}


def _hold(results: list[ast.expr], names: set[str]) -> bool:
    """Whether a value holds one of the objects that some names mean, and not only what it says of itself."""
    pending = list(results)
    while pending:
        value = pending.pop()
        if isinstance(value, ast.Name) and value.id in names:
            return True
        if isinstance(value, ast.Tuple | ast.List | ast.Set):
            pending += value.elts
        elif isinstance(value, ast.Dict):
            pending += value.values
        elif isinstance(value, ast.IfExp):
            pending += [value.body, value.orelse]
        elif isinstance(value, ast.Starred):
            pending.append(value.value)
    return False


def _is_of(expression: ast.expr, model: str) -> bool:
    """Whether an expression is the model or a part of it."""
    while ast.dump(expression := unchained(expression)) != model:
        if not isinstance(expression, ast.Attribute | ast.Subscript):
            return False
        expression = expression.value
    return True


def _has_part(expression: ast.expr, model: str) -> bool:
    """Whether the model is a part of what an expression stands for: `self.model` of `self`."""
    return f"(value={ast.dump(unchained(expression))}, " in model


def _names_optimizer(context: Context, call: ast.Call) -> bool:
    """Whether what a call makes is an optimizer, by its name."""
    dotted = context.project.dotted(call.func, context.module) or {ast.unparse(call.func)}
    if any("optim" in path.lower() and "sched" not in path.lower() for path in dotted):
        return True
    made = context.project.definition(call.func, context.module)
    if made is None:
        return False
    if isinstance(made.node, ast.ClassDef):
        return any("optim" in ast.unparse(base).lower() for base in made.node.bases)
    return any(
        "optim" in path.lower() and "sched" not in path.lower() for path in _called(context, made)
    )


def _makes_optimizer(context: Context, call: ast.Call, names: list[str]) -> bool:
    """Whether a call makes an optimizer of the model that it is given."""
    made = context.project.definition(call.func, context.module)
    if made is None:
        dotted = context.project.dotted(call.func, context.module)
        if "optim" in (next(iter(dotted), "") or ast.unparse(call.func)).lower():
            return True
        statement = context.module.statement(call)
        return (
            isinstance(statement, ast.Assign)
            and statement.value is call
            and is_optimizer_name(ast.unparse(statement.targets[0]))
        )
    if isinstance(made.node, ast.ClassDef):
        return False
    parameters = _parameters_given(made.node, call, names)
    return any(
        isinstance(inner, ast.Call)
        and isinstance(inner.func, ast.Attribute)
        and inner.func.attr in TAKING
        and any(_is_of(inner.func.value, name) for name in parameters)
        for inner in ast.walk(made.node)
    ) and any("optim" in path.lower() for path in _called(context, made))


def _parameters_given(
    function: ast.FunctionDef | ast.AsyncFunctionDef, call: ast.Call, names: list[str]
) -> list[str]:
    """The parameters of a function, dumped, that a call gives the model for."""
    positional = [argument.arg for argument in function.args.args]
    given = [n for n, a in zip(positional, call.args, strict=False) if ast.dump(a) in names]
    given += [k.arg for k in call.keywords if k.arg and ast.dump(k.value) in names]
    return [ast.dump(ast.Name(name, ast.Load())) for name in given]


def _called(context: Context, made: Definition) -> Iterator[str]:
    for inner in ast.walk(made.node):
        if isinstance(inner, ast.Call):
            yield from context.project.dotted(inner.func, made.module)


def names_of(model: ast.expr, module: Module, scope: Scope) -> list[str]:
    """The expressions that stand for a model or share its parameters, dumped.

    Its own name, the names that `a = b` makes stand for the same object, a model that another one is made around
    (`a = compile(b)`), and a part that has got a name (`head = model.head`).
    """
    taken = _taken_from(module)
    names = [ast.dump(end) for end in _ends(model, taken)]
    more = True
    while more:
        found = len(names)
        for name, bindings in scope.bindings.items():
            own = ast.dump(ast.Name(name, ast.Load()))
            for binding in bindings:
                if not isinstance(binding, Assigned) or binding.path:
                    continue
                if own in names:
                    names += [ast.dump(end) for end in _ends(binding.value, taken)]
                elif isinstance(binding.value, ast.Name) or own in taken:
                    if any(_is_of(binding.value, other) for other in names):
                        names.append(own)
        names = list(dict.fromkeys(names))
        more = len(names) > found
    return names


def _ends(model: ast.expr, taken: frozenset[str]) -> Iterator[ast.expr]:
    """The expressions that a model can be, and those that a call makes it around."""
    model = unchained(model)
    if isinstance(model, ast.IfExp):
        yield from _ends(model.body, taken)
        yield from _ends(model.orelse, taken)
    elif isinstance(model, ast.NamedExpr):
        yield ast.Name(model.target.id, ast.Load())
        yield from _ends(model.value, taken)
    elif isinstance(model, ast.Call):
        if ast.unparse(model.func).endswith("copy"):
            return
        for argument in [*model.args, *(keyword.value for keyword in model.keywords)]:
            for end in _ends(argument, taken):
                if ast.dump(end) in taken:
                    yield end
    elif isinstance(model, ast.Name | ast.Attribute | ast.Subscript):
        yield model


def _taken_from(module: Module) -> frozenset[str]:
    """The expressions that a file takes parameters from, dumped."""
    return frozenset(
        ast.dump(unchained(call.func.value))
        for call in module.calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in TAKING
    )
