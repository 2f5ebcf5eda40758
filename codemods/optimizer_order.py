"""An optimizer that is built before the model is sharded.

FSDP1 with `use_orig_params=True` kept the parameter objects, so the order did not matter. `fully_shard` replaces them: the
optimizer then updates tensors that nobody reads any more, without an error, and the loss stays where it is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.findings import Action
from fsdp_migrate.index.models import Site
from fsdp_migrate.index.module import Assigned, Module, Parameter, Scope
from fsdp_migrate.index.order import after
from fsdp_migrate.index.project import Definition

RULE = Rule(
    "FSDP501",
    "optimizer-before-sharding",
    "an optimizer built before fully_shard trains nothing",
    """`fully_shard` replaces the parameters by DTensors. An optimizer made before holds the old ones: its steps change
nothing, and no error says so. Build the optimizer after the model is sharded; FSDP1 allows that order as well.""",
    (
        Example(
            "the optimizer first",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

optimizer = torch.optim.AdamW(model.parameters())
model = FSDP(model, use_orig_params=True)
""",
            message="after the model is sharded",
        ),
        Example(
            "the parameters first, in a list",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

trainable = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trainable)
model = FSDP(model, use_orig_params=True)
""",
            message="after the model is sharded",
        ),
        Example(
            "parameters that are looked at, or given to the constructor",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

print(sum(p.numel() for p in model.parameters()))
frozen = [p for p in model.parameters() if not p.requires_grad]
model = FSDP(model, ignored_states=frozen)
""",
            """\
from fsdp_migrate.runtime import shard_model

print(sum(p.numel() for p in model.parameters()))
frozen = [p for p in model.parameters() if not p.requires_grad]
model = shard_model(model, ignored_states=frozen)
""",
            quiet=True,
        ),
        Example(
            "the optimizer last",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, use_orig_params=True)
optimizer = torch.optim.AdamW(model.parameters())
""",
            """\
import torch
from torch.distributed.fsdp import fully_shard

fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

# Functions that look at parameters and keep none.
_LOOKING = frozenset(
    {"sum", "len", "any", "all", "max", "min", "next", "print", "isinstance", "sorted", "str"}
)
_BY_HAND = "build the optimizer after the model is sharded: fully_shard replaces the parameters"


def find(context: Context) -> Iterator[Draft]:
    """Parameters that are taken from a model above its constructor, and kept: in an optimizer, as a rule."""
    for plan in context.plans.values():
        constructor = plan.constructor
        if constructor.model is None:
            continue
        sites = frozenset({plan.site})
        for place in _wrapped_at(
            context, constructor.context.module, constructor.call, constructor.model
        ):
            if place.module is context.module:
                yield from _taken_above(context, place, sites)
    yield from _other_methods(context)


@dataclass(frozen=True, eq=False)
class _Place:
    """Where a model, known by an expression, becomes sharded."""

    module: Module
    call: ast.Call
    model: ast.expr


def _wrapped_at(
    context: Context, module: Module, call: ast.Call, model: ast.expr, depth: int = 0
) -> Iterator[_Place]:
    """The constructor itself, and the calls of a function that wraps what it is given."""
    yield _Place(module, call, model)
    function = module.enclosing_function(call)
    if depth > 3 or function is None or not isinstance(model, ast.Name):
        return
    found = module.lookup(model.id, module.scope_of(model))
    for binding in found[1] if found else ():
        if isinstance(binding, Parameter) and binding.function is function:
            for where, caller in context.models.callers_of(function):
                given = _given(caller, binding)
                if given is not None:
                    yield from _wrapped_at(context, where, caller, given, depth + 1)


def _given(call: ast.Call, parameter: Parameter) -> ast.expr | None:
    """What a call gives for a parameter."""
    for keyword in call.keywords:
        if keyword.arg == parameter.argument.arg:
            return keyword.value
    position = parameter.position
    if position is None or position >= len(call.args):
        return None
    return call.args[position]


def _taken_above(context: Context, place: _Place, sites: frozenset[Site]) -> Iterator[Draft]:
    module = context.module
    scope = module.scope_of(place.call)
    names = _names_of(place.model, module, scope)
    for call in module.calls:
        if module.scope_of(call) is not scope or not after(place.call, call):
            continue
        keeper = next(filter(None, (_keeper(context, call, name) for name in names)), None)
        if keeper is not None:
            construct = f"{context.source(keeper.func)}(...)"
            yield Draft(RULE, keeper, Action.MANUAL, _BY_HAND, construct, sites, silent=True)


