"""A call of one of FSDP1's functions for the states of optimizers, with its arguments by name."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.expressions import dotted

_SIGNATURES = {
    "optim_state_dict": ("model", "optim", "optim_state_dict", "group"),
    "optim_state_dict_to_load": (
        "model",
        "optim",
        "optim_state_dict",
        "is_named_optimizer",
        "load_directly",
        "group",
    ),
    "full_optim_state_dict": ("model", "optim", "optim_input", "rank0_only", "group"),
    "sharded_optim_state_dict": ("model", "optim", "group"),
    "shard_full_optim_state_dict": ("full_optim_state_dict", "model", "optim_input", "optim"),
    "scatter_full_optim_state_dict": (
        "full_optim_state_dict",
        "model",
        "optim_input",
        "optim",
        "group",
    ),
    "flatten_sharded_optim_state_dict": ("sharded_optim_state_dict", "model", "optim"),
    "rekey_optim_state_dict": (
        "optim_state_dict",
        "optim_state_key_type",
        "model",
        "optim_input",
        "optim",
    ),
}


@dataclass(frozen=True, eq=False)
class OptimizerCall:
    """A call of one of the functions.

    Attributes:
        given: what it gives for each parameter.
        former: model and states stand the other way round, as before torch 2.1.
    """

    node: ast.Call
    attribute: ast.Attribute
    given: dict[str, ast.expr]
    former: bool = False

    @property
    def name(self) -> str:
        return self.attribute.attr

    def of_states(self) -> ast.expr | None:
        """The states that are to be loaded."""
        return next((v for k, v in self.given.items() if k.endswith("optim_state_dict")), None)

    def only(self, *names: str) -> bool:
        """Whether nothing else is given, but for what is `None` or `False` anyway."""
        return all(
            name in names or (isinstance(value, ast.Constant) and value.value in (None, False))
            for name, value in self.given.items()
        )


def bound(context: Context, call: ast.Call, attribute: ast.Attribute) -> OptimizerCall | str | None:
    """A call with its arguments by name; why that cannot be told, or None where they are not all in sight."""
    signature = _SIGNATURES[attribute.attr]
    starred = any(isinstance(a, ast.Starred) for a in call.args)
    if starred or any(keyword.arg is None for keyword in call.keywords):
        return None
    former = False
    if attribute.attr == "optim_state_dict_to_load" and len(call.args) > 1:
        first, second = (is_model(context, value) for value in call.args[:2])
        if first == second:
            return "which argument is the model? before torch 2.1 the states came first; give them by keyword"
        former = second
        if former:
            signature = ("optim_state_dict", "model", "optim", *signature[3:])
    given = dict(zip(signature, call.args, strict=False))
    given.update({k.arg: k.value for k in call.keywords if k.arg is not None})
    return OptimizerCall(call, attribute, given, former)


def is_model(context: Context, expression: ast.expr) -> bool:
    """Whether an expression holds a model: the analysis says so, or its name."""
    name = dotted(expression).rpartition(".")[2].lower()
    return bool(context.sites(expression)) or name.endswith(("model", "module"))
