"""What FSDP2 does in the backward of a unit: when its parameters are gathered, and its gradients reduced."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from .torch_private import parameter_groups
from .torch_shown import show_unsharded


def around_backward(
    unit: FSDPModule, before: Callable[[Any], None], after: Callable[..., None]
) -> None:
    """Calls ``before(group)`` when the backward of the unit starts, and ``after(group, reduce)`` in place of ``reduce()``.

    That frees its parameters and reduces its gradients. The modules show what is gathered, as activation checkpointing runs
    their forward again. Unreduced gradients add up in the type that they are computed in: FSDP2 casts to ``reduce_dtype``.
    """

    def pre_backward(group: Any, own: Callable[..., None], *args: Any) -> None:
        before(group)
        show_unsharded(group)
        own(*args)

    for group in parameter_groups(unit):
        for parameter in group.fsdp_params:
            parameter.to_accumulated_grad_if_needed = lambda: None
        # torch >= 2.15 has autograd cast them instead, by what this method sets
        group._set_unsharded_grad_dtypes = partial(_keep_gradient_dtypes, group)
        group.pre_backward = partial(pre_backward, group, group.pre_backward)
        group.post_backward = partial(after, group, group.post_backward)


def _keep_gradient_dtypes(group: Any, defer_upcast: bool) -> None:
    for parameter in group.fsdp_params:
        unsharded = _unsharded(parameter)
        if unsharded is not None and unsharded.requires_grad:
            unsharded.grad_dtype = unsharded.dtype


def has_unreduced_gradient(parameter: Any) -> bool:
    """Whether a backward left a gradient that has not been reduced."""
    return getattr(_unsharded(parameter), "grad", None) is not None


def drop_unreduced_gradient(parameter: Any) -> None:
    """Forgets what :func:`has_unreduced_gradient` asks for."""
    if has_unreduced_gradient(parameter):
        _unsharded(parameter).grad = None


def complete_gradients(group: Any) -> list[str]:
    """Gives zeros to the parameters without a gradient, so that every rank reduces the same ones; returns their names.

    torch would add up gradients of different parameters; from 2.13 on it can fill in zeros
    (``set_reduce_scatter_unused_params``).
    """
    completed = []
    for parameter in group.fsdp_params:
        unsharded = _unsharded(parameter)
        if unsharded is not None and unsharded.requires_grad and unsharded.grad is None:
            unsharded.grad = torch.zeros_like(unsharded)
            completed.append(str(getattr(parameter, "_param_fqn", None)))
    return completed


def _unsharded(parameter: Any) -> Any:
    return getattr(parameter, "_unsharded_param", None)