def _names_of(model: ast.expr, module: Module, scope: Scope) -> list[str]:
    """The model's own name and the names that `a = b` makes stand for the same object."""
    names = [ast.dump(model)]
    for name, bindings in scope.bindings.items():
        for binding in bindings:
            if isinstance(binding, Assigned) and isinstance(binding.value, ast.Name):
                pair = ast.dump(ast.Name(name, ast.Load())), ast.dump(binding.value)
                if set(pair) & set(names):
                    names += pair
    return list(dict.fromkeys(names))


def _keeper(context: Context, call: ast.Call, model: str) -> ast.Call | None:
    """The call that keeps the parameters which `call` takes from a model: an optimizer's constructor, or what makes one."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in {
        "parameters",
        "named_parameters",
    }:
        if _is_of(call.func.value, model):
            return _escape(context, call)
        return None
    if any(ast.dump(argument) == model for argument in call.args):
        made = context.project.definition(call.func, context.module)
        if made is not None and _keeps_parameters(context, made, call, model):
            return call
        if made is None and "optim" in ast.unparse(call.func).lower():
            return call
    return None


def _is_of(expression: ast.expr, model: str) -> bool:
    """Whether an expression is the model or a part of it."""
    while ast.dump(expression) != model:
        if not isinstance(expression, ast.Attribute | ast.Subscript):
            return False
        expression = expression.value
    return True


def _escape(context: Context, taken: ast.expr, depth: int = 0) -> ast.Call | None:
    """The call that is given what was taken, directly, in a comprehension, or through a name."""
    module = context.module
    for parent in module.ancestors(taken):
        if isinstance(parent, ast.Call):
            dotted = context.project.dotted(parent.func, module)
            looking = isinstance(parent.func, ast.Name) and parent.func.id in _LOOKING
            if (
                looking or parent in context.plans
            ):  # ignored parameters are given to the constructor
                return None
            if any(path.startswith(("torch.nn.", "torch.distributed.")) for path in dotted):
                return None
            if isinstance(parent.func, ast.Name) and parent.func.id in {
                "list",
                "filter",
                "tuple",
                "dict",
                "iter",
            }:
                continue
            return parent
        if isinstance(parent, ast.Assign) and depth < 3:
            names = [target for target in parent.targets if isinstance(target, ast.Name)]
            loads = [load for name in names for load in module.loads.get(name.id, ())]
            scope = module.scope_of(taken)
            found = (
                _escape(context, load, depth + 1)
                for load in loads
                if module.scope_of(load) is scope
            )
            return next((call for call in found if call is not None), None)
        if isinstance(parent, ast.stmt):
            return None
    return None


def _keeps_parameters(context: Context, made: Definition, call: ast.Call, model: str) -> bool:
    """Whether a function of the project makes an optimizer of the model that it is given."""
    if isinstance(made.node, ast.ClassDef):
        return False
    names = [argument.arg for argument in made.node.args.args]
    position = [ast.dump(argument) for argument in call.args].index(model)
    if position >= len(names):
        return False
    name = ast.dump(ast.Name(names[position], ast.Load()))
    return any(
        isinstance(inner, ast.Call)
        and isinstance(inner.func, ast.Attribute)
        and inner.func.attr in {"parameters", "named_parameters"}
        and _is_of(inner.func.value, name)
        for inner in ast.walk(made.node)
    ) and any("optim" in path for path in _called(context, made))


def _called(context: Context, made: Definition) -> Iterator[str]:
    for inner in ast.walk(made.node):
        if isinstance(inner, ast.Call):
            yield from context.project.dotted(inner.func, made.module)


def _other_methods(context: Context) -> Iterator[Draft]:
    """`self.model` wrapped in one method, its parameters kept in `__init__`, which runs first."""
    for plan in context.plans.values():
        constructor = plan.constructor
        call, model = constructor.call, constructor.model
        if constructor.context.module is not context.module or not isinstance(model, ast.Attribute):
            continue
        method = context.module.enclosing_function(call)
        owner = context.module.enclosing_class(call)
        if owner is None or getattr(method, "name", "") == "__init__":
            continue
        for inner in context.module.calls:
            around = context.module.enclosing_function(inner)
            if (
                getattr(around, "name", "") != "__init__"
                or context.module.enclosing_class(inner) is not owner
            ):
                continue
            keeper = _keeper(context, inner, ast.dump(model))
            if keeper is not None:
                construct = f"{context.source(keeper.func)}(...)"
                sites = frozenset({plan.site})
                yield Draft(RULE, keeper, Action.MANUAL, _BY_HAND, construct, sites, silent=True)


Command = command(find, __doc__ or "")
