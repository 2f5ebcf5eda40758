"""What a wrapper lets through, and which modules it takes."""

import functools
import inspect
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from ..registry import cannot, holds
from .common import (
    Block,
    Net,
    Tied,
    batches,
    close,
    error,
    full,
    in_blocks,
    layers,
    net,
    said,
    state_of,
    train,
    tree,
)


@holds()
def modules_without_parameters(api: Any) -> Any:
    """A module without parameters becomes a unit like any other."""
    model = api.FSDP(nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))
    alone = api.FSDP(nn.ReLU())
    (x,) = batches(1)
    return tree(api, alone), list(alone.parameters()), alone(x), model(x).detach()


@holds()
def a_unit_all_of_whose_parameters_are_in_others(api: Any) -> Any:
    """A unit without parameters of its own trains those of the units in it."""
    model = api.FSDP(nn.Sequential(api.FSDP(nn.Linear(4, 4)), api.FSDP(nn.Linear(4, 2))))
    return tree(api, model), train(model), full(api, model)


@holds(in_place="fully_shard refuses a container whose class has no forward")
def containers_become_units_with_a_warning(api: Any) -> Any:
    """A `ModuleList` or `ModuleDict` can be wrapped; a warning says that its forward never runs."""
    built: list[Any] = []
    lists = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    texts = said(lambda: built.append(api.FSDP(lists)))
    texts += said(lambda: built.append(api.FSDP(nn.ModuleDict({"a": nn.Linear(3, 3)}))))
    wanted = [text for text in texts if "forward" in text.lower()]
    assert len(wanted) == 2, texts
    return [tree(api, model) for model in built], wanted, type(built[0][1]).__name__


@holds()
def models_without_forward(api: Any) -> Any:
    """A model without a forward of its own can be wrapped."""

    class Bag(nn.Module):
        pass

    bag = Bag()
    bag.layer = nn.Linear(3, 3)
    model = api.FSDP(bag, use_orig_params=True)
    return tree(api, model), sorted(model.state_dict()), error(lambda: model(torch.ones(1, 3)))


@holds()
def wrap_again_after_training(api: Any) -> Any:
    """A module inside of a model that was trained can be wrapped again, with the same outputs."""
    torch.manual_seed(1)
    inner = nn.Sequential(api.FSDP(nn.Linear(4, 4)))
    model = api.FSDP(inner)
    losses = train(model)
    (x,) = batches(1)
    with torch.no_grad():
        before, after = model(x), api.FSDP(inner)(x)
    assert torch.equal(before, after)
    return losses, after


@holds()
def a_unit_in_a_unit(api: Any) -> Any:
    """A unit can be wrapped itself."""
    model = api.FSDP(api.FSDP(net()), use_orig_params=False)
    return tree(api, model), train(model), full(api, model)


@holds()
def tied_parameters_in_one_unit(api: Any) -> Any:
    """Parameters that two modules of one unit share stay shared."""
    torch.manual_seed(1)
    model = in_blocks(api, Tied())
    tokens = [
        torch.randint(0, 7, (3, 5), generator=torch.Generator().manual_seed(i)) for i in (0, 1)
    ]
    losses = train(model, inputs=tokens)
    with api.FSDP.summon_full_params(model):
        assert model.embed.weight is model.out.weight
    names = [name for name, _ in model.named_parameters()]
    return losses, names, full(api, model)


@holds(in_place="there are no wrappers to name")
def names_of_modules_and_parameters(api: Any) -> Any:
    """`named_modules` and `named_parameters` show the wrappers; with `use_orig_params` every parameter has its name."""
    model = in_blocks(api)
    names = [name for name, _ in model.named_parameters()]
    assert names[0] == "_fsdp_wrapped_module.stem.weight"
    assert "_fsdp_wrapped_module.blocks.0._fsdp_wrapped_module.up.bias" in names
    buffers = [name for name, _ in model.named_buffers()]
    return names, buffers, [name for name, _ in model.named_children()]


@cannot("FSDP2 has no flat parameters: the bridge names each parameter, as use_orig_params does")
def flat_parameters(api: Any) -> Any:
    """With `use_orig_params=False` a unit has one parameter, `_flat_param`."""
    return [name for name, _ in in_blocks(api, use_orig_params=False).named_parameters()]


@holds(
    in_place="`model.module` is a view: another object of the module's class with the same `__dict__`"
)
def the_wrapped_module(api: Any) -> Any:
    """`module` of a unit is the very module that was wrapped, of its own class."""
    plain = net()
    block, head = plain.blocks[0], plain.head
    model = in_blocks(api, plain)
    assert model.module is plain
    assert model.blocks[0].module is block
    assert model.head is head
    return type(model.module).__name__, type(model.blocks[0].module) is Block, type(head).__name__


@holds()
def attributes_of_the_wrapped_module(api: Any) -> Any:
    """A unit hands on attributes, methods and items of the module that it wraps."""

    class Named(nn.Sequential):
        label = "mine"

        def twice(self, x: int) -> int:
            return 2 * x

    layers = Named(nn.Linear(4, 4), nn.Linear(4, 2))
    model = api.FSDP(layers)
    assert model[0] is layers[0]
    missing = error(lambda: model.nothing)
    return model.label, model.twice(4), model[1].out_features, missing


@holds(in_place="unit and module have one `__dict__`")
def setting_attributes(api: Any) -> Any:
    """An attribute set on a unit belongs to the unit, and its module keeps its own."""
    layer = nn.Linear(4, 4)
    layer.label = "inner"
    model = api.FSDP(layer)
    before = model.label
    model.label = "outer"
    model.other = 3
    return before, model.label, layer.label, hasattr(layer, "other")


