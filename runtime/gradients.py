"""What FSDP1 leaves in ``p.grad`` after backward: zeros for unused parameters, and unreduced gradients (``no_sync``)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from .changed import say
from .not_reduced import NotReduced
from .notes import Notes, notes_of
from .torch_backward import (
    around_backward,
    complete_gradients,
    drop_unreduced_gradient,
    has_unreduced_gradient,
)
from .torch_private import (
    keeps_unsharded_after_forward,
    parameter_groups,
    syncs_gradients,
    units_of,
)
from .torch_shown import show_sharded
from .unused_forwards import tell_of_unused
from .writeback import require_data_of_forward, write_back


def reduce_as_fsdp1(unit: Any, notes: Notes) -> None:
    """Makes the backward of ``unit`` give the gradients that FSDP1's gives.

    - FSDP1 reduces the gradient of a whole unit: a parameter that took no part has zeros as soon as another of its unit
      has a gradient, also if ranks use different parameters.
    - A gradient that is not reduced yet (``no_sync``) is in ``p.grad``, and gone where the program sets that to None or
      to zero. FSDP2 keeps it to itself: a placeholder shows whether that happened.
    - A unit that stays gathered shows its sharded parameters then.
    """
    average_on_gloo(unit)
    zeros = None
    if "zero_gradients" in notes.quirks:
        zeros = partial(notes.acted, "zero_gradients")

    def before(group: Any) -> None:
        if notes.order is not None:
            notes.order.backward_begins()
        _drop_what_was_cleared(group)
        if notes.has_gradients:
            _tell_of_dropped(unit, notes)
        if not notes.is_summoned:
            write_back(unit, [group])
            require_data_of_forward(unit, group)

    def after(group: Any, reduce: Callable[[], None], *_: Any) -> None:
        tell_of_unused(notes, group)
        _reduce(group, reduce, filled=zeros, shows_sharded=True)

    notes.shows_unreduced = True
    around_backward(unit, before, after)


def average_on_gloo(unit: Any) -> None:
    """Some releases' gloo sums where it is asked to average (pytorch#162338): the sum is divided then."""
    if "cpu" in [group.mesh_info.mesh.device_type for group in parameter_groups(unit)]:
        FSDPModule.set_force_sum_reduction_for_comms(unit, True)


def show_unreduced(unit: Any) -> None:
    """Lets ``zero_grad()`` drop unreduced gradients of a unit of ``fully_shard``; those of the bridge do so anyway."""
    notes = notes_of(unit)
    if not notes.shows_unreduced:
        notes.shows_unreduced = True
        after = partial(_reduce, filled=None, shows_sharded=False)
        around_backward(unit, _drop_what_was_cleared, after)


def has_gradients(unit: Any) -> bool:
    """Whether any parameter of ``unit`` itself has a gradient."""
    return any(
        parameter.sharded_param.grad is not None
        for group in parameter_groups(unit)
        for parameter in group.fsdp_params
    )


def _tell_of_dropped(unit: Any, notes: Notes) -> None:
    """Says so where ``zero_grad()`` came between forward and backward: FSDP1 did not see that until the next forward."""
    notes.has_gradients = False
    if not has_gradients(unit):
        say(
            "FSDP102",
            "gradients were set to None between forward and backward. Under FSDP1 with SHARD_GRAD_OP and "
            "use_orig_params=True they were kept, and new gradients were added to them: call zero_grad() before the forward, "
            "where both do the same",
        )


