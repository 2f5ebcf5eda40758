"""How a unit that is sharded itself runs its forward: FSDP2's hooks, which have no public name, and what they do to inputs."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils._pytree import tree_leaves

from . import torch_private
from .torch_private import apply_to_tensors, is_root, precision_policy, units_of
from .torch_shown import show_unsharded


class _Plain(nn.Module):
    """The class of a unit while ``fully_shard`` runs, which derives one from it and FSDPModule: it must not be one yet."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def shard(unit: nn.Module, **options: Any) -> None:
    """``fully_shard`` of ``unit``, an FSDPModule by its class, which it keeps.

    Its forward calls :func:`pre_forward` and :func:`post_forward` itself, as FSDP1's does, so that
    ``unit.forward(x)`` gathers and hooks run outside of that.
    """
    cls = type(unit)
    unit.__class__ = _Plain
    try:
        fully_shard(unit, **options)
    finally:
        unit.__class__ = cls
    remove_hooks(unit)


def remove_hooks(unit: Any) -> None:
    """Takes FSDP2's forward hooks off ``unit``, whose forward calls :func:`pre_forward` and :func:`post_forward`."""
    state = unit._get_fsdp_state()
    state._pre_forward_hook_handle.remove()
    state._post_forward_hook_handle.remove()


def pre_forward(unit: Any, groups: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Gathers the parameters of ``unit``; the inputs, moved and cast."""
    for group in groups:
        show_unsharded(group)
    given = _leaves(args, kwargs)
    state = unit._get_fsdp_state()
    if state._training_state.name == "PRE_BACKWARD" and not torch_private.is_recomputed(unit):
        # In a reentrant checkpoint it may still be that of an earlier use, and torch would not reduce this one's gradients.
        state._training_state = type(state._training_state).IDLE
    gather = _undecorated(state._pre_forward)
    args, kwargs = gather(unit, args, kwargs)
    for before, after in zip(given, _leaves(args, kwargs), strict=True):
        if after is not before and _may_change(before) and not _may_change(after):
            # A view by FSDP2's autograd node: torch refuses to change it in place, as it would FSDP1's input.
            torch._C._autograd._set_creation_meta(after, torch._C._autograd.CreationMeta.DEFAULT)
    return args, kwargs


def _leaves(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterable[Any]:
    values = (*args, *kwargs.values())
    only_tensors = all(isinstance(each, torch.Tensor) for each in values)  # as most units are given
    if only_tensors:
        return values
    return tree_leaves(values)


def copies_inputs(unit: Any) -> bool:
    """Whether the inputs of ``unit`` were moved or cast."""
    policy = precision_policy(unit)
    return bool(is_root(unit) or (policy.cast_forward_inputs and policy.param_dtype))


def in_place_of(given: Any, made: Any) -> Any:
    """Inputs as FSDP2 made them, in the lists and dictionaries that were given: a unit may add to these."""
    if isinstance(given, list | dict) and made is not given:
        keys: Iterable[Any] = range(len(given))
        if isinstance(given, dict):
            keys = given.keys()
        for key in keys:
            given[key] = in_place_of(given[key], made[key])
        return given
    if type(given) is tuple:
        return tuple(map(in_place_of, given, made))
    return made


def _may_change(tensor: object) -> bool:
    """Whether autograd lets a module change its input in place; only some views may not be."""
    if not isinstance(tensor, torch.Tensor) or not tensor._is_view():
        return True
    meta: Any = torch._C._autograd
    return bool(meta._get_creation_meta(tensor) == meta.CreationMeta.DEFAULT)


def is_outermost_forward(unit: Any) -> bool:
    """Whether the forward that ``unit`` is in began with it."""
    state = unit._get_fsdp_state()
    return state._state_ctx.iter_forward_root is state


def post_forward(unit: Any, output: Any, show: Callable[[Any], None] | None) -> Any:
    """Frees the parameters of ``unit`` if its strategy says so; the output, ready for backward.

    When the outermost unit is done, ``show`` is called for each unit below, which decides what its modules show.
    """
    state = unit._get_fsdp_state()
    recomputed = torch_private.is_recomputed(unit)
    output = _undecorated(state._post_forward)(unit, None, output)
    if recomputed:
        return output
    _hook_dataclasses(state, output)
    if show is not None and state._state_ctx.iter_forward_root is None:
        # A unit begins a forward also in a checkpoint that is computed again: the others stay as they are then.
        below = units_of(unit)
        if state._is_root:
            below = [each._modules[0] for each in state._state_ctx.all_states]
        for each in below:
            show(each)
    return output


def _undecorated(method: Any) -> Any:
    """A method of FSDP2 without its decorator, which keeps ``torch.compile`` out of each call anew, as is done already."""
    function = getattr(method, "__wrapped__", None)
    if function is None:
        return method
    return partial(function, method.__self__)


def _hook_dataclasses(state: Any, output: Any) -> None:
    """Prepares the backward of tensors in dataclasses, as FSDP1 does and FSDP2 only where it has ``collect_grad_tensors``.

    A unit whose outputs are all in dataclasses would get no gradients, without an error.
    """
    has_them = hasattr(sys.modules[type(state).__module__], "collect_grad_tensors")
    if has_them or not torch.is_grad_enabled():
        return

    def hook(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.requires_grad:
            tensor.register_hook(state._pre_backward)  # type: ignore[no-untyped-call]
        return tensor

    for leaf in tree_leaves(output):
        if dataclasses.is_dataclass(leaf):
            apply_to_tensors(hook, leaf)
