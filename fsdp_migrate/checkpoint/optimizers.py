"""The states of optimizers: named by parameter or numbered, and the `step` that FSDP1 lets parameters share."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

import torch

from fsdp_migrate.checkpoint.parts import Parts
from fsdp_migrate.checkpoint.trees import Place, like, mappings

Optimizer = Mapping[Any, Any]


def optimizers(tree: Any) -> Iterator[tuple[Place, Optimizer]]:
    """All optimizers' state dicts."""
    return ((path, m) for path, m in mappings(tree) if is_optimizer(m))


def is_optimizer(tree: Any) -> bool:
    """Whether it is the state dict of an optimizer: `state` and `param_groups`."""
    return (
        isinstance(tree, Mapping)
        and isinstance(tree.get("state"), Mapping)
        and isinstance(tree.get("param_groups"), list)
        and all(isinstance(group, Mapping) for group in tree["param_groups"])
    )


def is_numbered(optimizer: Optimizer) -> bool:
    """Whether parameters are numbers: `optimizer.state_dict()`, outside FSDP's functions. In DCP they are digits."""
    keys = [*optimizer["state"]]
    for group in optimizer["param_groups"]:
        keys += group["params"]
    return bool(keys) and all(isinstance(k, int) or str(k).isdigit() for k in keys)


def sharing_step(optimizer: Optimizer) -> int:
    """How many parameters share their `step` tensor with another: the optimizer would advance it once for each."""
    owners = Counter[int]()
    for state in optimizer["state"].values():
        if isinstance(state, Mapping) and _in_memory(step := state.get("step")):
            owners[step.untyped_storage().data_ptr()] += 1
    return sum(count for count in owners.values() if count > 1)


def unshared(optimizer: Optimizer) -> dict[Any, Any]:
    """The same with a `step` of its own for every parameter."""
    state = dict(optimizer["state"])
    for key, values in state.items():
        if isinstance(values, Mapping) and _in_memory(values.get("step")):
            state[key] = like(values, {**values, "step": values["step"].clone()}.items())
    return like(optimizer, {**optimizer, "state": state}.items())


def _in_memory(step: Any) -> TypeGuard[torch.Tensor]:
    return isinstance(step, torch.Tensor) and not isinstance(step, Parts)
