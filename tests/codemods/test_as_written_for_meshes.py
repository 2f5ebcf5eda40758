"""The torch form of strategies, meshes and precisions, as a maintainer would write it."""

from pathlib import Path

import pytest

from .by_hand import rewritten
from .programs import table

CASES = table("""\
=== a precision of which the types are read
if half:
    precision = MixedPrecision(
        param_dtype=torch.bfloat16, reduce_dtype=reduced, buffer_dtype=reduced
    )
else:
    precision = MixedPrecision(
        torch.float32,
        torch.float32,
        torch.float32,
    )
model = FSDP(model, mixed_precision=precision)
print(precision, precision.param_dtype, f"buffers in {precision.buffer_dtype}")
---
if half:
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduced)
else:
    precision = MixedPrecisionPolicy(
        torch.float32,
        torch.float32,
    )
fully_shard(model, mp_policy=precision)
for buffer in model.buffers():
    if buffer.is_floating_point():
        buffer.data = buffer.to(precision.reduce_dtype)
print(precision, precision.param_dtype, f"buffers in {precision.reduce_dtype}")
=== a precision that something else reads as FSDP1's
if half:
    precision = MixedPrecision(param_dtype=torch.bfloat16, buffer_dtype=reduced)
else:
    precision = MixedPrecision(torch.float32)
model = FSDP(model, mixed_precision=precision)
print(precision.buffer_dtype)
---
if half:
    precision = MixedPrecision(param_dtype=torch.bfloat16, buffer_dtype=reduced)
else:
    precision = MixedPrecision(torch.float32)
mp_policy = MixedPrecisionPolicy(
    param_dtype=precision.param_dtype,
    reduce_dtype=precision.reduce_dtype or precision.param_dtype,
)
fully_shard(model, mp_policy=mp_policy)
for buffer in model.buffers():
    if buffer.is_floating_point():
        buffer.data = buffer.to(precision.buffer_dtype)
print(precision.buffer_dtype)
=== a strategy that another method asks for by its name
class Trainer:
    def __init__(self, cfg):
        self.strategy = ShardingStrategy[
            cfg.get("strategy", "FULL_SHARD")
        ]
        self.second = ShardingStrategy.NO_SHARD if cfg.all else getattr(ShardingStrategy, cfg.other)

    def shard(self, model, second, mesh):
        model = FSDP(model, sharding_strategy=self.strategy, process_group=group)
        return model, FSDP(second, device_mesh=mesh, sharding_strategy=self.second)
---
class Trainer:
    def __init__(self, cfg):
        self.strategy = cfg.get("strategy", "FULL_SHARD")
        self.second = "NO_SHARD" if cfg.all else cfg.other

    def shard(self, model, second, mesh):
        fully_shard(
            model,
            reshard_after_forward=self.strategy != "SHARD_GRAD_OP",
            mesh=DeviceMesh.from_group(group, "cuda"),
        )
        reshard_after_forward = self.second not in (
            "SHARD_GRAD_OP",
            "_HYBRID_SHARD_ZERO2",
        )
        fully_shard(second, reshard_after_forward=reshard_after_forward, mesh=mesh)
        return model, second
=== a mesh for one strategy alone
def build(model, config):
    mesh = None
    if config.hybrid and config.strategy == ShardingStrategy.HYBRID_SHARD:
        mesh = make_mesh(config)
    model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), sharding_strategy=config.strategy, device_mesh=mesh)
    return model
---
def build(model, config):
    mesh = None
    if config.hybrid and config.strategy == ShardingStrategy.HYBRID_SHARD:
        mesh = make_mesh(config)
    reshard_after_forward = config.strategy is not ShardingStrategy.SHARD_GRAD_OP
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            fully_shard(module, reshard_after_forward=reshard_after_forward, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model
=== a mesh by the name of one strategy
def build_by_name(model, config):
    if config.strategy == "HYBRID_SHARD":
        mesh = make_mesh(config)
    else:
        mesh = None
    model = FSDP(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        sharding_strategy=ShardingStrategy[config.strategy],
        device_mesh=mesh,
    )
    return model
---
def build_by_name(model, config):
    if config.strategy == "HYBRID_SHARD":
        mesh = make_mesh(config)
    else:
        mesh = None
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            fully_shard(
                module,
                reshard_after_forward=config.strategy != "SHARD_GRAD_OP",
                mesh=mesh,
            )
    fully_shard(model, mesh=mesh)
    return model
=== a mesh for other strategies, too
def build_any(model, config):
    mesh = None
    if config.hybrid:
        mesh = make_mesh(config)
    return FSDP(model, sharding_strategy=config.strategy, device_mesh=mesh, auto_wrap_policy=ModuleWrapPolicy({Block}))
---
def build_any(model, config):
    mesh = None
    if config.hybrid:
        mesh = make_mesh(config)
    reshard_after_forward = config.strategy not in (
        ShardingStrategy.SHARD_GRAD_OP,
        ShardingStrategy._HYBRID_SHARD_ZERO2,
    )
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            fully_shard(module, reshard_after_forward=reshard_after_forward, mesh=mesh)
    return fully_shard(model, mesh=mesh)
=== replicas on a mesh of all ranks, or on none
def build_replicas(model, args):
    mesh = None
    if args.mesh:
        mesh = torch.distributed.device_mesh.init_device_mesh("cuda", (torch.distributed.get_world_size(),))
    return FSDP(model, sharding_strategy=ShardingStrategy.NO_SHARD, device_mesh=mesh if args.whole else None)
---
def build_replicas(model, args):
    mesh = None
    if args.mesh:
        mesh = torch.distributed.device_mesh.init_device_mesh("cuda", (torch.distributed.get_world_size(),))
    mesh_ = init_device_mesh(
        "cuda",
        (torch.distributed.get_world_size(), 1),
        mesh_dim_names=("replicate", "shard"),
    )
    return fully_shard(model, mesh=mesh_)
=== a strategy of which something else reads the value
class Other:
    def __init__(self, cfg):
        self.strategy = ShardingStrategy[cfg.strategy]

    def shard(self, model):
        return FSDP(model, sharding_strategy=self.strategy, device_mesh=mesh)

    def value(self):
        return self.strategy.value
---
class Other:
    def __init__(self, cfg):
        self.strategy = ShardingStrategy[cfg.strategy]

    def shard(self, model):
        return fully_shard(model, mesh=mesh)

    def value(self):
        return self.strategy.value
=== a mesh of the program's own that may not be there
model = FSDP(model, sharding_strategy=ShardingStrategy.NO_SHARD, device_mesh=mesh if many else None)
---
mesh_ = mesh if many else None
if mesh_ is None:
    mesh_ = init_device_mesh("cuda", (torch.distributed.get_world_size(),))
mesh_ = DeviceMesh(
    mesh_.device_type, mesh_.mesh.view(-1, 1), mesh_dim_names=("replicate", "shard")
)
fully_shard(model, mesh=mesh_)
""")


@pytest.mark.parametrize("name", CASES)
def test_what_a_maintainer_reads(name: str, tmp_path: Path) -> None:
    before, expected = CASES[name]
    first = expected.splitlines(keepends=True)[0]
    assert rewritten(before, first, tmp_path) == expected
