"""The torch form as a maintainer would write it: comments where they belong, one statement for one thing, nothing left over."""

from pathlib import Path

import pytest

from .by_hand import rewritten
from .programs import table

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
=== a policy that marks modules
def by_mark(module, recurse, **options):
    if isinstance(module, Net):
        module.output.is_unit = True
    return recurse or getattr(module, "is_unit", False)


model = FSDP(model, auto_wrap_policy=by_mark)
---
def by_mark(module, recurse, **options):
    if isinstance(module, Net):
        module.output.is_unit = True
    return recurse or getattr(module, "is_unit", False)


# The policy marks modules: as under FSDP1, it is asked about parents first
for module in model.modules():
    by_mark(module=module, recurse=True, nonwrapped_numel=0)
for module in reversed(list(model.modules())[1:]):
    if by_mark(module=module, recurse=False, nonwrapped_numel=0):
        fully_shard(module)
fully_shard(model)
=== a policy that counts
def by_size(module, recurse, nonwrapped_numel):
    return nonwrapped_numel > 100


model = FSDP(model, auto_wrap_policy=by_size)
---
def by_size(module, recurse, nonwrapped_numel):
    return nonwrapped_numel > 100


closed = {
    part
    for m in model.modules()
    if not by_size(
        module=m, recurse=True, nonwrapped_numel=sum(p.numel() for p in m.parameters())
    )
    for part in m.modules()
}
for module in reversed(list(model.modules())[1:]):
    numel = sum(p.numel() for p in module.parameters() if not isinstance(p, DTensor))
    if module not in closed and by_size(
        module=module, recurse=False, nonwrapped_numel=numel
    ):
        fully_shard(module)
fully_shard(model)
=== a policy that may count, or may be none
def by_size(module, recurse, nonwrapped_numel):
    return nonwrapped_numel > 100


policy = None
if args.units:
    policy = by_size
model = FSDP(model, auto_wrap_policy=policy)
---
def by_size(module, recurse, nonwrapped_numel):
    return nonwrapped_numel > 100


policy = None
if args.units:
    policy = by_size
if policy is not None:
    closed = {
        part
        for m in model.modules()
        if not policy(
            module=m,
            recurse=True,
            nonwrapped_numel=sum(p.numel() for p in m.parameters()),
        )
        for part in m.modules()
    }
    for module in reversed(list(model.modules())[1:]):
        numel = sum(
            p.numel() for p in module.parameters() if not isinstance(p, DTensor)
        )
        if module not in closed and policy(
            module=module, recurse=False, nonwrapped_numel=numel
        ):
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
    first = expected.splitlines(keepends=True)[0]
    assert rewritten(before, first, tmp_path) == expected
