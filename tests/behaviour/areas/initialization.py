"""Construction: meta devices, states that are broadcast, and what is refused."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from ..registry import each, holds
from .common import Block, batches, cloned, close, error, full, in_blocks, layers, net, train, tree


class Resetting(nn.Linear):
    """A layer whose values depend on nothing but its shape."""

    def reset_parameters(self) -> None:
        torch.manual_seed(sum(self.weight.shape))
        nn.init.xavier_uniform_(self.weight)
        nn.init.zeros_(self.bias)


class WithBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.empty(3))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.table.fill_(0.5)


class Resettable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Resetting(4, 6)
        self.inner = nn.Sequential(Resetting(6, 6), nn.Tanh())
        self.last = Resetting(6, 3)
        self.buffer = WithBuffer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.inner(self.first(x))) * self.buffer.table


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return Resettable()


def policy(api: Any) -> Any:
    return api.wrap.ModuleWrapPolicy({Resetting})


def expected() -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in Resettable().named_parameters()}


def materialize(module: nn.Module) -> None:
    own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    if any(tensor.is_meta for tensor in own):
        module.to_empty(device="cpu", recurse=False)
        module.reset_parameters()


@holds()
def meta_with_reset_parameters(api: Any) -> Any:
    """A model on the meta device gets its values from `reset_parameters` of its modules, whichever are units."""
    results = []
    for options in ({}, {"auto_wrap_policy": policy(api)}):
        model = api.FSDP(on_meta(), **options)
        found = full(api, model)
        assert close(found, expected())
        results.append((found, train(model), full(api, model), model.buffer.table.clone()))
    return results


@holds()
def meta_with_a_function(api: Any) -> Any:
    """`param_init_fn` gives the values, called with each module."""
    results = []
    for options in ({}, {"auto_wrap_policy": policy(api)}):
        model = api.FSDP(on_meta(), param_init_fn=materialize, **options)
        found = full(api, model)
        assert close(found, expected())
        results.append((found, train(model), full(api, model)))
    return results


@holds()
def meta_in_order(api: Any) -> Any:
    """`param_init_fn` is called in FSDP1's order: what it draws at random is the same."""

    def draw(module: nn.Module) -> None:
        module.to_empty(device="cpu", recurse=False)
        with torch.no_grad():
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                tensor.uniform_(-0.3, 0.3)

    with torch.device("meta"):
        model = net()
    model = in_blocks(api, model, param_init_fn=draw)
    return full(api, model), model.scale.clone()


@holds()
def meta_in_a_context(api: Any) -> Any:
    """`param_init_fn` is an option of `enable_wrap` too."""
    with api.wrap.enable_wrap(wrapper_cls=api.FSDP, param_init_fn=materialize):
        model = on_meta()
        model.first = api.wrap.wrap(model.first)
        model.inner = api.wrap.wrap(model.inner)
        model = api.wrap.wrap(model)
    found = full(api, model)
    assert close(found, expected())
    return tree(api, model), found, train(model)


@holds()
def meta_with_mixed_precision(api: Any) -> Any:
    """A model on the meta device can be given mixed precision."""
    precision = api.MixedPrecision(param_dtype=torch.float32, reduce_dtype=torch.float16)
    model = api.FSDP(
        on_meta(),
        auto_wrap_policy=policy(api),
        mixed_precision=precision,
        param_init_fn=materialize,
    )
    return full(api, model)


@holds()
def meta_on_other_ranks(api: Any) -> Any:
    """With `sync_module_states` only rank 0 needs values; the others may be on the meta device."""
    torch.manual_seed(3)
    model = Resettable() if dist.get_rank() == 0 else on_meta()
    if dist.get_rank() == 0:
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.25)
    model = api.FSDP(
        model,
        auto_wrap_policy=policy(api),
        sync_module_states=True,
        param_init_fn=lambda m: m.to_empty(device="cpu", recurse=False),
    )
    found = full(api, model)
    assert all((p == 0.25).all() for p in found.values())
    return found, train(model)


