"""What `fully_shard` is given besides the module: its own options, not FSDP1's."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.contract.facts import breach, given, shardings
from fsdp_migrate.codemods.expressions import shortened
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.index.module import Assigned, Module
from fsdp_migrate.index.names import fsdp1_member, fsdp1_name
from fsdp_migrate.index.order import after, reaches
from fsdp_migrate.index.values import origin

RULE = Rule(
    "FSDP709",
    "fsdp1-argument",
    "fully_shard takes its own options, not FSDP1's",
    """`fully_shard` looks at what it is given only when it uses it:

- `mp_policy=MixedPrecision(...)`, FSDP1's, is taken, and the first forward fails (it lacks `output_dtype`, and casts no
  inputs unless told to); `MixedPrecisionPolicy` casts.
- `mp_policy=None` fails with `AttributeError: 'NoneType' object has no attribute 'param_dtype'`; leave the argument out.
- `offload_policy=CPUOffload(offload_params=True)` runs without an error and offloads nothing: FSDP2 asks for
  `CPUOffloadPolicy`. `offload_policy=None` works.
- `reshard_after_forward=ShardingStrategy.FULL_SHARD` is a ValueError, an argument of FSDP1's (`auto_wrap_policy`,
  `sharding_strategy`, `device_id`, ...) and a second positional argument a TypeError.

All of it was seen on two ranks.""",
    (
        Example(
            "objects of FSDP1",
            """\
import torch
from torch.distributed.fsdp import CPUOffload, MixedPrecision, fully_shard

policy = MixedPrecision(param_dtype=torch.bfloat16)
for layer in model.layers:
    fully_shard(layer, mp_policy=policy)
fully_shard(model, mp_policy=policy, offload_policy=CPUOffload(offload_params=True))
""",
            message="offloads nothing, without an error: CPUOffloadPolicy()",
        ),
        Example(
            "no mixed precision",
            """\
from torch.distributed.fsdp import fully_shard

kwargs = {"mp_policy": None}
for layer in model.layers:
    fully_shard(layer, **kwargs)
fully_shard(model, **kwargs)
""",
            message="mp_policy=None",
        ),
        Example(
            "mixed precision in some runs",
            """\
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def shard(model, bf16):
    policy = None
    if bf16:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
""",
            message="mp_policy=None",
        ),
        Example(
            "a None that is replaced, or asked for",
            """\
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def shard(model, policy):
    other = None
    if other is None:
        other = MixedPrecisionPolicy()
    for layer in model.layers:
        fully_shard(layer, mp_policy=other)
    if policy is not None:
        fully_shard(model, mp_policy=policy)
    else:
        fully_shard(model)
""",
            quiet=True,
        ),
        Example(
            "arguments of FSDP1",
            """\
from torch.distributed.fsdp import ShardingStrategy, fully_shard

for layer in model.layers:
    fully_shard(layer)
fully_shard(model, sharding_strategy=ShardingStrategy.FULL_SHARD, device_id=device)
""",
            message="sharding_strategy",
        ),
        Example(
            "FSDP2's own",
            """\
import torch
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

kwargs = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)}
if offload:
    kwargs["offload_policy"] = CPUOffloadPolicy()
for layer in model.layers:
    fully_shard(layer, **kwargs, offload_policy=None)
fully_shard(model, mesh=mesh, **kwargs)
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_ARGUMENTS = frozenset(
    {
        "module",
        "mesh",
        "reshard_after_forward",
        "shard_placement_fn",
        "mp_policy",
        "offload_policy",
        "ignored_params",
        "dp_mesh_dims",
    }
)
_FSDP1 = {
    "process_group": "mesh",
    "device_mesh": "mesh",
    "sharding_strategy": "reshard_after_forward and mesh",
    "strategy": "reshard_after_forward and mesh",
    "cpu_offload": "offload_policy",
    "auto_wrap_policy": "a call of fully_shard for each unit",
    "policy": "a call of fully_shard for each unit",
    "backward_prefetch": "set_modules_to_backward_prefetch",
    "forward_prefetch": "set_modules_to_forward_prefetch",
    "mixed_precision": "mp_policy",
    "ignored_modules": "ignored_params",
    "ignored_states": "ignored_params",
    "param_init_fn": "to_empty and an initialisation after sharding",
    "device_id": "torch.cuda.set_device",
    "sync_module_states": "a broadcast before sharding",
    "limit_all_gathers": "nothing",
    "use_orig_params": "nothing",
}


