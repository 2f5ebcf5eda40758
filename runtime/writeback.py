"""Parameters that a program puts in the place of a unit's: FSDP1's writeback (``_flat_param.py``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from . import changed, torch_private, torch_shown
from .attributes import attributes_of, given_attributes
from .gather import shard, sharded_as
from .notes import notes_of
from .older_optimizers import replace_parameters


def write_back(unit: Any, groups: list[Any]) -> None:
    """Makes what was assigned, ``m.weight = nn.Parameter(...)``, a parameter of ``unit``: sharded, or the whole one.

    Raises what FSDP1 raises: RuntimeError for another shape, AssertionError where the unit stays gathered until backward,
    NotImplementedError for one of several names of a shared parameter.
    """
    for parameter, given in _replaced(groups):
        if "data_writes" not in notes_of(unit).quirks:
            return
        former = parameter.sharded_param
        if given.shape != former.shape:
            raise RuntimeError(
                "Cannot writeback when the parameter shape changes\n"
                f"Expects {former.shape} but got {given.shape}"
            )
        if torch_private.keeps_unsharded_after_forward(unit) and torch_private.is_gathered(groups):
            raise _changed_in_between(unit)
        notes_of(unit).acted("data_writes", "m.weight = p")
        new = given
        if _layout(given) != _layout(former):
            value = sharded_as(given.detach().to(former.dtype), former)
            new = nn.Parameter(value, given.requires_grad)
            replace_parameters({given: new})
        parameter._setattr_on_modules(new)
        parameter.reset_sharded_param()


# Of parameters that took `p.data = x` since the last forward of their unit.
_data_taken: set[int] = set()


def note_data(parameter: torch.Tensor) -> None:
    """Remembers that ``p.data = x`` was written to the shards of a parameter."""
    _data_taken.add(id(parameter))


def forget_data(groups: list[Any]) -> None:
    """Before a forward, which computes with what was written."""
    if _data_taken:
        _data_taken.difference_update(id(p.sharded_param) for g in groups for p in g.fsdp_params)


def require_data_of_forward(unit: Any, group: Any) -> None:
    """Raises AssertionError before a backward that would go on with values from before ``p.data = x``, as FSDP1 does."""
    taken = any(id(each.sharded_param) in _data_taken for each in group.fsdp_params)
    if taken or (_has_parameters_by_name(unit) and torch_shown.shows_other_data(group)):
        forget_data([group])
        raise _changed_in_between(unit)


def require_data_before_forward(unit: Any, groups: list[Any]) -> None:
    """The same before another forward, which would compute with what is still gathered."""
    for group in groups:
        if torch_shown.shows_gathered(group) and _has_parameters_by_name(unit):
            require_data_of_forward(unit, group)


def _has_parameters_by_name(unit: Any) -> bool:
    """Whether what a name gives is a parameter; it was a view of a flat one without ``use_orig_params``."""
    known = given_attributes(unit) or {}
    return known.get("_use_orig_params") is not False and "data_writes" in notes_of(unit).quirks


def _changed_in_between(unit: Any) -> AssertionError:
    strategy = attributes_of(unit)["sharding_strategy"].name
    return AssertionError(
        "FSDP does not support changing the parameters between forward and backward for "
        f"HandleShardingStrategy.{strategy}"
    )


@torch.no_grad()
def tell_of_change(unit: Any) -> None:
    """Says so where parameters were changed since a forward left them gathered: FSDP1 showed what it had gathered."""
    gathered = [
        parameter
        for group in torch_private.parameter_groups(unit)
        if group.is_unsharded
        for parameter in group.fsdp_params
    ]
    for parameter in gathered:
        kept = parameter._unsharded_param
        now = parameter.sharded_param
        before = shard(kept, now).to_local()
        if not torch.equal(before, now.to_local().to(before)):
            changed.say(
                "FSDP321",
                "a parameter was changed after a forward without backward, while it was gathered. Under FSDP1 the old value "
                "was shown and saved until the next backward; this is the new one",
            )
            return


def _layout(parameter: Any) -> Any:
    if not isinstance(parameter, DTensor):
        return None
    local = parameter.to_local()
    return parameter.device_mesh, parameter.placements, local.dtype, local.device


def _replaced(groups: list[Any]) -> Iterator[tuple[Any, nn.Parameter]]:
    """The parameters in whose place the program has put another one, with that one.

    Raises NotImplementedError if only some of the names of a shared parameter have it.
    """
    for group in groups:
        for parameter in group.fsdp_params:
            info = parameter._module_info
            first = info.module._parameters.get(info.param_name)
            if first is parameter.sharded_param and not info.shared_modules:
                continue  # as in nearly every step
            shared = zip(info.shared_modules, info.shared_param_names, strict=True)
            held = [first, *[owner._parameters.get(name) for owner, name in shared]]
            own = {id(getattr(parameter, name, None)) for name in _FORMS}
            if all(not isinstance(each, nn.Parameter) or id(each) in own for each in held):
                continue
            if any(each is not first for each in held):
                raise NotImplementedError("Changing shared parameters is not supported yet")
            yield parameter, first


_FORMS = ("sharded_param", "_unsharded_param", "_sharded_post_forward_param")
