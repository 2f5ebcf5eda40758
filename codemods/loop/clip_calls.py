"""What can be seen of a call that clips gradients: the norm, and whether torch's own function would do."""

from __future__ import annotations

import ast
import math

import libcst as cst

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.expressions import given_for
from fsdp_migrate.codemods.plan import Plan
from fsdp_migrate.codemods.rule import Edit, Edited
from fsdp_migrate.index.models import Site

TORCH = "torch.nn.utils.clip_grad_norm_"
_INFINITIES = frozenset({"math.inf", "torch.inf", "numpy.inf"})


def is_torch(context: Context, call: ast.Call) -> bool:
    """Whether a call is one of torch's own function."""
    return context.project.dotted(call.func, context.module) == {TORCH}


def torch_can(context: Context, call: ast.Call, sites: frozenset[Site]) -> bool:
    """Whether torch's function works on what the models become, as far as their constructors show it.

    It fails for ignored parameters beside sharded ones, for gradients on the CPU without a backend that sums them there,
    and for the infinity norm.
    """
    norm = norm_type(context, call)
    return (
        norm is not None
        and norm < math.inf
        and not any(
            ignores(plan) or not plan.constructor.is_none("cpu_offload")
            for plan in context.plans_of(sites)
        )
    )


def norm_type(context: Context, call: ast.Call) -> float | None:
    """The order of the norm that a clipping asks for; None where it is unknown."""
    given = given_for(call, "norm_type", 2 if is_torch(context, call) else 1)
    if given is None:
        starred = any(isinstance(argument, ast.Starred) for argument in call.args)
        return None if starred or any(k.arg is None for k in call.keywords) else 2.0
    if context.project.dotted(given, context.module) & _INFINITIES:
        return math.inf
    if isinstance(given, ast.Call) and ast.unparse(given.func) == "float" and given.args:
        given = given.args[0]
    try:
        return float(ast.literal_eval(given))
    except (TypeError, ValueError):
        return None


def ignores(plan: Plan) -> bool:
    """Whether a model may have parameters that stay plain tensors."""
    return not all(plan.constructor.is_none(n) for n in ("ignored_modules", "ignored_states"))


def plain_will_do(context: Context, attribute: ast.Attribute, call: ast.Call) -> bool:
    """Whether torch's function does the same: result unused, finite norm, nothing ignored or offloaded."""
    if not isinstance(context.module.parents[call], ast.Expr):
        return False
    if any(keyword.arg not in {"max_norm", "norm_type"} for keyword in call.keywords):
        return False
    sites = context.sites(attribute.value)
    if not context.only_fsdp1(attribute.value):
        return False
    calls = [site.call for site in sites if site.call is not None]
    plans = context.plans_of(sites)
    # Known by an annotation only, or by `**options`: nothing is known of the arguments.
    if not calls or len(plans) < len(calls) or any(plan.constructor.splat for plan in plans):
        return False
    return torch_can(context, call, sites)


def edit_of(context: Context, call: ast.Call, name: str) -> Edit:
    """`model.clip_grad_norm_(...)` becomes a call of a function, with the model's parameters in front."""

    def apply(updated: cst.CSTNode) -> Edited:
        assert isinstance(updated, cst.Call)
        assert isinstance(updated.func, cst.Attribute)
        parameters = cst.Call(cst.Attribute(updated.func.value, cst.Name("parameters")))
        arguments = list(updated.args)
        comma: cst.Comma | cst.MaybeSentinel = (
            cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
            if arguments
            else cst.MaybeSentinel.DEFAULT
        )
        return Edited(
            updated.with_changes(
                func=cst.parse_expression(name), args=[cst.Arg(parameters, comma=comma), *arguments]
            )
        )

    return Edit(context.syntax.find(call, cst.Call), apply)
