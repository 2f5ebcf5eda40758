"""Constructors and each of their arguments: what a file shows, what the runtime reads, and what is said of every one."""

import ast
from textwrap import indent

import pytest

from fsdp_migrate.codemods.constructor.construction import SIGNATURE
from fsdp_migrate.codemods.constructor.rows import ROWS
from fsdp_migrate.findings import Severity

from .programs import table
from .test_examples import analyse

# ruff: noqa: E501
HEAD = """\
import torch
import torch.nn as nn
from functools import partial
from model import Block, Net
from torch.distributed.fsdp import (
    BackwardPrefetch, CPUOffload, FullyShardedDataParallel as FSDP, MixedPrecision, ShardingStrategy
)
from torch.distributed.fsdp.wrap import (
    ModuleWrapPolicy, lambda_auto_wrap_policy, transformer_auto_wrap_policy
)
from torch.distributed.device_mesh import init_device_mesh


class Seen(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Sequential(nn.Linear(8, 8))

    def forward(self, x):
        return self.a(x)


model = Net()
"""
HYBRID = "sharding_strategy=ShardingStrategy.HYBRID_SHARD"
BF16 = "mixed_precision=MixedPrecision(param_dtype=torch.bfloat16)"
LAMBDA = "partial(lambda_auto_wrap_policy, lambda_fn=lambda m: {})"
BY_BLOCK = "auto_wrap_policy=ModuleWrapPolicy({Block})"