@holds(in_place="the model's own attribute comes first")
def an_attribute_module_of_its_own(api: Any) -> Any:
    """A model that has an attribute `module` keeps it, one level below the unit's."""

    holder = layers(lambda m, x: m.module(x), module=(4, 4))
    model = api.FSDP(holder, use_orig_params=True)
    assert model.module is holder
    assert model.module.module is holder.module
    return [n for n, _ in model.named_parameters()], sorted(model.state_dict()), train(model)


@holds(
    in_place="a unit is of a class derived from the model's, with its name; `isinstance` finds it"
)
def classes_of_units(api: Any) -> Any:
    """A unit is of the class FullyShardedDataParallel, and the modules in it are not."""
    model = in_blocks(api)
    assert type(model) is api.FSDP
    assert type(model.blocks[1]) is api.FSDP
    assert not isinstance(model, Net)
    assert not isinstance(model.module, api.FSDP)
    return (
        api.FSDP.__name__,
        api.FSDP.__qualname__,
        issubclass(api.FSDP, nn.Module),
        issubclass(Net, api.FSDP),
    )


@holds()
def modules_of_fully_shard(api: Any) -> Any:
    """A model of FSDP2's own `fully_shard` is no FullyShardedDataParallel."""
    model = fully_shard(net())
    assert not isinstance(model, api.FSDP)
    return (
        isinstance(model, api.FSDP),
        issubclass(type(model), api.FSDP),
        api.FSDP.fsdp_modules(model),
    )


@holds()
def models_of_torchs_fsdp1(api: Any) -> Any:
    """A model that a library wrapped with torch's FSDP1 is one, and the static methods work on it."""
    model = torch.distributed.fsdp.FullyShardedDataParallel(net(), use_orig_params=True)
    assert isinstance(model, api.FSDP)
    state = state_of(api, model, "FULL_STATE_DICT")
    return issubclass(type(model), api.FSDP), list(state), full(api, model), train(model)


@holds(in_place="the model prints as before")
def representation(api: Any) -> Any:
    """The representation of a model shows its units."""
    text = repr(in_blocks(api))
    assert text.count("FullyShardedDataParallel(") == 3
    return text


@holds()
def signature(api: Any) -> Any:
    """The constructor has FSDP1's arguments, in their order, with their defaults."""
    found = inspect.signature(api.FSDP).parameters.values()
    defaults = [getattr(p.default, "name", p.default) for p in found]
    return [(p.name, p.kind.name, str(d)) for p, d in zip(found, defaults, strict=True)]


@holds()
def positional_arguments(api: Any) -> Any:
    """The process group and the sharding strategy can be given by position."""
    group = torch.distributed.new_group()
    strategy = api.ShardingStrategy.SHARD_GRAD_OP
    model = api.FSDP(net(), group, strategy)
    assert model.process_group is group
    return model.sharding_strategy.name


@holds()
def partial_constructors(api: Any) -> Any:
    """`functools.partial` of the class is a constructor, also for `enable_wrap`."""
    make = functools.partial(api.FSDP, sharding_strategy=api.ShardingStrategy.SHARD_GRAD_OP)
    model = make(net())
    with api.wrap.enable_wrap(wrapper_cls=make):
        layer = api.wrap.wrap(nn.Linear(3, 3))
    return tree(api, model), model.sharding_strategy.name, layer.sharding_strategy.name


@holds(in_place="there is no wrapper to derive from")
def subclasses(api: Any) -> Any:
    """A subclass with a constructor and a forward of its own is a unit; `super().forward` gathers."""

    class Doubling(api.FSDP):  # type: ignore[misc,name-defined]
        def __init__(self, module: nn.Module, factor: float, **options: Any) -> None:
            super().__init__(module, **options)
            self.factor = factor

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.factor * super().forward(*args, **kwargs)

    model = Doubling(net(), 2.0, use_orig_params=True)
    assert type(model) is Doubling
    return tree(api, model), train(model), full(api, model)


@holds(in_place="there is no wrapper to derive from")
def subclasses_with_a_policy(api: Any) -> Any:
    """A policy wraps the modules inside of a subclass's model in the subclass's base or itself, as FSDP1 does."""

    class Mine(api.FSDP):  # type: ignore[misc,name-defined]
        pass

    model = Mine(net(), auto_wrap_policy=api.wrap.ModuleWrapPolicy({Block}))
    return tree(api, model)


@holds()
def options_reach_every_unit(api: Any) -> Any:
    """With a policy every unit has the options of the constructor."""
    model = in_blocks(
        api,
        backward_prefetch=api.BackwardPrefetch.BACKWARD_POST,
        forward_prefetch=True,
        limit_all_gathers=False,
        cpu_offload=api.CPUOffload(offload_params=True),
        sharding_strategy=api.ShardingStrategy.SHARD_GRAD_OP,
    )
    return [
        (
            unit.backward_prefetch.name,
            unit.forward_prefetch,
            unit.limit_all_gathers,
            unit.cpu_offload.offload_params,
            unit.sharding_strategy.name,
        )
        for unit in api.FSDP.fsdp_modules(model)
    ]


@holds(in_place="the model is the unit")
def children_are_replaced_in_place(api: Any) -> Any:
    """A policy puts units in the place of the children of the very model that it got."""
    plain = net()
    in_blocks(api, plain)
    return tree(api, plain)


@holds(ranks=4)
def units_over_four_ranks(api: Any) -> Any:
    """The units are the same over four ranks, and so is the model that they hold."""
    plain = net()
    whole = {name: p.detach().clone() for name, p in plain.named_parameters()}
    model = in_blocks(api, plain)
    assert close(full(api, model), whole)
    return tree(api, model), full(api, model)
