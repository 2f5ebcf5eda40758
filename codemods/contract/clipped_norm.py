"""The norm that `torch.nn.utils.clip_grad_norm_` returns for a sharded model: a DTensor."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.contract.facts import breach, holds
from fsdp_migrate.codemods.expressions import given_for
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.index.module import Assigned
from fsdp_migrate.index.order import reaches

_HEADER = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
"""
_CLIPPED = "norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"

RULE = Rule(
    "FSDP706",
    "norm-is-dtensor",
    "the clipped norm is a DTensor: full_tensor() before it is formatted, reduced or asked for",
    """`torch.nn.utils.clip_grad_norm_` computes the global norm and returns it as a DTensor. A format fails (`TypeError:
unsupported format string passed to DTensor.__format__`), and so do `round` (TypeError), `dist.all_reduce`
(NotImplementedError: no sharding strategy), `.numpy()`, `.tolist()` and `torch.tensor([norm])` (RuntimeError). `.item()`
and `float()` are right for a finite `norm_type`, whose result is replicated; for `inf` it is `Partial(max)`, and both give
the maximum of this rank's shards without an error. `norm.full_tensor()` is the plain tensor in all cases; it communicates,
so all ranks call it.""",
    (
        Example(
            "formatted",
            _HEADER + _CLIPPED + 'print(f"{norm:.3f}")\n',
            message="full_tensor()",
        ),
        Example(
            "reduced over the ranks",
            _HEADER + _CLIPPED + "dist.all_reduce(norm)\n",
            message="all_reduce",
        ),
        Example(
            "the largest gradient",
            _HEADER
            + 'norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=float("inf"))\n'
            "print(norm.item())\n",
            message="of this rank",
        ),
        Example(
            "an L2 norm as a number, and full tensors",
            _HEADER
            + _CLIPPED
            + 'print(norm.item(), float(norm))\nnorm = norm.full_tensor()\nprint(f"{norm:.3f}")\n',
            quiet=True,
        ),
        Example(
            "a plain model's norm",
            _HEADER.replace("fully_shard(model)", "fully_shard(teacher)").replace(
                "model.", "teacher."
            )
            + _CLIPPED
            + 'print(f"{norm:.3f}")\n',
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_CLIPPING = frozenset(
    f"torch.nn.utils.{path}" for path in ("clip_grad_norm_", "clip_grad.clip_grad_norm_")
)
_REDUCING = frozenset(
    f"torch.distributed.{name}" for name in ("all_reduce", "reduce", "broadcast", "all_gather")
)
_FAILING = frozenset({"numpy", "tolist"})
_BY_RANK = "is the maximum of this rank's shards for an infinite norm: norm.full_tensor() first"


def find(context: Context) -> Iterator[Draft]:
    """What is done with the results of clipping sharded models."""
    for call in context.module.calls:
        if not context.project.dotted(call.func, context.module) & _CLIPPING:
            continue
        parameters = given_for(call, "parameters", 0)
        if parameters is None or not _of_sharded(context, parameters):
            continue
        infinite = _is_infinite(given_for(call, "norm_type", 2))
        for norm in _norms(context, call):
            found = _misuse(context, norm, infinite)
            if found is not None:
                yield breach(RULE, context, *found)


def _of_sharded(context: Context, parameters: ast.expr) -> bool:
    return (
        isinstance(parameters, ast.Call)
        and isinstance(parameters.func, ast.Attribute)
        and parameters.func.attr == "parameters"
        and holds(context, parameters.func.value)
    )


def _is_infinite(norm_type: ast.expr | None) -> bool:
    if norm_type is None:
        return False
    text = ast.unparse(norm_type).replace('"', "'")
    return text in {"float('inf')", "math.inf", "torch.inf", "np.inf", "numpy.inf", "'inf'", "inf"}


def _norms(context: Context, call: ast.Call) -> Iterator[ast.expr]:
    """Where the norm is read: the call itself, or the name that it is given."""
    module = context.module
    parent = module.parents[call]
    if not (
        isinstance(parent, ast.Assign)
        and len(parent.targets) == 1
        and isinstance(target := parent.targets[0], ast.Name)
    ):
        yield call
        return
    scope = module.scope_of(target)
    for binding in scope.bindings.get(target.id, ()):
        if isinstance(binding, Assigned) and binding.target is not target:
            text = ast.unparse(binding.value)
            if "full_tensor" in text or "to_local" in text:
                if module.parents[module.statement(binding.target)] is not module.parents[parent]:
                    return  # only in some runs: which, is not in sight
    for load in module.loads.get(target.id, ()):
        if module.scope_of(load) is scope and reaches(module, scope, target.id, parent, load):
            yield load


def _misuse(context: Context, norm: ast.expr, infinite: bool) -> tuple[ast.AST, str] | None:
    """What a use of the norm does wrong, and where."""
    module = context.module
    parent = module.parents[norm]
    if isinstance(parent, ast.FormattedValue) and parent.format_spec is not None:
        return norm, "a DTensor takes no format: norm.full_tensor() first"
    if isinstance(parent, ast.Attribute):
        call = module.parents[parent]
        if not (isinstance(call, ast.Call) and call.func is parent):
            return None
        if parent.attr == "item" and infinite:
            return call, f".item() {_BY_RANK}"
        if parent.attr in _FAILING:
            return call, f".{parent.attr}() fails on a DTensor: norm.full_tensor() first"
        return None
    if isinstance(parent, ast.List | ast.Tuple):
        call = module.parents[parent]
        if isinstance(call, ast.Call) and parent in call.args[:1]:
            if "torch.tensor" in context.project.dotted(call.func, module):
                return call, "torch.tensor of a DTensor fails: norm.full_tensor() first"
        return None
    if isinstance(parent, ast.Call) and norm in parent.args:
        return _given_to(context, parent, norm, infinite)
    return None


def _given_to(
    context: Context, call: ast.Call, norm: ast.expr, infinite: bool
) -> tuple[ast.AST, str] | None:
    function = call.func
    if isinstance(function, ast.Name):
        if function.id == "round":
            return call, "round() fails on a DTensor: norm.full_tensor() first"
        if function.id == "float" and infinite:
            return call, f"float() {_BY_RANK}"
    paths = context.project.dotted(function, context.module) & _REDUCING
    if paths:
        name = next(iter(paths)).rpartition(".")[2]
        return (
            call,
            f"{name} fails on a DTensor, and the norm is global already: norm.full_tensor()",
        )
    if (
        isinstance(function, ast.Attribute)
        and function.attr == "format"
        and isinstance(function.value, ast.Constant)
        and ":" in str(function.value.value)
        and call.args == [norm]
    ):
        return norm, "a DTensor takes no format: norm.full_tensor() first"
    return None
