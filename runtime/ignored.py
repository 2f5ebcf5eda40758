"""Modules and parameters that the caller keeps out of sharding."""

import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import nn
from torch.distributed.fsdp import FSDPModule

from .attributes import given_attributes


class Ignored(NamedTuple):
    """``modules`` with all their descendants, and every parameter of theirs or given by itself."""

    modules: set[nn.Module]
    parameters: set[nn.Parameter]


def resolve_ignored(
    root: nn.Module,
    ignored_modules: Iterable[nn.Module] | None = None,
    ignored_states: Iterable[nn.Parameter] | Iterable[nn.Module] | None = None,
) -> Ignored:
    """Reads FSDP1's two arguments as ``_init_ignored_module_states`` does (``_init_utils.py``).

    What units inside ``root`` ignore is ignored here, too.
    """
    if ignored_modules is not None and ignored_states is not None:
        raise ValueError(
            "Cannot pass both ignored_modules and ignored_states at the same time. Please just pass "
            "ignored_states."
        )
    modules: list[Any] = list(ignored_modules or ())
    states: list[Any] = list(ignored_states or ())
    parameters: set[nn.Parameter] = set()
    if not all(isinstance(module, nn.Module) for module in modules):
        raise ValueError(
            f"ignored_modules expects nn.Module list elements but got types {_types(modules)}"
        )
    if all(isinstance(state, nn.Parameter) for state in states):
        parameters.update(states)
    elif all(isinstance(state, nn.Module) for state in states):
        modules = states
    else:
        raise ValueError(
            "ignored_states expects all nn.Parameter or all nn.Module list elements but got types "
            f"{_types(states)}"
        )
    if any(isinstance(module, FSDPModule) for module in modules):
        raise ValueError("`ignored_modules` should not include FSDP modules")
    below = [child for module in modules for child in module.modules()]
    closure = {child for child in below if not isinstance(child, FSDPModule)}
    if root in closure:
        warnings.warn(
            "Trying to ignore the top-level module passed into the FSDP constructor itself will "
            f"result in all parameters being ignored and is not well-supported: {root}",
            stacklevel=5,
        )
    for module in root.modules():
        if isinstance(module, FSDPModule):
            given = given_attributes(module) or {}
            closure.update(given.get("_ignored_modules", ()))
            parameters.update(given.get("_ignored_params", ()))
    for module in closure:
        parameters.update(module.parameters())
    return Ignored(closure, parameters)


def _types(values: list[Any]) -> list[type]:
    return sorted({type(value) for value in values}, key=repr)