# In torch's words: the call, and what takes its place under `with like_fsdp1(model):`, or without it where that is last.
SHOWN = {
    "nothing but None": (
        "FSDP(model, None, None, None, None, ignored_states=None)",
        "fully_shard(model)",
    ),
    "what has no effect": (
        "FSDP(model, use_orig_params=x.y, limit_all_gathers=False, forward_prefetch=False, ignored_modules=None)",
        "fully_shard(model)",
    ),
    "prefetching in backward": (
        "FSDP(model, backward_prefetch=BackwardPrefetch.BACKWARD_POST)",
        "fully_shard(model)",
    ),
    "zero 2": (
        "FSDP(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)",
        "fully_shard(model, reshard_after_forward=False)",
    ),
    "mixed precision": (
        f"FSDP(model, {BF16})",
        "fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16))",
    ),
    "classes": (
        f"FSDP(model, {BY_BLOCK})",
        "for module in reversed(list(model.modules())):\n    if isinstance(module, Block):\n        fully_shard(module)\n"
        "fully_shard(model)",
    ),
    "classes of which nothing is known": (
        "FSDP(model, auto_wrap_policy=ModuleWrapPolicy(set([x])))",
        "for module in reversed(list(model.modules())):\n    if isinstance(module, x):\n        fully_shard(module)\n"
        "fully_shard(model)",
    ),
}
# Programs behind the head, and what they become; without the comment at the line with `like_fsdp1`.
WRITTEN = table(
    """\
=== several options of every unit
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, cpu_offload=CPUOffload(True))
---
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            fully_shard(
                module, reshard_after_forward=False, offload_policy=CPUOffloadPolicy()
            )
    fully_shard(model, offload_policy=CPUOffloadPolicy())
=== mixed precision of units
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))
---
mp_policy = MixedPrecisionPolicy(
    param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16
)
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            # As under FSDP1, only the root casts its inputs
            fully_shard(module, mp_policy=replace(mp_policy, cast_forward_inputs=False))
    fully_shard(model, mp_policy=mp_policy)
=== a broadcast from a device
model = FSDP(model, sync_module_states=True, device_id=torch.cuda.current_device())
---
# Every rank begins with rank 0's values
for tensor in [*model.parameters(), *model.buffers()]:
    value = tensor.detach().to(torch.cuda.current_device())
    torch.distributed.broadcast(value, src=0)
    tensor.detach().copy_(value)
with like_fsdp1(model):
    fully_shard(model)
=== buffers
model = FSDP(model, mixed_precision=MixedPrecision(buffer_dtype=torch.float16))
---
with like_fsdp1(model, buffer_dtype=torch.float16):
    fully_shard(model)
=== a name that something else reads
c = CPUOffload(True)
model = FSDP(model, cpu_offload=c)
print(c)
---
c = CPUOffload(True)
with like_fsdp1(model):
    fully_shard(model, offload_policy=CPUOffloadPolicy())
print(c)
=== names that the new code reads
low = torch.bfloat16
p = MixedPrecision(param_dtype=low)
model = FSDP(model, mixed_precision=p)
---
low = torch.bfloat16
p = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=low)
with like_fsdp1(model):
    fully_shard(model, mp_policy=p)
=== a class behind a name
Unit = Block
p = ModuleWrapPolicy({Unit})
model = FSDP(model, auto_wrap_policy=p)
---
Unit = Block
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if isinstance(module, Unit):
            fully_shard(module)
    fully_shard(model)
=== a policy of two calls
p = ModuleWrapPolicy({Block})
model = FSDP(model, auto_wrap_policy=p)
b = FSDP(model.b, auto_wrap_policy=p)
---
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            fully_shard(module)
    fully_shard(model)
with like_fsdp1(model.b):
    for module in reversed(list(model.b.modules())):
        if isinstance(module, Block):
            fully_shard(module)
    b = fully_shard(model.b)
=== a device that is set in another function
def main(d):
    FSDP(model, device_id=d)
def setup(d):
    torch.cuda.set_device(d)
---
def main(d):
    with like_fsdp1(model):
        fully_shard(model)
def setup(d):
    torch.cuda.set_device(d)
=== a mesh
model = FSDP(model, device_mesh=init_device_mesh('cuda', (8,)))
---
with like_fsdp1(model):
    fully_shard(model, mesh=init_device_mesh('cuda', (8,)))
=== hybrid without a mesh
model = FSDP(model, sharding_strategy=ShardingStrategy.HYBRID_SHARD, auto_wrap_policy=ModuleWrapPolicy({Block}))
---
per_node = torch.cuda.device_count()
mesh = init_device_mesh(
    "cuda",
    (torch.distributed.get_world_size() // per_node, per_node),
    mesh_dim_names=("replicate", "shard"),
)
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
=== a strategy by a condition
model = FSDP(model, sharding_strategy=ShardingStrategy.FULL_SHARD if a else ShardingStrategy.SHARD_GRAD_OP)
---
with like_fsdp1(model):
    fully_shard(model)
=== a condition
model = FSDP(model, auto_wrap_policy=partial(lambda_auto_wrap_policy, lambda_fn=lambda m: m in model.layers))
---
with like_fsdp1(model):
    for block in model.layers:
        fully_shard(block)
    fully_shard(model)
=== precision that casts no inputs
model = FSDP(model, mixed_precision=MixedPrecision(torch.float16, cast_root_forward_inputs=False))
---
with like_fsdp1(model):
    fully_shard(
        model,
        mp_policy=MixedPrecisionPolicy(
            param_dtype=torch.float16,
            reduce_dtype=torch.float16,
            cast_forward_inputs=False,
        ),
    )
=== replicas
model = FSDP(model, sharding_strategy=ShardingStrategy.NO_SHARD)
---
mesh = init_device_mesh(
    "cuda",
    (torch.distributed.get_world_size(), 1),
    mesh_dim_names=("replicate", "shard"),
)
with like_fsdp1(model):
    fully_shard(model, mesh=mesh)
=== gradients in low precision
model = FSDP(model, mixed_precision=MixedPrecision(keep_low_precision_grads=True))
---
with like_fsdp1(model):
    fully_shard(model)
=== policy that asks the model
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({type(model.a)}))
---
classes = (type(model.a),)
with like_fsdp1(model):
    for module in reversed(list(model.modules())[1:]):
        if isinstance(module, classes):
            fully_shard(module)
    fully_shard(model)
=== policy of a container
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({nn.ModuleList}))
---
with like_fsdp1(model):
    fully_shard(model)
=== policy of every module
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({nn.Module}))
---
with like_fsdp1(model):
    for module in reversed(list(model.modules())[1:]):
        if not isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            fully_shard(module)
    fully_shard(model)
=== a device that can be the CPU
model = FSDP(model, device_id=torch.device('cuda' if gpu else 'cpu'))
---
with like_fsdp1(model):
    fully_shard(model)
=== a device that nothing sets
model = FSDP(model, device_id=device)
---
torch.cuda.set_device(device)
with like_fsdp1(model):
    fully_shard(model)
=== broadcast by what a call gives
model = FSDP(model, sync_module_states=is_low())
---
# Every rank begins with rank 0's values
if is_low():
    for tensor in [*model.parameters(), *model.buffers()]:
        torch.distributed.broadcast(tensor.detach(), src=0)
with like_fsdp1(model):
    fully_shard(model)
=== prefetching off
model = FSDP(model, backward_prefetch=None)
---
with like_fsdp1(model):
    fully_shard(model)
=== prefetching in forward
model = FSDP(model, forward_prefetch=True)
---
with like_fsdp1(model):
    fully_shard(model)
=== ignored modules
model = FSDP(model, ignored_modules=[model.head])
---
ignored_params = {p for m in [model.head] for p in m.parameters()}
with like_fsdp1(model):
    fully_shard(model, ignored_params=ignored_params)
=== an argument that something changes
model = FSDP(model, use_orig_params=settings.pop('x'))
---
settings.pop('x')
with like_fsdp1(model):
    fully_shard(model)
=== offload changed on the way
c = CPUOffload()
c.offload_params = True
model = FSDP(model, cpu_offload=c)
---
c = CPUOffload()
c.offload_params = True
with like_fsdp1(model):
    fully_shard(
        model,
        offload_policy=(
            CPUOffloadPolicy() if c and c.offload_params else OffloadPolicy()
        ),
    )
=== policy changed on the way
p = ModuleWrapPolicy({Block})
p._module_classes.add(Net)
model = FSDP(model, auto_wrap_policy=p)
---
p = ModuleWrapPolicy({Block})
p._module_classes.add(Net)
with like_fsdp1(model):
    for module in reversed(list(model.modules())[1:]):
        if p(module=module, recurse=False, nonwrapped_numel=0):
            fully_shard(module)
    fully_shard(model)
=== a class that is another at the call
p = ModuleWrapPolicy({Block})
Block = Net
model = FSDP(model, auto_wrap_policy=p)
---
p = ModuleWrapPolicy({Block})
Block = Net
with like_fsdp1(model):
    for module in reversed(list(model.modules())[1:]):
        if p(module=module, recurse=False, nonwrapped_numel=0):
            fully_shard(module)
    fully_shard(model)
=== device set below
model = FSDP(model, device_id=d)
torch.cuda.set_device(d)
---
torch.cuda.set_device(d)
with like_fsdp1(model):
    fully_shard(model)
torch.cuda.set_device(d)
=== BatchNorm in the model
model.bn = nn.BatchNorm1d(8)
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))
---
model.bn = nn.BatchNorm1d(8)
mp_policy = MixedPrecisionPolicy(
    param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16
)
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            # As under FSDP1, in float32
            fully_shard(
                module,
                mp_policy=MixedPrecisionPolicy(
                    param_dtype=torch.float32, output_dtype=mp_policy.param_dtype
                ),
            )
        elif isinstance(module, Block):
            # As under FSDP1, only the root casts its inputs
            fully_shard(module, mp_policy=replace(mp_policy, cast_forward_inputs=False))
    fully_shard(model, mp_policy=mp_policy)
=== a model on the meta device
with torch.device('meta'):
    model = Net()
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}))
---
with torch.device('meta'):
    model = Net()
with like_fsdp1(model):
    for module, options in units(model, auto_wrap_policy=ModuleWrapPolicy({Block})):
        fully_shard(module, **options)
=== a strategy by a condition, with units
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), sharding_strategy=ShardingStrategy.FULL_SHARD if a else ShardingStrategy.SHARD_GRAD_OP)
---
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            fully_shard(module, reshard_after_forward=a)
    fully_shard(model)
=== a strategy by a table
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), sharding_strategy={'full': ShardingStrategy.FULL_SHARD, 'zero2': ShardingStrategy.SHARD_GRAD_OP, 'node': ShardingStrategy.HYBRID_SHARD}[kind])
---
mesh = None
if kind == 'node':
    per_node = torch.cuda.device_count()
    mesh = init_device_mesh(
        "cuda",
        (torch.distributed.get_world_size() // per_node, per_node),
        mesh_dim_names=("replicate", "shard"),
    )
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            fully_shard(module, reshard_after_forward=kind != 'zero2', mesh=mesh)
    fully_shard(model, mesh=mesh)
=== a strategy by its name
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), sharding_strategy=ShardingStrategy[kind])
---
reshard_after_forward = kind not in ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2")
mesh = None
if kind in ("NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"):
    shards = torch.cuda.device_count()
    if kind == "NO_SHARD":
        shards = 1
    mesh = init_device_mesh(
        "cuda",
        (torch.distributed.get_world_size() // shards, shards),
        mesh_dim_names=("replicate", "shard"),
    )
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            fully_shard(module, reshard_after_forward=reshard_after_forward, mesh=mesh)
    fully_shard(model, mesh=mesh)
=== a strategy of which nothing is known
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), sharding_strategy=config.strategy, device_mesh=mesh)
---
reshard_after_forward = config.strategy not in (
    ShardingStrategy.SHARD_GRAD_OP,
    ShardingStrategy._HYBRID_SHARD_ZERO2,
)
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            fully_shard(module, reshard_after_forward=reshard_after_forward, mesh=mesh)
    fully_shard(model, mesh=mesh)
=== a strategy that branches assign
if a:
    s = ShardingStrategy.SHARD_GRAD_OP
else:
    s = ShardingStrategy.FULL_SHARD
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), sharding_strategy=s)
---
if a:
    s = ShardingStrategy.SHARD_GRAD_OP
else:
    s = ShardingStrategy.FULL_SHARD
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            fully_shard(
                module, reshard_after_forward=s is not ShardingStrategy.SHARD_GRAD_OP
            )
    fully_shard(model)
=== replicas of a group
model = FSDP(model, process_group=group, sharding_strategy=ShardingStrategy.NO_SHARD if ddp else ShardingStrategy.FULL_SHARD)
---
mesh = DeviceMesh.from_group(group, "cuda")
if ddp:
    alone = torch.distributed.new_group(
        [torch.distributed.get_rank()], use_local_synchronization=True
    )
    ranks = torch.tensor(torch.distributed.get_process_group_ranks(group)).view(-1, 1)
    mesh = DeviceMesh.from_group(
        [group, alone], "cuda", mesh=ranks, mesh_dim_names=("replicate", "shard")
    )
with like_fsdp1(model):
    fully_shard(model, mesh=mesh)
=== a pair of groups
model = FSDP(model, process_group=(inner, outer), sharding_strategy=ShardingStrategy.HYBRID_SHARD, sync_module_states=True)
---
shard_group, replicate_group = (inner, outer)
rows = [None] * torch.distributed.get_world_size()
torch.distributed.all_gather_object(
    rows, tuple(torch.distributed.get_process_group_ranks(shard_group))
)
mesh = DeviceMesh.from_group(
    [replicate_group, shard_group],
    "cuda",
    mesh=torch.tensor(sorted(set(rows))),
    mesh_dim_names=("replicate", "shard"),
)
# Every rank begins with rank 0's values
for tensor in [*model.parameters(), *model.buffers()]:
    torch.distributed.broadcast(tensor.detach(), src=0)
with like_fsdp1(model):
    fully_shard(model, mesh=mesh)
=== a pair of groups under a condition
model = FSDP(model, process_group=groups, sharding_strategy={'node': ShardingStrategy.HYBRID_SHARD, 'all': ShardingStrategy.FULL_SHARD}[kind])
---
if kind == 'node':
    shard_group, replicate_group = groups
    rows = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(
        rows, tuple(torch.distributed.get_process_group_ranks(shard_group))
    )
    mesh = DeviceMesh.from_group(
        [replicate_group, shard_group],
        "cuda",
        mesh=torch.tensor(sorted(set(rows))),
        mesh_dim_names=("replicate", "shard"),
    )
else:
    mesh = DeviceMesh.from_group(groups, "cuda")
with like_fsdp1(model):
    fully_shard(model, mesh=mesh)
=== precisions that cast inputs, and do not
half = MixedPrecision(torch.bfloat16, cast_forward_inputs=True)
full = MixedPrecision(reduce_dtype=torch.float32)
p = half if low else full
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=p)
---
half = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.bfloat16, cast_forward_inputs=True)
full = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
p = half if low else full
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            fully_shard(module, mp_policy=p)
    fully_shard(model, mp_policy=replace(p, cast_forward_inputs=True))
=== a dtype of buffers by a name
low, cast = dtypes()
p = MixedPrecision(param_dtype=low, buffer_dtype=cast)
model = FSDP(model, mixed_precision=p)
---
low, cast = dtypes()
p = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=low)
with like_fsdp1(model, buffer_dtype=cast):
    fully_shard(model, mp_policy=p)
=== a group
model = FSDP(model, process_group=group)
---
with like_fsdp1(model):
    fully_shard(model, mesh=DeviceMesh.from_group(group, "cuda"))
=== precision or None
p = None
if half:
    p = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, buffer_dtype=torch.bfloat16)
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=p)
---
p = MixedPrecisionPolicy()
if half:
    p = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
with like_fsdp1(model, buffer_dtype=p.param_dtype):
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            # As under FSDP1, only the root casts its inputs
            fully_shard(module, mp_policy=replace(p, cast_forward_inputs=False))
    fully_shard(model, mp_policy=p)
=== precision that something else reads
p = MixedPrecision(param_dtype=torch.bfloat16)
model = FSDP(model, mixed_precision=p)
other(p)
---
p = MixedPrecision(param_dtype=torch.bfloat16)
with like_fsdp1(model):
    fully_shard(
        model,
        mp_policy=MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16
        ),
    )
other(p)
=== precision of which nothing is known
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=config.precision)
---
mp_policy = MixedPrecisionPolicy()
if config.precision is not None:
    mp_policy = MixedPrecisionPolicy(
        param_dtype=config.precision.param_dtype,
        reduce_dtype=config.precision.reduce_dtype or config.precision.param_dtype,
    )
with like_fsdp1(model, buffer_dtype=config.precision and config.precision.buffer_dtype):
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            # As under FSDP1, only the root casts its inputs
            fully_shard(module, mp_policy=replace(mp_policy, cast_forward_inputs=False))
    fully_shard(model, mp_policy=mp_policy)
=== a policy by a condition of the program's own
model = FSDP(model, auto_wrap_policy=partial(lambda_auto_wrap_policy, lambda_fn=lambda m: isinstance(m, Block) and m.big))
---
with like_fsdp1(model):
    for module in reversed(list(model.modules())[1:]):
        if isinstance(module, Block) and module.big:
            fully_shard(module)
    fully_shard(model)
=== one policy or another
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}) if a else None)
---
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if a and isinstance(module, Block):
            fully_shard(module)
    fully_shard(model)
=== a policy that a function gives
def policy():
    return ModuleWrapPolicy({Block})
model = FSDP(model, auto_wrap_policy=policy())
---
def policy():
    return lambda module: isinstance(module, Block)
auto_wrap_policy = policy()
with like_fsdp1(model):
    for module in reversed(list(model.modules())[1:]):
        if auto_wrap_policy(module):
            fully_shard(module)
    fully_shard(model)
=== an unpacked dictionary
options = {'cpu_offload': CPUOffload(offload), 'limit_all_gathers': True}
model = FSDP(model, **options)
---
with like_fsdp1(model):
    fully_shard(
        model, offload_policy=CPUOffloadPolicy() if offload else OffloadPolicy()
    )
=== an unpacked dictionary that grows
options = {}
if node:
    options['device_mesh'] = mesh
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), **options)
---
options = {}
if node:
    options['device_mesh'] = mesh
mesh_ = options.get("device_mesh")
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            fully_shard(module, mesh=mesh_)
    fully_shard(model, mesh=mesh_)
=== a broadcast behind a condition, over a group
model = FSDP(model, process_group=group, sync_module_states=sync)
---
# Every rank begins with rank 0's values
if sync:
    for tensor in [*model.parameters(), *model.buffers()]:
        torch.distributed.broadcast(tensor.detach(), group_src=0, group=group)
with like_fsdp1(model):
    fully_shard(model, mesh=DeviceMesh.from_group(group, "cuda"))
=== prefetching in forward, of units
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), forward_prefetch=True)
---
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            fully_shard(module)
    fully_shard(model)
fsdp_modules = [m for m in model.modules() if isinstance(m, FSDPModule)]
for unit, following in zip(fsdp_modules[1:], fsdp_modules[2:]):
    unit.set_modules_to_forward_prefetch([following])
=== ignored modules and units
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), ignored_modules=[model.head])
---
ignored_params = {p for m in [model.head] for p in m.parameters()}
ignored = {part for m in [model.head] for part in m.modules()}
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if module not in ignored and isinstance(module, Block):
            fully_shard(module, ignored_params=ignored_params)
    fully_shard(model, ignored_params=ignored_params)
=== ignored parameters
model = FSDP(model, ignored_states=list(model.head.parameters()))
---
ignored_params = set(list(model.head.parameters()))
with like_fsdp1(model):
    fully_shard(model, ignored_params=ignored_params)
"""
)
# What keeps its constructor on the bridge.
STAYS = {
    "super of a subclass": "class Own(FSDP):\n    def __init__(self, m):\n        super().__init__(m)\n",
    "an argument that FSDP1 does not have": "model = FSDP(model, mesh=mesh)\n",
    "a name with the wrapper": "model = FSDP(model)\nprint('_fsdp_wrapped_module' in name)\n",
    "a silenced call": "model = FSDP(model)  # fsdp-migrate: ignore[FSDP002]\n",
}


