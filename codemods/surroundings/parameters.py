"""The expressions of a project that hold parameters of FSDP1 models; `following` finds them."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.index.models import Site
from fsdp_migrate.index.module import Module

# A step into a value: an element of a tuple by its place, any element, a key's value, any key's value.
Step = int | str | None
EACH: Step = None
ANY_KEY = "*"
# Attributes of a parameter that are as much of the shard as the parameter is.
OF_THE_SAME = frozenset({"data", "grad", "main_grad"})


@dataclass(frozen=True)
class Held:
    """What an expression holds.

    Attributes:
        module: the file that the expression stands in.
        sites: the constructors of the models.
        path: where in the value the parameters are; empty for a parameter itself.
        origin: the call that took them from the model, or the model's attribute.
        kind: parameters, or modules of a model, or an optimizer of its parameters.
    """

    module: Module
    sites: frozenset[Site]
    path: tuple[Step, ...]
    origin: ast.expr
    kind: str = "parameter"


@dataclass(eq=False)
class Parameters:
    """The expressions of a project that hold parameters of FSDP1 models.

    Attributes:
        held: each parameter, gradient or shard in sight, by expression.
        several: each sequence of them.
        optimizers: the calls that are given parameters and make an optimizer.
    """

    held: dict[ast.expr, Held] = field(default_factory=dict)
    several: dict[ast.expr, Held] = field(default_factory=dict)
    optimizers: dict[ast.Call, Held] = field(default_factory=dict)

    def of(self, context: Context) -> list[tuple[ast.expr, Held]]:
        """The parameters in one file, each once: `p.grad`, and not the `p` in it.

        Left out are those that are whole in FSDP1 too, and those that the program tells apart from DTensors.
        """
        module = context.module
        found = [(node, held) for node, held in self.held.items() if held.module is module]
        return [
            (node, held)
            for node, held in sorted(found, key=lambda pair: _position(pair[0]))
            if not isinstance(node, ast.Call)
            and not (
                isinstance(around := module.parents[node], ast.Attribute)
                and around.attr in OF_THE_SAME
            )
            and not _is_whole(module, node)
            and not _is_told_apart(module, node)
        ]


def _position(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _is_whole(module: Module, node: ast.AST) -> bool:
    """Whether `summon_full_params` is around a node: there parameters are whole under both."""
    return any(
        isinstance(parent, ast.With)
        and any("summon_full_params" in ast.unparse(item.context_expr) for item in parent.items)
        for parent in module.ancestors(node)
    )


def _is_told_apart(module: Module, node: ast.AST) -> bool:
    """Whether the program asks whether it has a DTensor: it knows what to do with one, and with a plain tensor."""
    return any(
        isinstance(parent, ast.If | ast.IfExp) and "DTensor" in ast.unparse(parent.test)
        for parent in module.ancestors(node)
    )
