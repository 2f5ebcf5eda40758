"""What a program computes from parameters and gradients themselves: counts, shapes, norms.

Between forwards FSDP1's parameters were this rank's shards, plain tensors of one dimension. FSDP2's are DTensors: their shape
and count are the whole parameter's, and a norm or a sum of them is of the whole, or of the shard, as one reads it. What must
stay the shard's goes through `local_shard` of the runtime.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import RUNTIME, Context
from fsdp_migrate.codemods.expressions import shortened
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.codemods.surroundings.measured import is_measured, is_reduced
from fsdp_migrate.codemods.surroundings.parameters import Held, Parameters
from fsdp_migrate.codemods.surroundings.through import through
from fsdp_migrate.findings import Action
from fsdp_migrate.index.module import Module

RULE = Rule(
    "FSDP507",
    "local-tensor-ops",
    "counts, shapes and norms of parameters are the whole parameter's; local_shard gives the rank's",
    """After wrapping, FSDP1's `model.parameters()` gave this rank's shards: plain tensors of one dimension (NO_SHARD kept
the shape), empty on some ranks. FSDP2 gives DTensors of the whole shape. Measured with torch 2.13 on two ranks:

- `p.numel()` counts the whole parameter. A sum over ranks would count everything once for each: there, `local_shard(p)`
  takes its place. Where nothing is reduced, the number that is printed is right now and was the rank's share before.
- `p.ndim`, `p.dim()`, `p.shape`: under FSDP1 `p.ndim >= 2` was false for every shard, so that a group without weight decay
  got all of them. Under FSDP2 the same line does what it says: **training changes**. To keep the old groups, decide by
  something else.
- `p.grad.norm()`, `sum`, `mean`: a DTensor. `.item()` of it is the shard's norm, while a sum or a stack of several is the
  whole norm, and `dist.all_reduce` of that fails, or counts twice. `local_shard(p.grad)` is the plain shard that FSDP1 had, so
  that a norm written by hand, with its own all-reduce, gives what it gave: `clip_grad_norm_(model, max_norm)` is shorter.
- `.numpy()`, `copy_` from a plain tensor, `parameters_to_vector`: fail. `full_tensor()` is the whole parameter,
  `local_shard` the rank's.

`local_shard` gives plain tensors back as they are. Parameters of other models, those taken before wrapping, and those
inside `summon_full_params` are the same in both versions. So are in-place operations with numbers (`p.grad.mul_(0.5)`), and
those between parameters and gradients (`ema.lerp_(p, 0.1)`).""",
    (
        Example(
            "a norm written by hand",
            """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def norm_of(model):
    total = torch.tensor(0.0)
    for name, param in model.named_parameters():
        if param.grad is not None:
            total += param.grad.norm(dtype=torch.float32) ** 2
    dist.all_reduce(total)
    return total.sqrt()


model = FSDP(model)
norm = norm_of(model)
""",
            """\
import torch
import torch.distributed as dist
from fsdp_migrate.runtime import local_shard
from torch.distributed.fsdp import fully_shard


def norm_of(model):
    total = torch.tensor(0.0)
    for name, param in model.named_parameters():
        if param.grad is not None:
            total += local_shard(param.grad).norm(dtype=torch.float32) ** 2
    dist.all_reduce(total)
    return total.sqrt()