def behind(text: str) -> str:
    """A program without the head, formatted as Black would: what is compared is the code, not where lines break."""
    made = ast.unparse(ast.parse(text.partition("model = Net()\n")[2]))
    return made + "\n"


@pytest.mark.parametrize("form", ["auto", "torch"])
@pytest.mark.parametrize("name", SHOWN)
def test_a_value_that_the_file_shows(name: str, form: str) -> None:
    call, code = SHOWN[name]
    _, after = analyse(f"{HEAD}model = {call}\n", form)
    if form == "auto":
        code = "with like_fsdp1(model):\n" + indent(code, "    ")
    assert behind(after) == ast.unparse(ast.parse(code)) + "\n"


@pytest.mark.parametrize("name", WRITTEN)
def test_an_argument_by_its_expression(name: str) -> None:
    before, expected = WRITTEN[name]
    report, after = analyse(HEAD + before)
    lines = after.partition("model = Net()\n")[2].splitlines(keepends=True)
    assert "".join(line for line in lines if "# Keeps FSDP1's behaviour" not in line) == expected
    found = [each.action.value for each in report.findings if each.code == "FSDP002"]
    assert set(found) == ({"runtime"} if "units(" in after else {"rewrite"})


def test_what_torch_has_no_expression_for() -> None:
    report, after = analyse(
        f"{HEAD}model = FSDP(model, param_init_fn=init, limit_all_gathers=True)\n"
    )
    assert "in units(model, param_init_fn=init):" in after
    assert "param_init_fn" in next(f.message for f in report.findings if f.code == "FSDP002")
    text = f"{HEAD}model = FSDP(model, **options_from(elsewhere))\n"
    assert "in units(model, **options_from(elsewhere)):" in analyse(text)[1]
    report, after = analyse(text, "torch")
    assert after.endswith("model = FSDP(model, **options_from(elsewhere))\n")
    assert [f.action.value for f in report.findings if f.code == "FSDP002"] == ["manual"]


