"""The states of optimizers: named by parameter or numbered, and the `step` that FSDP1 lets parameters share."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import torch

from fsdp_migrate.checkpoint.errors import Refused
from fsdp_migrate.checkpoint.parts import Parts
from fsdp_migrate.checkpoint.trees import Place, like, mappings

Shape = tuple[int, ...]
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
    keys = [*optimizer["state"], *(p for g in optimizer["param_groups"] for p in g["params"])]
    return bool(keys) and all(isinstance(k, int) or str(k).isdigit() for k in keys)


def sharing_step(optimizer: Optimizer) -> int:
    """How many parameters share their `step` tensor with another: the optimizer would advance it once for each."""
    owners = Counter(
        step.untyped_storage().data_ptr()
        for state in optimizer["state"].values()
        if isinstance(state, Mapping) and _in_memory(step := state.get("step"))
    )
    return sum(count for count in owners.values() if count > 1)


def unshared(optimizer: Optimizer) -> dict[Any, Any]:
    """The same with a `step` of its own for every parameter."""
    state = {
        key: like(values, {**values, "step": values["step"].clone()}.items())
        if isinstance(values, Mapping) and _in_memory(values.get("step"))
        else values
        for key, values in optimizer["state"].items()
    }
    return like(optimizer, {**optimizer, "state": state}.items())


def _in_memory(step: Any) -> TypeGuard[torch.Tensor]:
    return isinstance(step, torch.Tensor) and not isinstance(step, Parts)


def named(optimizer: Optimizer, parameters: Mapping[str, Shape] | None) -> dict[Any, Any]:
    """The same with names for numbers; raises Refused, with the reason, where they cannot be known.

    The param groups have names if the optimizer was built from `named_parameters()` (`param_names`). Otherwise the
    numbers of one group follow the order of the model's parameters, as `Optimizer(model.parameters())` numbers them,
    and so does the model's state dict (`parameters`: names and shapes), among buffers and frozen parameters: the
    names are those that the shapes of the states leave, if there is one way only.
    """
    groups: Sequence[Mapping[Any, Any]] = optimizer["param_groups"]
    numbers = [str(number) for group in groups for number in group["params"]]
    states = {str(key): state for key, state in optimizer["state"].items()}
    if all(len(group.get("param_names") or ()) == len(group["params"]) for group in groups):
        names = [str(name) for group in groups for name in group["param_names"]]
    elif len(groups) > 1:
        raise Refused(
            "its parameters are numbered and in several groups, so that their order is not the model's. "
            "Save it with FSDP.optim_state_dict or get_optimizer_state_dict"
        )
    elif parameters is None:
        raise Refused(
            "its parameters are numbered, and there is not one model in the file that has the names: "
            "give the model's checkpoint with --names-from"
        )
    else:
        names = _matched([_shape(states.get(number)) for number in numbers], parameters)
    name_of = dict(zip(numbers, names, strict=True))
    if len(set(names)) != len(numbers) or not states.keys() <= name_of.keys():
        raise Refused("its states and its param groups do not belong together")
    rest = iter(names)
    new_groups = [
        {key: value for key, value in group.items() if key != "param_names"}
        | {"params": list(itertools.islice(rest, len(group["params"])))}
        for group in groups
    ]
    new_state = {name_of[number]: state for number, state in states.items()}
    return like(optimizer, {**optimizer, "state": new_state, "param_groups": new_groups}.items())


def _shape(state: Any) -> Shape | None:
    """The parameter's shape, where the states that follow it agree."""
    if not isinstance(state, Mapping):
        return None
    shapes = {
        tuple(v.shape) for k, v in state.items() if isinstance(v, torch.Tensor) and k != "step"
    }
    return shapes.pop() if len(shapes) == 1 else None


def _matched(shapes: Sequence[Shape | None], parameters: Mapping[str, Shape]) -> list[str]:
    """The names that fit the shapes in order. There is one way only if the first and the last fit are the same."""
    first = _fit(shapes, list(parameters.items()))
    last = _fit(shapes[::-1], list(parameters.items())[::-1])
    if first is None or last is None:
        raise Refused(
            "its states do not have the shapes of the model's parameters: they are one rank's shards of FSDP1, "
            "or of another model. Save it with FSDP.optim_state_dict or get_optimizer_state_dict"
        )
    if first != last[::-1]:
        raise Refused(
            "its parameters are numbered, and the shapes leave several ways to name them. "
            "Save it with FSDP.optim_state_dict or get_optimizer_state_dict"
        )
    return first


def _fit(shapes: Sequence[Shape | None], names: Sequence[tuple[str, Shape]]) -> list[str] | None:
    found, rest = [], iter(names)
    for shape in shapes:
        name = next((n for n, has in rest if shape is None or has == shape), None)
        if name is None:
            return None
        found.append(name)
    return found