fully_shard(model)
norm = norm_of(model)
""",
            message="this rank's shard",
        ),
        Example(
            "a list of gradients, and torch's functions",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
grads = [p.grad for p in model.parameters() if p.grad is not None]
norms = [torch.norm(g.detach(), 2.0) for g in grads]
""",
            """\
import torch
from fsdp_migrate.runtime import local_shard
from torch.distributed.fsdp import fully_shard

fully_shard(model)
grads = [p.grad for p in model.parameters() if p.grad is not None]
norms = [torch.norm(local_shard(g).detach(), 2.0) for g in grads]
""",
            message="this rank's shard",
        ),
        Example(
            "a count that is summed over ranks",
            """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
count = torch.tensor(sum(p.numel() for p in model.parameters()))
dist.all_reduce(count)
""",
            """\
import torch
import torch.distributed as dist
from fsdp_migrate.runtime import local_shard
from torch.distributed.fsdp import fully_shard

fully_shard(model)
count = torch.tensor(sum(local_shard(p).numel() for p in model.parameters()))
dist.all_reduce(count)
""",
            message="this rank's share",
        ),
        Example(
            "a count that is printed",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
print(sum(p.numel() for p in model.parameters() if p.requires_grad))
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
print(sum(p.numel() for p in model.parameters() if p.requires_grad))
""",
            message="whole parameters",
        ),
        Example(
            "weight decay by shape",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, use_orig_params=True)
decay = [p for p in model.parameters() if p.ndim >= 2]
rest = [p for p in model.parameters() if p.ndim < 2]
optimizer = torch.optim.AdamW([{"params": decay}, {"params": rest, "weight_decay": 0.0}])
""",
            """\
import torch
from torch.distributed.fsdp import fully_shard

fully_shard(model)
# fsdp-migrate: FSDP507 by hand: the whole parameter's shape decides now, FSDP1's shards had one dimension: training changes
decay = [p for p in model.parameters() if p.ndim >= 2]
# fsdp-migrate: FSDP507 by hand: the whole parameter's shape decides now, FSDP1's shards had one dimension: training changes
rest = [p for p in model.parameters() if p.ndim < 2]
optimizer = torch.optim.AdamW([{"params": decay}, {"params": rest, "weight_decay": 0.0}])
""",
            message="training changes",
        ),
        Example(
            "a plain tensor copied into a parameter",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
for name, p in model.named_parameters():
    p.data.copy_(saved[name])
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
for name, p in model.named_parameters():
    # fsdp-migrate: FSDP507 by hand: fails if a plain tensor is copied: local_shard(p) is this rank's part, and takes one
    p.data.copy_(saved[name])
""",
            message="fails if a plain tensor is copied",
        ),
        Example(
            "counted and grouped before the model is sharded",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

print(sum(p.numel() for p in model.parameters()))
large = [name for name, p in model.named_parameters() if p.ndim >= 2]
model = FSDP(model)
print(large)
""",
            """\
from torch.distributed.fsdp import fully_shard

print(sum(p.numel() for p in model.parameters()))
large = [name for name, p in model.named_parameters() if p.ndim >= 2]
fully_shard(model)
print(large)
""",
            quiet=True,
        ),
        Example(
            "another model's parameters",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
print(sum(p.numel() for p in teacher.parameters()))
norm = sum(p.grad.norm() for p in critic.parameters())
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
print(sum(p.numel() for p in teacher.parameters()))
norm = sum(p.grad.norm() for p in critic.parameters())
""",
            quiet=True,
        ),
        Example(
            "one vector of all gradients",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
norm = torch.cat([p.grad.detach().view(-1) for p in model.parameters()]).norm()
""",
            """\
import torch
from fsdp_migrate.runtime import local_shard
from torch.distributed.fsdp import fully_shard

fully_shard(model)
norm = torch.cat(
    [local_shard(p.grad).detach().view(-1) for p in model.parameters()]
).norm()
""",
            message="this rank's shard",
        ),
        Example(
            "whole parameters",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
with FSDP.summon_full_params(model, writeback=False):
    print(sum(p.numel() for p in model.parameters()))
    arrays = [p.detach().cpu().numpy() for p in model.parameters()]
""",
            """\
from fsdp_migrate.runtime import summon_full_params
from torch.distributed.fsdp import fully_shard

fully_shard(model)
with summon_full_params(model, writeback=False):
    print(sum(p.numel() for p in model.parameters()))
    arrays = [p.detach().cpu().numpy() for p in model.parameters()]
""",
            quiet=True,
        ),
        Example(
            "arithmetic that is the same",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model, ema = FSDP(model), FSDP(ema)
for p, average in zip(model.parameters(), ema.parameters()):
    p.grad.mul_(0.5)
    average.data.mul_(0.9).add_(p.data, alpha=0.1)
""",
            """\
from torch.distributed.fsdp import fully_shard

model, ema = fully_shard(model), fully_shard(ema)
for p, average in zip(model.parameters(), ema.parameters()):
    p.grad.mul_(0.5)
    average.data.mul_(0.9).add_(p.data, alpha=0.1)
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_COUNTS = frozenset({"numel", "nelement"})
_SHAPES = frozenset({"ndim", "dim", "shape", "size"})
_FAILING = frozenset({"numpy", "tolist"})
_VECTORS = "torch.nn.utils.parameters_to_vector"

_LOCAL = "local_shard gives this rank's shard, as FSDP1's parameters and gradients were"
_ONCE = "a DTensor counts the whole parameter, on every rank: local_shard keeps this rank's share"
_WHOLE = "counts whole parameters now; FSDP1 counted this rank's share"
_SHAPE = "is of the whole parameter now; FSDP1's shards had one dimension (but with NO_SHARD)"
_DECIDED = (
    "the whole parameter's shape decides now, FSDP1's shards had one dimension: training changes"
)
_COPIED = "fails if a plain tensor is copied: local_shard(p) is this rank's part, and takes one"
_FAILS = "fails on a DTensor: local_shard(p) is this rank's part, p.full_tensor() the whole"


def find(context: Context, parameters: Parameters) -> Iterator[Draft]:
    """Values that are computed from an FSDP1 model's parameters and gradients."""
    for node, held in parameters.of(context):
        draft = _of(context, node, held, parameters)
        if draft is not None:
            yield draft
    for call, held in parameters.several.items():
        vector = context.module.parents.get(call) if held.module is context.module else None
        if isinstance(vector, ast.Call) and context.project.dotted(vector.func, context.module) == {
            _VECTORS
        }:
            construct = shortened(context.source(vector))
            yield Draft(RULE, vector, Action.MANUAL, _FAILS, construct, held.sites, mark=True)


def _of(context: Context, node: ast.expr, held: Held, parameters: Parameters) -> Draft | None:
    """What becomes of one use of a parameter or a gradient."""
    module = context.module
    around = module.parents[_copied(module, node, parameters)]
    name = around.attr if isinstance(around, ast.Attribute) else ""
    construct = shortened(context.source(around)) if name else ""
    called = isinstance(module.parents[around], ast.Call)
    if name in _COUNTS:
        if is_reduced(context, node) or _asks_for_none(module, module.parents[around]):
            return _localized(context, node, held, _ONCE)
        return Draft(RULE, node, Action.MANUAL, _WHOLE, construct, held.sites)
    if name in _SHAPES:
        decides = any(isinstance(parent, ast.Compare) for parent in _expressions(module, node))
        message = _DECIDED if decides else f"`{name}` {_SHAPE}"
        return Draft(RULE, node, Action.MANUAL, message, construct, held.sites, mark=decides)
    if name in _FAILING and called:
        return Draft(RULE, node, Action.MANUAL, _FAILS, construct, held.sites, mark=True)
    if name == "copy_" and called:
        call = module.parents[around]
        assert isinstance(call, ast.Call)
        if call.args and _is_plain(call.args[0], parameters):
            return Draft(RULE, node, Action.MANUAL, _COPIED, construct, held.sites, mark=True)
    return _localized(context, node, held, _LOCAL) if is_measured(context, node) else None


def _copied(module: Module, node: ast.expr, parameters: Parameters) -> ast.expr:
    """`p.detach().cpu()` of `p`: as much of the shard."""
    around = module.parents[node]
    call = module.parents.get(around)
    while isinstance(call, ast.Call) and call in parameters.held and call.func is around:
        node, around = call, module.parents[call]
        call = module.parents.get(around)
    return node


def _localized(context: Context, node: ast.expr, held: Held, message: str) -> Draft:
    """The parameter goes through `local_shard`."""
    name, needs = context.name(RUNTIME, "local_shard", use=node)
    construct = shortened(context.source(context.module.parents[node]))
    edit = through(context, node, name)
    if edit is None:
        return Draft(RULE, node, Action.MANUAL, message, construct, held.sites, mark=True)
    return Draft(
        RULE, node, Action.RUNTIME, message, construct, held.sites, edits=(edit,), needs=needs
    )


def _expressions(module: Module, node: ast.AST) -> Iterator[ast.AST]:
    """The expressions around a node, up to its statement."""
    parents = module.ancestors(node)
    for parent in parents:
        if isinstance(parent, ast.stmt):
            return
        yield parent


def _asks_for_none(module: Module, count: ast.AST) -> bool:
    """`p.numel() == 0`: whether this rank has a part of the parameter."""
    around = module.parents[count]
    sides = [around.left, *around.comparators] if isinstance(around, ast.Compare) else []
    return any(isinstance(side, ast.Constant) and side.value == 0 for side in sides)


def _is_plain(value: ast.expr, parameters: Parameters) -> bool:
    """Whether a value has nothing to do with parameters of sharded models, and is no number."""
    if isinstance(value, ast.Constant):
        return False
    return not any(
        isinstance(inner, ast.expr) and inner in parameters.held for inner in ast.walk(value)
    )