@pytest.mark.parametrize("name", STAYS)
def test_stays_on_the_bridge(name: str) -> None:
    report, after = analyse(HEAD + STAYS[name])
    assert after.endswith(STAYS[name])
    found = [each.action.value for each in report.findings if each.code == "FSDP002"]
    assert found == (["runtime"] if "silenced" not in name else [])


CODES = {
    "process_group": "FSDP106",
    "sharding_strategy": "FSDP105",
    "cpu_offload": "FSDP201",
    "auto_wrap_policy": "FSDP152",
    "backward_prefetch": "FSDP203",
    "mixed_precision": "FSDP213",
    "ignored_modules": "FSDP212",
    "param_init_fn": "FSDP210",
    "device_id": "FSDP207",
    "sync_module_states": "FSDP208",
    "forward_prefetch": "FSDP204",
    "limit_all_gathers": "FSDP205",
    "use_orig_params": "FSDP206",
    "ignored_states": "FSDP212",
    "device_mesh": "FSDP107",
}
VALUES = {name: f"config.{name}" for name in SIGNATURE[1:]}
SPELLED = {
    "by keyword": "FSDP(model, {keywords})",
    "by position": "FSDP(model, {values})",
    "in a dictionary": "options = dict({keywords})\nFSDP(model, **options)",
    "in a dictionary that grows": "options = {{}}\n{stored}\nFSDP(model, **options)",
    "in a partial": "partial(FSDP, {keywords})",
    "in enable_wrap": "enable_wrap(wrapper_cls=FSDP, {keywords})",
    "in a call of a subclass": "class Own(FSDP): ...\nOwn(model, {keywords})",
    "in a subclass": "class Own(FSDP):\n    def __init__(self, m):\n        super().__init__(m, {keywords})",
}