@contextlib.contextmanager
def no_sync(model: nn.Module) -> Iterator[None]:
    """Skips gradient reduction for the backward passes inside, as FSDP1's ``model.no_sync()`` does.

    Units that stay gathered from forward to backward (SHARD_GRAD_OP) stay so after a skipped backward too
    (``_runtime_utils.py``, ``_should_free_in_backward``). Until gradients are reduced, ``param.grad`` is a
    placeholder for them: ``zero_grad()`` drops them, as under FSDP1, and an optimizer that meets it raises. They add
    up in ``param_dtype``; FSDP2 alone would do so in ``reduce_dtype``.

    A module without units gets its own, such as DistributedDataParallel's; one that has none reduces nothing anyway.
    """
    units = units_of(model)
    if not units:
        with getattr(model, "no_sync", contextlib.nullcontext)():
            yield
        return
    before = [(unit, syncs_gradients(unit), keeps_unsharded_after_forward(unit)) for unit in units]
    try:
        for unit, _, keep_unsharded in before:
            show_unreduced(unit)
            FSDPModule.set_requires_gradient_sync(unit, False, recurse=False)
            if keep_unsharded:
                FSDPModule.set_reshard_after_backward(unit, False, recurse=False)
        yield
    finally:
        for unit, synced, keep_unsharded in before:
            FSDPModule.set_requires_gradient_sync(unit, synced, recurse=False)
            if keep_unsharded:
                FSDPModule.set_reshard_after_backward(unit, synced, recurse=False)


def _drop_what_was_cleared(group: Any) -> None:
    if hasattr(group, "_shows_unreduced") and any(map(_is_cleared, group.fsdp_params)):
        for parameter in group.fsdp_params:
            drop_unreduced_gradient(parameter)


def _reduce(
    group: Any,
    reduce: Callable[[], None],
    *_: Any,
    filled: Callable[..., None] | None,
    shows_sharded: bool,
) -> None:
    """Reduces the gradients of one unit; ``filled`` is told which parameters got zeros, None: none get any."""
    used = any(map(has_unreduced_gradient, group.fsdp_params))
    if group.reduce_grads:
        _hide(group)
        if used and filled is not None:
            filled(*complete_gradients(group))
    reduce()
    if not group.reduce_grads:
        if shows_sharded:
            show_sharded(group)
        if used:
            _show_unreduced(group)


def _show_unreduced(group: Any) -> None:
    """Puts a placeholder, without memory, where FSDP1 has the gradient that is not reduced."""
    group._shows_unreduced = True
    for parameter in group.fsdp_params:
        sharded = parameter.sharded_param
        if not sharded.requires_grad:
            continue
        if sharded.grad is None:
            placeholder = parameter.to_sharded_dtensor(NotReduced.like(sharded.to_local()))
            placeholder._unreduced_of = parameter
            sharded.grad = placeholder
        parameter._shown_version = sharded.grad._version


def _hide(group: Any) -> None:
    """Takes the placeholders away: the gradients are about to be reduced."""
    if not hasattr(group, "_shows_unreduced"):  # as in nearly every step
        return
    del group._shows_unreduced
    for parameter in group.fsdp_params:
        parameter._shown_version = None
        if is_unreduced(parameter.sharded_param.grad):
            parameter.sharded_param.grad = None


def is_unreduced(gradient: torch.Tensor | None) -> bool:
    """Whether ``gradient`` is the placeholder of one that is not reduced."""
    return hasattr(gradient, "_unreduced_of")


def as_fsdp1_shows(gradient: torch.Tensor) -> torch.Tensor:
    """``gradient``, or the whole one of this rank that it stands for."""
    parameter: Any = getattr(gradient, "_unreduced_of", None)
    return gradient if parameter is None else parameter._unsharded_param.grad


def _is_cleared(parameter: Any) -> bool:
    """Whether the program cleared the gradient since :func:`_show_unreduced`."""
    if getattr(parameter, "_shown_version", None) is None:
        return False
    gradient = parameter.sharded_param.grad
    if gradient is None:
        return True
    # `zero_grad(set_to_none=False)` writes to it. Nothing else can write to a placeholder.
    was_written = gradient._version != parameter._shown_version
    return was_written and (is_unreduced(gradient) or not bool(gradient.to_local().any()))


def require_reduced(parameters: list[torch.Tensor]) -> None:
    """Raises RuntimeError where an optimizer would step on gradients that are not reduced."""
    if any(is_unreduced(p.grad) for p in parameters):
        raise RuntimeError(
            "the gradients are not reduced yet: run the last backward() before step() outside no_sync()"
        )