def find(context: Context) -> Iterator[Draft]:
    """Arguments of `fully_shard`, each once: a dictionary may be given to several calls."""
    seen: set[ast.AST] = set()
    for place in shardings(context):
        for node, message, construct in _found(context, place.call):
            if node not in seen:
                seen.add(node)
                yield breach(RULE, context, node, message, construct)


def _found(context: Context, call: ast.Call) -> Iterator[tuple[ast.expr, str, str | None]]:
    if len(call.args) > 1 and not any(isinstance(a, ast.Starred) for a in call.args):
        message = "fully_shard takes the module by position and everything else by name"
        yield call.args[1], message, None
    for name, value in given(context, call):
        wrong = _wrong(context, name, value)
        if wrong is not None:
            yield value, wrong, shortened(f"{name}={context.source(value)}")


def _wrong(context: Context, name: str, value: ast.expr) -> str | None:
    """What is wrong with an argument, and what to give instead."""
    if name not in _ARGUMENTS:
        if name in _FSDP1:
            return f"{name} is FSDP1's, and fully_shard a TypeError for it: {_FSDP1[name]}"
        return None
    if name == "mp_policy" and _may_be_none(context, value):
        return "mp_policy=None is an AttributeError: leave it out, or MixedPrecisionPolicy()"
    made = origin(context.project, value, context.module)
    if made is None or made.node is None:
        return None
    if name == "mp_policy":
        if _makes(context, made.node, made.module, "MixedPrecision"):
            return "FSDP1's MixedPrecision fails in the first forward: MixedPrecisionPolicy(...)"
    elif name == "offload_policy" and _makes(context, made.node, made.module, "CPUOffload"):
        return "FSDP1's CPUOffload offloads nothing, without an error: CPUOffloadPolicy()"
    elif name == "reshard_after_forward":
        members = (fsdp1_member(p) for p in context.project.dotted(made.node, made.module))
        if any(member and member[0] == "ShardingStrategy" for member in members):
            return "takes True, False, None or a number of ranks, not a ShardingStrategy"
    return None


def _may_be_none(context: Context, value: ast.expr) -> bool:
    """`None`, or a name that a statement above has set to None, and that no condition around asks for."""
    if not isinstance(value, ast.Name):
        return isinstance(value, ast.Constant) and value.value is None
    module = context.module
    scope = module.scope_of(value)
    for parent in module.ancestors(value):
        test = getattr(parent, "test", None)
        if test is not None and value.id in ast.unparse(test):
            return False
    return any(
        isinstance(binding, Assigned)
        and not binding.path
        and isinstance(binding.value, ast.Constant)
        and binding.value.value is None
        and reaches(module, scope, value.id, module.statement(binding.target), value)
        and not _is_replaced(module, value, module.statement(binding.target))
        for binding in scope.bindings.get(value.id, ())
    )


def _is_replaced(module: Module, value: ast.Name, statement: ast.stmt) -> bool:
    """Whether a condition between may have replaced a None in every run: `if policy is None:`, or both of two branches."""
    for node in ast.walk(module.enclosing_function(value) or module.tree):
        if isinstance(node, ast.If) and after(node, statement) and after(value, node):
            asks = value.id in ast.unparse(node.test)
            if (asks or node.orelse) and value.id in {
                n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n is not value
            }:
                return True
    return False


def _makes(context: Context, node: ast.expr, module: Module, name: str) -> bool:
    """Whether an expression is a call of one of FSDP1's options, torch's or the runtime's."""
    if not isinstance(node, ast.Call):
        return False
    paths = context.project.dotted(node.func, module)
    return any(fsdp1_name(p) == name or p == f"fsdp_migrate.runtime.{name}" for p in paths)