def test_every_argument_has_a_rule() -> None:
    assert VALUES.keys() == CODES.keys() == ROWS.keys()


@pytest.mark.parametrize("name", SPELLED)
def test_each_argument_has_a_finding(name: str) -> None:
    keywords = ", ".join(f"{key}={value}" for key, value in VALUES.items())
    values = ", ".join(VALUES.values())
    stored = "\n".join(f'options["{key}"] = {value}' for key, value in VALUES.items())
    text = SPELLED[name].format(keywords=keywords, values=values, stored=stored)
    report, _ = analyse(f"{HEAD}from torch.distributed.fsdp.wrap import enable_wrap\n{text}\n")
    found = [each for each in report.findings if each.construct.split("=")[0] in VALUES]
    assert sorted(each.code for each in found) == sorted(CODES.values())
    assert [each for each in found if each.action != "runtime"] == []


def test_a_cpu_is_not_made_current() -> None:
    call = "FSDP(model, device_id=torch.device('cpu'), sync_module_states=True)"
    _, after = analyse(f"{HEAD}model = {call}\n", "torch")
    assert "fully_shard(model" in after
    assert "set_device" not in after


def test_device_0_is_a_device() -> None:
    report, _ = analyse(f"{HEAD}model = FSDP(model, device_id=0, param_init_fn=f)\n")
    said = [each.message for each in report.findings if each.code == "FSDP207"]
    assert said == [
        "Still works: `fsdp_migrate.runtime` makes this the current device and moves the model to it."
    ]


