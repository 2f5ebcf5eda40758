"""The few places where FSDP2 keeps something that it has no public name for.

Each function copes with the attribute being absent, as the names differ between releases of torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule


def units_of(module: nn.Module) -> list[FSDPModule]:
    """The units in the tree of ``module``, itself included."""
    return [m for m in module.modules() if isinstance(m, FSDPModule)]


def parameter_groups(unit: FSDPModule) -> list[Any]:
    """What FSDP2 gathers and reduces together; a unit without parameters has none."""
    state = unit._get_fsdp_state()
    if hasattr(state, "_fsdp_param_groups"):  # torch >= 2.12
        return list(state._fsdp_param_groups)
    group = getattr(state, "_fsdp_param_group", None)
    return [] if group is None else [group]


def keeps_unsharded_after_forward(unit: FSDPModule) -> bool:
    """Whether ``unit`` was sharded with ``reshard_after_forward=False``; a root may just be so."""
    if getattr(unit._get_fsdp_state(), "_auto_reshard_after_forward", True):
        return False
    groups = parameter_groups(unit)
    return bool(groups) and all(getattr(g, "post_forward_mesh_info", g) is None for g in groups)


def syncs_gradients(unit: FSDPModule) -> bool:
    """Whether the next backward reduces the gradients of ``unit``."""
    return all(getattr(g, "reduce_grads", True) for g in parameter_groups(unit))


def set_cast_forward_inputs(unit: FSDPModule, cast: bool) -> None:
    """Changes ``MixedPrecisionPolicy.cast_forward_inputs`` of a unit that is sharded already."""
    state: Any = unit._get_fsdp_state()
    if hasattr(state, "_mp_policy"):
        state._mp_policy = dataclasses.replace(state._mp_policy, cast_forward_inputs=cast)


def parameters_of(unit: FSDPModule) -> Iterator[Any]:
    """FSDP2's records of the parameters that ``unit`` manages."""
    for group in parameter_groups(unit):
        yield from getattr(group, "fsdp_params", [])


def initialize(unit: FSDPModule) -> None:
    """Makes ``unit`` a root, and what is below it part of that, unless a forward did so already.

    FSDP1's ``summon_full_params`` does the same with its ``_lazy_init``.
    """
    lazy_init = getattr(unit._get_fsdp_state(), "_lazy_init", None)
    if lazy_init is not None:
        lazy_init()
