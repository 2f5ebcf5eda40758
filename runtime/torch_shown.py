"""Which parameters the modules of a unit show: the sharded ones, or those that are gathered."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule

from .torch_private import parameter_groups, units_of


def resharded(module: nn.Module) -> nn.Module:
    """``module`` with the parameters that have gradients and states: in FSDP2 an evaluation leaves whole ones in place."""
    for unit in units_of(module):
        # Where they are shown, as under FSDP1, what is gathered stays, and the next forward takes it as it is.
        if not all(map(_shows_sharded, parameter_groups(unit))):
            FSDPModule.reshard(unit)
    return module


def _shows_sharded(group: Any) -> bool:
    infos = [(p.sharded_param, p._module_info) for p in group.fsdp_params]
    return all(info.module._parameters.get(info.param_name) is shown for shown, info in infos)


def show_sharded(group: Any, whole_attributes: bool = False) -> None:
    """Registers the sharded parameters of a unit that stays gathered after forward.

    FSDP2 leaves the gathered ones registered, which an optimizer, ``zero_grad()`` or a moving average
    would take for the model's. What is gathered is kept for backward or the next forward, as in FSDP1,
    which does not see changes in between either (``_runtime_utils.py``, ``_post_forward_reshard``).

    With ``whole_attributes`` a parameter that is asked for by its name, ``model.head.weight``, is the gathered one until a
    backward, a forward or a reshard, as in FSDP1 (``_flat_param.py``, ``_use_sharded_flat_param``): gradients reach it.
    """
    if not group.is_unsharded:
        return
    _hide_attributes(group)
    for parameter in group.fsdp_params:
        parameter._setattr_on_modules(parameter.sharded_param)
    if whole_attributes:
        # A loss that reads them has gradients before the unit's backward begins.
        keep = vars(group).get("_set_unsharded_grad_dtypes")
        if keep is not None:
            keep(defer_upcast=False)
        for parameter in group.fsdp_params:
            for module, name in _places(parameter):
                vars(module)[name] = parameter._unsharded_param
        group._memory_shown = _memory(group)
        group._to_sharded = partial(_to_sharded, group)


def shows_gathered(group: Any) -> bool:
    """Whether the parameters that are asked for by their names are the gathered ones."""
    return "_to_sharded" in vars(group)


def shows_other_data(group: Any) -> bool:
    """Whether ``p.data = x`` gave other memory to one of those parameters."""
    return shows_gathered(group) and group._memory_shown != _memory(group)


def _memory(group: Any) -> list[int]:
    gathered = [parameter._unsharded_param for parameter in group.fsdp_params]
    return [getattr(each, "_local_tensor", each).data_ptr() for each in gathered]


def show_unsharded(group: Any) -> None:
    """Takes :func:`show_sharded` back."""
    if group.is_unsharded:
        _hide_attributes(group)
        for parameter in group.fsdp_params:
            parameter._setattr_on_modules(parameter.unsharded_param)


def _to_sharded(group: Any) -> None:
    """``group._to_sharded()``, after which nothing is gathered any more."""
    _hide_attributes(group)
    group._to_sharded()


def _hide_attributes(group: Any) -> None:
    """Takes the gathered parameters out of the attributes of modules, where they stand before the registered ones."""
    if vars(group).pop("_to_sharded", None) is None:
        return
    for parameter in group.fsdp_params:
        for module, name in _places(parameter):
            if vars(module).get(name) is parameter._unsharded_param:
                del vars(module)[name]


def _places(parameter: Any) -> list[tuple[nn.Module, str]]:
    """The modules that have a parameter, with its name there."""
    info = parameter._module_info
    shared = zip(info.shared_modules, info.shared_param_names, strict=True)
    return [(info.module, info.param_name), *shared]