def test_a_key_of_a_dictionary_is_said_once() -> None:
    text = "options = {'use_orig_params': True}\na = FSDP(model, **options)\nb = FSDP(model, **options)\n"
    report, _ = analyse(HEAD + text)
    assert [each.code for each in report.findings].count("FSDP206") == 1


def test_what_a_growing_dictionary_gives_is_read_from_it() -> None:
    grown = "options = {}\nif a:\n    options['backward_prefetch'] = b\noptions['use_orig_params'] = c\n"
    marked = "for p in model.parameters():\n    p.mine = True\n"
    report, text = analyse(f"{HEAD}{grown}{marked}model = FSDP(model, **options)\n")
    said = [each.construct for each in report.findings if each.code in ("FSDP203", "FSDP206")]
    orig = 'options.get("use_orig_params")'
    assert said == ['backward_prefetch=options.get("backward_prefetch")', f"use_orig_params={orig}"]
    assert f"parameter_attributes={orig}" in text


def test_what_fsdp2_does_not_have_is_for_a_person() -> None:
    given = "mixed_precision=MixedPrecision(keep_low_precision_grads=True)"
    report, _ = analyse(f"{HEAD}model = FSDP(model, {given})\n")
    assert [each.code for each in report.findings if each.action == "manual"] == ["FSDP216"]


