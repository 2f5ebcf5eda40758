"""Finding units and the root, and what a model says about itself."""

from typing import Any

import torch
from torch import nn

from ..registry import holds
from .common import batches, clean, in_blocks, net, train


def names(model: nn.Module, found: list[nn.Module]) -> list[str]:
    by_id = {id(module): clean(f"{name}.") for name, module in model.named_modules()}
    return [by_id[id(module)] for module in found]


def two_levels(api: Any) -> Any:
    model = net()
    model.blocks[0].up = api.FSDP(model.blocks[0].up)
    model.blocks[0] = api.FSDP(model.blocks[0])
    model.head = api.FSDP(model.head)
    return model


@holds()
def fsdp_modules(api: Any) -> Any:
    """`fsdp_modules` lists the units, outer ones first; `root_only` those that are in no other."""
    model = two_levels(api)
    every = names(model, api.FSDP.fsdp_modules(model))
    roots = names(model, api.FSDP.fsdp_modules(model, root_only=True))
    assert every == ["blocks.0.", "blocks.0.up.", "head."]
    assert roots == ["blocks.0.", "head."]
    wrapped = api.FSDP(two_levels(api))
    below = [
        names(wrapped, api.FSDP.fsdp_modules(wrapped, root_only=only)) for only in (True, False)
    ]
    return every, roots, below, len(wrapped.fsdp_modules(wrapped))


@holds()
def modules_without_units(api: Any) -> Any:
    """A model without units has none to list."""
    return api.FSDP.fsdp_modules(net())


@holds()
def check_is_root(api: Any) -> Any:
    """`check_is_root` is true of the outermost unit only."""
    model = in_blocks(api)
    found = [unit.check_is_root() for unit in model.fsdp_modules(model)]
    model(*batches(1))
    assert found == [True, False, False]
    return found, [unit.check_is_root() for unit in model.fsdp_modules(model)]


@holds()
def roots_below_a_plain_model(api: Any) -> Any:
    """Below a module that is none, each outermost unit is a root."""
    model = two_levels(api)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = train(model, optimizer)
    units = api.FSDP.fsdp_modules(model)
    return losses, [unit.check_is_root() for unit in units]


@holds()
def training_state(api: Any) -> Any:
    """`training_state` is idle outside, and says so inside of `summon_full_params`."""
    model = in_blocks(api)
    found = [model.training_state.name]
    with model.summon_full_params(model):
        found.append(model.training_state.name)
    found.append(model.training_state.name)
    return found


@holds()
def attributes_of_units(api: Any) -> Any:
    """Each unit says its group, its rank, its device and its options."""
    model = in_blocks(api)
    return [
        (
            unit.rank,
            unit.world_size,
            str(unit.compute_device),
            unit.process_group is model.process_group,
            unit.sharding_strategy.name,
            str(unit.mixed_precision),
        )
        for unit in model.fsdp_modules(model)
    ]


@holds()
def unit_flag(api: Any) -> Any:
    """`hasattr` of a unit is false for what no unit has."""
    model = in_blocks(api)
    found = {name: hasattr(model, name) for name in ("process_group", "nothing", "blocks", "_up")}
    assert found == {"process_group": True, "nothing": False, "blocks": True, "_up": False}
    return found


@holds()
def enumerations(api: Any) -> Any:
    """The enumerations have FSDP1's members, in their order."""
    kinds = ("ShardingStrategy", "BackwardPrefetch", "StateDictType", "OptimStateKeyType")
    holder = {**vars(api.fully_sharded_data_parallel), **vars(api)}
    return {kind: [(m.name, m.value) for m in holder[kind]] for kind in kinds}


@holds()
def option_classes(api: Any) -> Any:
    """The classes of options have FSDP1's fields and defaults."""
    classes = [
        api.CPUOffload,
        api.MixedPrecision,
        api.FullStateDictConfig,
        api.ShardedStateDictConfig,
        api.LocalStateDictConfig,
        api.FullOptimStateDictConfig,
        api.ShardedOptimStateDictConfig,
        api.LocalOptimStateDictConfig,
    ]
    return [repr(cls()) for cls in classes]


@holds()
def public_names(api: Any) -> Any:
    """Every public name of torch's package and of its modules is there."""
    import torch.distributed.fsdp as theirs

    def public(module: Any) -> set[str]:
        return {name for name in vars(module) if not name.startswith("_")} & set(
            getattr(module, "__all__", vars(module))
        )

    missing = {f"fsdp.{name}" for name in theirs.__all__ if not hasattr(api, name)}
    for part in ("api", "fully_sharded_data_parallel", "sharded_grad_scaler"):
        module = getattr(theirs, part)
        missing |= {
            f"{part}.{name}"
            for name in public(module)
            if getattr(getattr(module, name), "__module__", "").startswith("torch.distributed.fsdp")
            and not hasattr(getattr(api, part), name)
        }
    policies = [name for name in theirs.wrap.__all__ if not hasattr(api.wrap, name)]
    return sorted(missing), policies


@holds()
def static_methods_on_instances(api: Any) -> Any:
    """Methods that take the model as an argument can be called on a model."""
    model = in_blocks(api)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    train(model, optimizer)
    state = model.optim_state_dict(model, optimizer)
    optimizer.load_state_dict(model.optim_state_dict_to_load(model, optimizer, state))
    return len(model.fsdp_modules(model)), sorted(state["state"])


@holds()
def moving_to_a_device(api: Any) -> Any:
    """`.to(device)` and `.cpu()` of a model give back the model, which trains."""
    model = in_blocks(api)
    assert model.to("cpu") is model
    assert model.cpu() is model
    return train(model)