@holds()
def meta_without_reset_parameters(api: Any) -> Any:
    """A module on the meta device without `reset_parameters` is an error that names it."""

    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(3, device="meta"))

    return "reset_parameters" in error(lambda: api.FSDP(Bare()))


@holds()
def states_of_rank_0(api: Any) -> Any:
    """`sync_module_states` gives every rank the parameters and buffers of rank 0."""
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model.register_buffer("mark", torch.full((2,), float(dist.get_rank())))
    model.register_buffer("cache", torch.full((2,), float(dist.get_rank())), persistent=False)
    torch.manual_seed(0)
    first = nn.Linear(4, 4)
    model = api.FSDP(model, sync_module_states=True)
    found = full(api, model)
    assert torch.equal(found["0.weight"], first.weight)
    assert not model.mark.any()
    assert not model.cache.any()
    return found, cloned(dict(model.named_buffers()))


@holds()
def states_of_each_rank(api: Any) -> Any:
    """Without `sync_module_states` each rank's shard has that rank's values."""
    torch.manual_seed(dist.get_rank())
    layer = nn.Linear(4, 4, bias=False)
    mine = layer.weight.detach().clone()
    model = api.FSDP(layer)
    whole = full(api, model)["weight"]
    both = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(both, mine)
    assert torch.equal(whole, torch.cat([both[0][:2], both[1][2:]]))
    return whole


@holds()
def buffers_of_each_rank(api: Any) -> Any:
    """Without `sync_module_states` buffers stay each rank's own."""
    model = nn.Linear(2, 2)
    model.register_buffer("mark", torch.full((2,), float(dist.get_rank())))
    model = api.FSDP(model)
    return model.mark.clone()


@holds()
def defaults(api: Any) -> Any:
    """A unit without options shards over the default group, by FULL_SHARD."""
    model = api.FSDP(net())
    assert model.process_group is dist.group.WORLD
    return {
        "strategy": model.sharding_strategy.name,
        "rank": model.rank,
        "world size": model.world_size,
        "device": str(model.compute_device),
        "prefetch": model.backward_prefetch.name,
        "forward prefetch": model.forward_prefetch,
        "limit": model.limit_all_gathers,
        "offload": model.cpu_offload.offload_params,
        "precision": str(model.mixed_precision),
        "state": model.training_state.name,
    }


def scaled(api: Any) -> Any:
    model = nn.Linear(2, 2)
    model.factor = nn.Parameter(torch.tensor(1.0))
    return api.FSDP(model)


def a_group_and_a_mesh(api: Any) -> Any:
    return api.FSDP(net(), process_group=dist.new_group(), device_mesh=flat_mesh())


def flat_mesh() -> Any:
    return init_device_mesh("cpu", (2,))


def hybrid_blocks(api: Any, **options: Any) -> Any:
    return in_blocks(api, sharding_strategy=api.ShardingStrategy.HYBRID_SHARD, **options)


REFUSED: dict[str, tuple[Any, ...]] = {
    "a_function_must_be_callable": (
        "A `param_init_fn` that cannot be called is an error.",
        lambda api: api.FSDP(on_meta(), param_init_fn=42), "to be callable",
    ),
    "a_group_and_a_mesh": ("A group and a mesh together are an error.", a_group_and_a_mesh, "device_mesh"),
    "hybrid_with_one_group": (
        "The hybrid strategies refuse a single group.",
        lambda api: hybrid_blocks(api, process_group=dist.group.WORLD),
        "Expected process_group to be passed in",
    ),
    "hybrid_with_a_flat_mesh": (
        "The hybrid strategies refuse a mesh of one dimension.",
        lambda api: hybrid_blocks(api, device_mesh=flat_mesh()), "ndim=2",
    ),
    "scalar_parameters": (
        "A parameter without dimensions is refused, by its name.", scaled, "factor",
    ),
    "dtypes_of_one_unit": (
        "Parameters of two dtypes in one unit are refused.",
        lambda api: api.FSDP(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, dtype=torch.bfloat16))), "dtype",
    ),
}  # fmt: skip