@pytest.mark.parametrize("form", ["auto", "torch"])
def test_a_mesh_without_names_to_replicate_over_gets_some(form: str) -> None:
    mesh = 'mesh = init_device_mesh("cuda", SHAPE)\n'
    call = (
        "model = FSDP(model, device_mesh=mesh, sharding_strategy=ShardingStrategy.HYBRID_SHARD)\n"
    )
    (found,) = analyse(HEAD + mesh + call, form)[0].manual
    assert (found.code, found.severity) == ("FSDP107", Severity.RAISES)
    mesh = mesh.replace("SHAPE", "(2, 8)")
    named = mesh.replace("8))", '8), mesh_dim_names=("replicate", "shard"))')
    report, after = analyse(HEAD + mesh + call, form)
    assert report.manual == []
    assert named in after
    assert analyse(HEAD + named + call, form)[0].manual == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", True),
        (", cast_forward_inputs=True", False),
        (", cast_root_forward_inputs=False", False),
    ],
)
def test_that_the_root_alone_casts_is_said_where_it_is_so(given: str, said: bool) -> None:
    policy = f"MixedPrecision(param_dtype=torch.bfloat16{given})"
    call = f"model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({{Block}}), mixed_precision={policy})\n"
    messages = [f.message for f in analyse(HEAD + call)[0].findings if f.code == "FSDP213"]
    assert any("only the root casts" in message for message in messages) is said


def test_wrap_shards_nothing_where_enable_wrap_stays() -> None:
    head = f"{HEAD}from torch.distributed.fsdp.wrap import CustomPolicy, enable_wrap, wrap\n"
    given = "auto_wrap_policy=CustomPolicy(lambda m: isinstance(m, Block))"
    text = f"with enable_wrap(wrapper_cls=FSDP, {given}):\n    model = wrap(model)\n"
    found = [f for f in analyse(head + text, "torch")[0].findings if f.code == "FSDP002"]
    assert [each.action for each in found] == ["manual", "manual"]
    found = [f for f in analyse(head + text)[0].findings if f.code == "FSDP002"]
    assert "manual" not in [each.action for each in found]
