"""The calls that a program makes for state dicts, and of which model they speak."""

from __future__ import annotations

import ast

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.expressions import dotted
from fsdp_migrate.index.names import fsdp1_member
from fsdp_migrate.index.values import origins

# FSDP1's functions for states of optimizers.
OPTIMIZER_STATE = frozenset(
    {
        "optim_state_dict",
        "optim_state_dict_to_load",
        "full_optim_state_dict",
        "sharded_optim_state_dict",
        "shard_full_optim_state_dict",
        "scatter_full_optim_state_dict",
        "flatten_sharded_optim_state_dict",
        "rekey_optim_state_dict",
    }
)
CALLS = frozenset({"state_dict", "load_state_dict"})
# Words in names of what has a state dict and is no model.
OTHERS = (
    "optim",
    "opt",
    "sched",
    "scaler",
    "loader",
    "sampler",
    "dataset",
    "iterator",
    "tokenizer",
    "metric",
    "generator",
)
_BARE = {"module", "_fsdp_wrapped_module"}  # `model.module` is the model


def static_method(context: Context, call: ast.Call) -> str | None:
    """`state_dict_type` for `FSDP.state_dict_type(...)`, and for the same on a model."""
    if not isinstance(call.func, ast.Attribute):
        return None
    found = {fsdp1_member(path) for path in context.project.dotted(call.func, context.module)}
    if any(member is not None and member[0] == "FullyShardedDataParallel" for member in found):
        return call.func.attr
    return call.func.attr if context.sites(call.func.value) else None


def same_model(context: Context, one: ast.expr, other: ast.expr) -> bool:
    """Whether two expressions can be the same model, or the second a part of the first."""
    first, second = text_of(one), text_of(other)
    if second == first or second.startswith(f"{first}."):
        return True
    return bool(_keys(context, one) & _keys(context, other))


def text_of(expression: ast.expr) -> str:
    """The source of a model's expression, without `.module` at its end."""
    while isinstance(expression, ast.Attribute) and expression.attr in _BARE:
        expression = expression.value
    return ast.unparse(expression)


def _keys(context: Context, expression: ast.expr) -> set[object]:
    """What tells the values of a model's name apart: the calls that made it, and the names that it had."""
    found: set[object] = {text_of(expression)}
    if isinstance(expression, ast.Name):
        for made in origins(context.project, expression, context.module):
            if isinstance(made.node, ast.Attribute | ast.Name):
                found.add(text_of(made.node))
            elif made.node is not None:
                found.add(id(made.node))
    return found


def is_other(receiver: ast.expr) -> bool:
    """Whether a name says that what has the state dict is an optimizer, a scheduler or the like."""
    last = dotted(receiver).rpartition(".")[2].lower()
    return any(word in last for word in OTHERS)


def is_plain(call: ast.Call) -> bool:
    """`….state_dict()` or `….load_state_dict(state)`, with no options but `strict`."""
    assert isinstance(call.func, ast.Attribute)
    if any(isinstance(a, ast.Starred) for a in call.args):
        return False
    if call.func.attr == "state_dict":
        return not call.args and not call.keywords
    names = [*("state_dict", "strict")[: len(call.args)], *(k.arg for k in call.keywords)]
    return len(call.args) <= 2 and sorted(map(str, names)) in (
        ["state_dict"],
        ["state_dict", "strict"],
    )
