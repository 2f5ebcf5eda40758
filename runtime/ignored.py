"""Modules and parameters that the caller keeps out of sharding."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import NamedTuple

from torch import nn
from torch.distributed.fsdp import FSDPModule


class Ignored(NamedTuple):
    """``modules`` with all their descendants, and every parameter of theirs or given by itself."""

    modules: set[nn.Module]
    parameters: set[nn.Parameter]


def resolve_ignored(
    root: nn.Module,
    ignored_modules: Iterable[nn.Module] | None = None,
    ignored_states: Iterable[nn.Parameter] | Iterable[nn.Module] | None = None,
) -> Ignored:
    """Reads FSDP1's two arguments as ``_init_ignored_module_states`` does (``_init_utils.py``)."""
    if ignored_modules is not None and ignored_states is not None:
        raise ValueError(
            "Pass either ignored_modules or ignored_states, not both: ignored_states takes "
            "modules too"
        )
    modules: list[nn.Module] = []
    parameters: set[nn.Parameter] = set()
    if ignored_states is not None:
        states: list[object] = list(ignored_states)
        if all(isinstance(state, nn.Parameter) for state in states):
            parameters = {state for state in states if isinstance(state, nn.Parameter)}
        else:
            modules = _only_modules("ignored_states", states)
    elif ignored_modules is not None:
        modules = _only_modules("ignored_modules", list(ignored_modules))

    for module in modules:
        if isinstance(module, FSDPModule):
            raise ValueError(
                "ignored_modules holds a module that is sharded already: leave sharded modules out"
            )
    closure = {
        child
        for module in modules
        for child in module.modules()
        if not isinstance(child, FSDPModule)
    }
    if root in closure:
        warnings.warn(
            "ignored_modules holds the model itself: none of its parameters is sharded",
            stacklevel=3,
        )
    for module in closure:
        parameters.update(module.parameters())
    return Ignored(closure, parameters)


def _only_modules(argument: str, states: list[object]) -> list[nn.Module]:
    modules = [state for state in states if isinstance(state, nn.Module)]
    if len(modules) != len(states):
        types = sorted({type(state).__name__ for state in states})
        raise ValueError(
            f"{argument} expects modules only (ignored_states: or parameters only) but got {types}"
        )
    return modules