@each(REFUSED)
def refused(api: Any, construct: Any, words: str) -> Any:
    text = error(lambda: construct(api))
    assert words in text, text
    return text


@holds()
def the_wrong_kind_of_module(api: Any) -> Any:
    """What is not a module cannot be wrapped."""
    return error(lambda: api.FSDP(7)).split(":")[0]


@holds()
def requires_grad_is_kept(api: Any) -> Any:
    """With `use_orig_params` parameters of one unit keep their own `requires_grad`."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].bias.requires_grad_(False)
    model[1].bias.requires_grad_(False)
    before = model[0].bias.detach().clone()
    model = api.FSDP(model, use_orig_params=True)
    flags = [p.requires_grad for p in model.parameters()]
    assert flags == [True, False, True, False]
    losses = train(model)
    assert torch.equal(full(api, model)["0.bias"], before)
    return flags, losses, full(api, model)


@holds()
def dtypes_of_two_units(api: Any) -> Any:
    """Units of different dtypes can be in one model."""

    class Casting(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.to(self.weight.dtype))

    torch.manual_seed(1)
    model = nn.Sequential(Casting(4, 4), Casting(4, 2).to(torch.bfloat16))
    wrap = api.wrap.ModuleWrapPolicy({Casting})
    model = api.FSDP(model, auto_wrap_policy=wrap)
    return train(model), full(api, model)


# FSDP1 keeps the strides of a parameter, FSDP2 makes it contiguous: another kernel, which rounds otherwise.
@holds(tolerance=1e-6)
def parameters_in_other_orders(api: Any) -> Any:
    """Parameters that are not contiguous in memory train, with the same values."""
    torch.manual_seed(1)
    layer = nn.Linear(4, 4)
    layer.weight = nn.Parameter(torch.randn(4, 4).t())
    whole = layer.weight.detach().clone()
    model = api.FSDP(layer, use_orig_params=True)
    assert torch.equal(full(api, model)["weight"], whole)
    return train(model), full(api, model)


@holds()
def empty_parameters(api: Any) -> Any:
    """A parameter without elements does not disturb the others."""

    empty = layers(lambda m, x: m.layer(x) + m.none.sum(), layer=(4, 4))
    empty.none = nn.Parameter(torch.empty(0, 4))
    model = api.FSDP(empty, use_orig_params=True)
    return train(model), full(api, model)


@holds()
def options_that_must_agree(api: Any) -> Any:
    """Units that differ in `use_orig_params` or `limit_all_gathers` are an error at the first forward."""
    texts = []
    for option in ("use_orig_params", "limit_all_gathers"):
        model = net()
        model.blocks[1] = api.FSDP(model.blocks[1], **{option: False})
        model = api.FSDP(model, **{option: True})
        texts.append(error(lambda m=model: m(*batches(1))))
    assert texts[0].startswith("ValueError: Expects one homogeneous value for")
    return texts


@holds()
def strategies(api: Any) -> Any:
    """`sharding_strategy` of each unit is the one that it was given."""
    strategies, found = api.ShardingStrategy, []
    for strategy in (None, strategies.FULL_SHARD, strategies.SHARD_GRAD_OP, strategies.NO_SHARD):
        model = in_blocks(api, sharding_strategy=strategy)
        found.append([u.sharding_strategy.name for u in model.fsdp_modules(model)])
    assert found[0] == ["FULL_SHARD"] * 3
    return found


@holds()
def strategies_side_by_side(api: Any) -> Any:
    """Units of different strategies train in one model."""
    strategies = api.ShardingStrategy
    model = net()
    chosen = (strategies.NO_SHARD, strategies.SHARD_GRAD_OP)
    for i, strategy in enumerate(chosen):
        model.blocks[i] = api.FSDP(model.blocks[i], sharding_strategy=strategy)
    model = api.FSDP(model)
    assert isinstance(model.blocks[0].module, Block)
    return train(model), full(api, model)
