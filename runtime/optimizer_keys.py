"""The names of an optimizer's parameters, and state dicts that are keyed by them or by numbers."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from .api import OptimStateKeyType
from .forms import or_fsdp1s
from .torch_shown import resharded

# What activation checkpointing and FSDP1 put into names, and keep out of state dicts.
_WRAPPERS = ("_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")
_COMPILED = "_orig_mod."


@or_fsdp1s
def rekey_optim_state_dict(
    optim_state_dict: dict[str, Any],
    optim_state_key_type: OptimStateKeyType,
    model: nn.Module,
    optim_input: Iterable[Any] | None = None,
    optim: torch.optim.Optimizer | None = None,
) -> dict[str, Any]:
    """``optim_state_dict`` keyed by names, or by numbers as ``torch.optim`` has it; itself if it is keyed so already.

    A checkpoint of ``optimizer.state_dict()`` has numbers, which mean something only with the order of the
    optimizer's parameters: those of ``optim_input`` or ``optim``, else ``model.parameters()``.
    """
    kinds = {type(key) for key in optim_state_dict["state"]}
    if len(kinds) > 1:
        raise ValueError("the optimizer's state dict mixes names and numbers as keys")
    wanted = str if optim_state_key_type == OptimStateKeyType.PARAM_NAME else int
    if kinds <= {wanted}:
        return optim_state_dict
    parameters = [p for group in grouped_parameters(model, optim, optim_input) for p in group]
    names = names_of(model)
    if wanted is str:
        keys: Mapping[Any, Any] = {n: names[p] for n, p in enumerate(parameters) if p in names}
    else:
        numbers = {parameter: number for number, parameter in enumerate(parameters)}
        keys = {name: numbers[p] for name, p in named(model).items() if p in numbers}

    def new(key: Any) -> Any:
        known = clean(key) if isinstance(key, str) else key
        if known not in keys:
            raise ValueError(f"{key!r} is the key of no parameter of the optimizer")
        return keys[known]

    groups = copy.deepcopy(optim_state_dict["param_groups"])
    for group in groups:
        group["params"] = sorted(new(key) for key in group["params"])
    return {
        "state": {new(key): state for key, state in optim_state_dict["state"].items()},
        "param_groups": groups,
    }


def names_of(model: nn.Module) -> dict[nn.Parameter, str]:
    """The name of each parameter; the first one of a shared parameter, as in FSDP1's state dicts."""
    return {p: as_saved(name) for name, p in resharded(model).named_parameters()}


def named(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameter of each name, as :func:`clean` has it; a shared one has several."""
    return {clean(name): p for name, p in resharded(model).named_parameters(remove_duplicate=False)}


def as_saved(name: str) -> str:
    """``name`` as it is in state dicts; there too, what ``torch.compile`` returned has its own."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def clean(name: str) -> str:
    """``name`` as it is in the model without wrappers, compiled or not."""
    return as_saved(name).replace(_COMPILED, "")


def grouped_parameters(
    model: nn.Module,
    optim: torch.optim.Optimizer | None = None,
    optim_input: Iterable[Any] | None = None,
) -> list[list[nn.Parameter]]:
    """The parameters of each of an optimizer's groups; see :func:`rekey_optim_state_dict`."""
    groups: list[Any]
    if optim_input is not None:
        groups = list(optim_input)
    elif optim is not None:
        groups = list(optim.param_groups)
    else:
        groups = list(resharded(model).parameters())
    if groups and not isinstance(groups[0], Mapping):
        groups = [{"params": groups}]
    return [list(_listed(group["params"])) for group in groups]


def saved_groups(model: nn.Module, states: Mapping[str, Any]) -> list[list[nn.Parameter]]:
    """The groups of an optimizer that FSDP1 is not given: those of its states, each in the model's order."""
    owners = named(model)
    groups = states.get("param_groups") or [{"params": owners}]
    names = [{clean(str(key)) for key in group["params"]} for group in groups]
    return [[p for name, p in owners.items() if name in group] for group in names]


def _listed(parameters: Any) -> Iterator[Any]:
    """A group may be one parameter alone, and an optimizer may be made of pairs with names."""
    if isinstance(parameters, torch.Tensor):
        parameters = [parameters]
    for each in parameters:
        yield each[1] if isinstance(each, tuple) else each
