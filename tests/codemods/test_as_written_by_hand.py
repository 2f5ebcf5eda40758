"""The torch form as a maintainer would write it: comments where they belong, one statement for one thing, nothing left over."""

from pathlib import Path

import pytest

from .programs import analysed, table

HEAD = """\
import functools
import torch
from torch.distributed.fsdp import *
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


"""
CASES = table("""\
=== comments stand where their arguments went
model = FSDP(
    model,
    # Every rank begins alike
    sync_module_states=True,
    sharding_strategy=strategy,  # from the configuration
    # no word of torch's
    limit_all_gathers=True,
)
---
# no word of torch's
# from the configuration
mesh = None
if strategy in (
    ShardingStrategy.NO_SHARD,
    ShardingStrategy.HYBRID_SHARD,
    ShardingStrategy._HYBRID_SHARD_ZERO2,
):
    shards = torch.cuda.device_count()
    if strategy is ShardingStrategy.NO_SHARD:
        shards = 1
    mesh = init_device_mesh(
        "cuda",
        (torch.distributed.get_world_size() // shards, shards),
        mesh_dim_names=("replicate", "shard"),
    )
# Every rank begins alike
for tensor in [*model.parameters(), *model.buffers()]:
    torch.distributed.broadcast(tensor.detach(), src=0)
fully_shard(model, mesh=mesh)
=== memory at once, which rank 0 fills; on the CPU where parameters are offloaded
model = FSDP(
    model,
    cpu_offload=CPUOffload(args.offload),
    sync_module_states=True,
    param_init_fn=lambda m: m.to_empty(device=device, recurse=False) if rank else None,
)
---
state_dict = model.state_dict() if torch.distributed.get_rank() == 0 else {}
fully_shard(
    model, offload_policy=CPUOffloadPolicy() if args.offload else OffloadPolicy()
)
if rank:
    model.to_empty(device="cpu" if args.offload else device)
options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
set_model_state_dict(model, state_dict, options=options)
for buffer in model.buffers():
    # FSDP2 offloads parameters alone
    buffer.data = buffer.to("cuda")
    torch.distributed.broadcast(buffer, src=0)
=== memory by a function of the program's own
def give_memory(module):
    if get_rank() != 0:
        module.to_empty(device=get_device(), recurse=False)
        torch.cuda.empty_cache()


model = FSDP(model, sync_module_states=True, param_init_fn=give_memory)
---
def give_memory(module):
    if get_rank() != 0:
        module.to_empty(device=get_device(), recurse=False)
        torch.cuda.empty_cache()


# Rank 0 has the values; the other ranks get their shards of them
state_dict = model.state_dict() if torch.distributed.get_rank() == 0 else {}
fully_shard(model)
if next(model.parameters()).is_meta:
    model.apply(give_memory)
options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
set_model_state_dict(model, state_dict, options=options)
for buffer in model.buffers():
    torch.distributed.broadcast(buffer, src=0)
=== memory that all ranks may be given, by a lambda in a variable
def build(model, first):
    if first:
        fill = None
    else:
        fill = lambda m: m.to_empty(device=device, recurse=False)
    model = FSDP(model, sync_module_states=True, param_init_fn=fill)
    return model
---
def build(model, first):
    # Rank 0 has the values; the other ranks get their shards of them
    state_dict = model.state_dict() if torch.distributed.get_rank() == 0 else {}
    fully_shard(model)
    if next(model.parameters()).is_meta:
        model.to_empty(device=device)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, state_dict, options=options)
    for buffer in model.buffers():
        torch.distributed.broadcast(buffer, src=0)
    return model
=== memory under a condition that says nothing of ranks
model = FSDP(
    model,
    sync_module_states=lazy,
    param_init_fn=(lambda m: m.to_empty(device=device, recurse=False)) if lazy else None,
)
---
# Rank 0 has the values; the other ranks get their shards of them
state_dict = model.state_dict() if lazy and torch.distributed.get_rank() == 0 else {}
fully_shard(model)
if lazy and next(model.parameters()).is_meta:
    model.to_empty(device=device)
if lazy:
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, state_dict, options=options)
    for buffer in model.buffers():
        torch.distributed.broadcast(buffer, src=0)
=== memory that nothing fills by another way
model = FSDP(model, param_init_fn=lambda m: m.to_empty(device=device, recurse=False))
---
fully_shard(model)
if next(model.parameters()).is_meta:
    for module in model.modules():
        module.to_empty(device=device, recurse=False)
=== a function for a model of which a part is another's
model.head = head
model = FSDP(model, param_init_fn=fill)
---
model.head = head
fully_shard(model)
on_meta = [
    m
    for m in model.modules()
    if any(t.is_meta for t in (*m.parameters(), *m.buffers()))
]
for module in on_meta:
    fill(module)
=== buffers that reset_parameters makes on the CPU
with torch.device("meta"):
    net = build(torch)
net = FSDP(net, device_id=device, mixed_precision=MixedPrecision(torch.bfloat16, torch.float32, torch.bfloat16))
---
with torch.device("meta"):
    net = build(torch)
torch.cuda.set_device(device)
mp_policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
fully_shard(net, mp_policy=mp_policy)
for module in net.modules():
    own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    if any(tensor.is_meta for tensor in own):
        module.to_empty(device="cuda", recurse=False)
        module.reset_parameters()
for buffer in net.buffers():
    dtype = torch.bfloat16 if buffer.is_floating_point() else None
    buffer.data = buffer.to(device, dtype)
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
=== a policy that is None at first, and never at the end
def wrapping(config):
    wrap = None
    if config.show:
        print(config)
    wrap = make_policy(config)
    return wrap


def make_policy(config):
    return functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=config.layers)


model = FSDP(model, auto_wrap_policy=wrapping(config))
---
def wrapping(config):
    wrap = None
    if config.show:
        print(config)
    wrap = make_policy(config)
    return wrap


def make_policy(config):
    return functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=config.layers)


auto_wrap_policy = wrapping(config)
for module in reversed(list(model.modules())[1:]):
    if auto_wrap_policy(module=module, recurse=False, nonwrapped_numel=0):
        fully_shard(module)
fully_shard(model)
=== a policy that may still be None at the end
def perhaps(config):
    wrap = None
    shown = config.show and (wrap := make_any_policy(config))
    return wrap


def make_any_policy(config):
    return functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=config.layers)


model = FSDP(model, auto_wrap_policy=perhaps(config))
---
def perhaps(config):
    wrap = None
    shown = config.show and (wrap := make_any_policy(config))
    return wrap


def make_any_policy(config):
    return functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=config.layers)


auto_wrap_policy = perhaps(config)
for module in reversed(list(model.modules())[1:]):
    if auto_wrap_policy is not None and auto_wrap_policy(
        module=module, recurse=False, nonwrapped_numel=0
    ):
        fully_shard(module)
fully_shard(model)
=== a policy of classes that branches choose
def build_by_class(model, args):
    layers = None
    if args.own:
        layers = {Block}
    else:
        layers = {type(model.head)}
    wrap = functools.partial(
        transformer_auto_wrap_policy,
        transformer_layer_cls=layers,
    )
    return FSDP(model, auto_wrap_policy=wrap)
---
def build_by_class(model, args):
    layers = None
    if args.own:
        layers = {Block}
    else:
        layers = {type(model.head)}
    for module in reversed(list(model.modules())[1:]):
        if isinstance(module, tuple(layers)):
            fully_shard(module)
    return fully_shard(model)
=== a policy of classes that change after it
def build_by_first(model, args):
    layers = {Block}
    wrap = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=layers)
    layers = {type(model.head)}
    return FSDP(model, auto_wrap_policy=wrap)
---
def build_by_first(model, args):
    layers = {Block}
    wrap = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=layers)
    layers = {type(model.head)}
    for module in reversed(list(model.modules())[1:]):
        if wrap(module=module, recurse=False, nonwrapped_numel=0):
            fully_shard(module)
    return fully_shard(model)
=== a function for models on the meta device, and a model that is not
def build_real(args):
    model = Net(args)
    if args.show:
        print(model)
    model = FSDP(model, sync_module_states=True, param_init_fn=fill)
    model = restored(model)
    return model
---
def build_real(args):
    model = Net(args)
    if args.show:
        print(model)
    # Every rank begins with rank 0's values
    for tensor in [*model.parameters(), *model.buffers()]:
        torch.distributed.broadcast(tensor.detach(), src=0)
    fully_shard(model)
    model = restored(model)
    return model
=== a function for a model that is made in a context
def build_there(args):
    with args.device:
        model = Net(args)
    return FSDP(model, param_init_fn=fill)
---
def build_there(args):
    with args.device:
        model = Net(args)
    fully_shard(model)
    if next(model.parameters()).is_meta:
        for module in model.modules():
            fill(module)
    return model
=== a function for a model that is told its device
def build_on(args):
    model = Net(args, device=args.device)
    return FSDP(model, param_init_fn=fill)
---
def build_on(args):
    model = Net(args, device=args.device)
    fully_shard(model)
    if next(model.parameters()).is_meta:
        for module in model.modules():
            fill(module)
    return model
=== a function for a model that a function makes
def build_some(args):
    model = make(args)
    return FSDP(model, param_init_fn=fill)
---
def build_some(args):
    model = make(args)
    fully_shard(model)
    if next(model.parameters()).is_meta:
        for module in model.modules():
            fill(module)
    return model
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
=== what only served an argument without effect
def _original(config):
    return config.peft


def main(config):
    # Backward prefetch
    backward_prefetch = config.backward_prefetch.to_torch()

    # The limit of gathers
    limit = config.limit
    model = FSDP(model, backward_prefetch=backward_prefetch, use_orig_params=_original(config), limit_all_gathers=limit)
---
def main(config):
    # The limit of gathers
    fully_shard(model)
=== a policy that does not count
def by_name(module, recurse, **kwargs):
    return recurse or module.name == "block"


model = FSDP(model, auto_wrap_policy=by_name)
---
def by_name(module, recurse, **kwargs):
    return recurse or module.name == "block"


for module in reversed(list(model.modules())[1:]):
    if by_name(module=module, recurse=False, nonwrapped_numel=0):
        fully_shard(module)
fully_shard(model)
=== a policy that counts
def by_size(module, recurse, nonwrapped_numel):
    return nonwrapped_numel > 100


model = FSDP(model, auto_wrap_policy=by_size)
---
def by_size(module, recurse, nonwrapped_numel):
    return nonwrapped_numel > 100


for module in reversed(list(model.modules())[1:]):
    numel = sum(p.numel() for p in module.parameters() if not isinstance(p, DTensor))
    if by_size(module=module, recurse=False, nonwrapped_numel=numel):
        fully_shard(module)
fully_shard(model)
=== a policy that is asked keeps the module that makes it
import functools as tools
model = FSDP(model, auto_wrap_policy=tools.partial(by_name, classes=[] if model.is_peft else [Block]))
---
import functools as tools
auto_wrap_policy = tools.partial(by_name, classes=[] if model.is_peft else [Block])
for module in reversed(list(model.modules())[1:]):
    if auto_wrap_policy(module=module, recurse=False, nonwrapped_numel=0):
        fully_shard(module)
fully_shard(model)
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
=== what is too long for its line
def build(model, use_another_rank=True):
    model = FSDP(
        model,
        sync_module_states=use_another_rank or config.low_cpu_fsdp,
        param_init_fn=fill,
    )
    return model
---
def build(model, use_another_rank=True):
    # Rank 0 has the values; the other ranks get their shards of them
    state_dict = {}
    if (use_another_rank or config.low_cpu_fsdp) and torch.distributed.get_rank() == 0:
        state_dict = model.state_dict()
    fully_shard(model)
    on_meta = [
        m
        for m in model.modules()
        if any(t.is_meta for t in (*m.parameters(), *m.buffers()))
    ]
    for module in on_meta:
        fill(module)
    if use_another_rank or config.low_cpu_fsdp:
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(model, state_dict, options=options)
        for buffer in model.buffers():
            torch.distributed.broadcast(buffer, src=0)
    return model
=== two options of which one is chosen
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), cpu_offload=CPUOffload(args.offload), device_mesh=mesh)
---
offload_policy = CPUOffloadPolicy() if args.offload else OffloadPolicy()
fsdp_kwargs = {"mesh": mesh, "offload_policy": offload_policy}
for module in reversed(list(model.modules())):
    if isinstance(module, Block):
        fully_shard(module, **fsdp_kwargs)
fully_shard(model, **fsdp_kwargs)
""")


@pytest.mark.parametrize("name", CASES)
def test_what_a_maintainer_reads(name: str, tmp_path: Path) -> None:
    before, expected = CASES[name]
    after = analysed(tmp_path, HEAD + before, "torch").after["train.py"]
    lines = after.splitlines(keepends=True)
    first = next(
        i for i, line in enumerate(lines) if line in expected.splitlines(keepends=True)[:1]
    )
    assert "".join(lines[first:]) == expected
