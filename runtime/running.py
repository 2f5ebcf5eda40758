"""A unit's forward, and what FSDP1 does and checks at the first use of a root."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from . import torch_private
from .api import MixedPrecision, TrainingState, as_mixed_precision
from .attributes import attributes_of, given_attributes
from .materialize import own_modules
from .precision import autocasts, cast_anew, cast_own_buffers
from .quirks import acted, keeps
from .summon import is_summoned, whole_parameters
from .torch_private import parameter_groups, units_of
from .writeback import forget_data, write_back

_prepared: WeakSet[nn.Module] = WeakSet()
_running: WeakSet[nn.Module] = WeakSet()


class Unit:
    """What units have in common that run as FSDP1's: the bridge's, and those that are sharded in place."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError(
            "cannot copy a model that is sharded: copy it before that, or load its state dict into "
            "another one"
        )

    def apply(self, fn: Callable[[nn.Module], None]) -> Any:
        """Calls a function on every module below with its parameters whole, and on this one."""
        if not keeps(self, "whole_in_apply"):  # type: ignore[arg-type]
            return super().apply(fn)  # type: ignore[misc]
        assert_idle(self)
        acted(self, "whole_in_apply", "apply")  # type: ignore[arg-type]
        with whole_parameters([self]):
            return super().apply(fn)  # type: ignore[misc]


@torch_private.run_outside_of_graphs
def run_gathered(
    unit: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """``forward`` with the parameters of ``unit`` gathered before and freed after, unless that is inside of the same unit's:
    what a module calls of itself was not FSDP1's wrapper."""
    begun = _before_forward(unit, args, kwargs)
    if begun is None:
        return forward(*args, **kwargs)
    args, kwargs, kept_casts = begun
    try:
        output = forward(*args, **kwargs)
    finally:
        _end(unit, kept_casts)
    return _after_forward(unit, output)


@torch_private.run_eagerly
def _before_forward(unit: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The inputs, and whether autocast kept its casts; None where all is gathered already."""
    if unit in _running or is_summoned(unit):  # then they may be changed
        return None
    groups = parameter_groups(unit)
    write_back(unit, groups)
    forget_data(groups)
    prepare(unit)
    if torch_private.is_gathered(groups) and not torch_private.is_running(unit):
        acted(unit, "sharded_after_forward", "forward")
    made = torch_private.pre_forward(unit, groups, args, kwargs)
    nested = [each for each in (*args, *kwargs.values()) if isinstance(each, list | dict | tuple)]
    # FSDP1's root made copies, too.
    if nested and not torch_private.copies_inputs(unit) and keeps(unit, "list_inputs"):
        if any(isinstance(each, list | dict) for each in nested):
            acted(unit, "list_inputs", type(unit).__name__)
        made = torch_private.in_place_of((args, kwargs), made)
    kept_casts = None
    if keeps(unit, "autocast_cache"):
        if autocasts():
            acted(unit, "autocast_cache", type(unit).__name__)
        kept_casts = cast_anew()
    _running.add(unit)
    return *made, kept_casts


@torch_private.run_eagerly
def _end(unit: nn.Module, kept_casts: bool | None) -> None:
    _running.discard(unit)
    if kept_casts is not None:
        torch.set_autocast_cache_enabled(kept_casts)


@torch_private.run_eagerly
def _after_forward(unit: nn.Module, output: Any) -> Any:
    if not torch.is_grad_enabled() and torch_private.is_outermost_forward(unit):
        acted(unit, "sharded_after_forward", "forward without gradients")
    if unit in _first_forward:
        _first_forward.pop(unit)()
    return torch_private.post_forward(unit, output, keeps(unit, "sharded_after_forward"))


def prepare(root: Any) -> None:
    """What FSDP1 does, and checks, at the first use of a root (``_runtime_utils.py``, ``_lazy_init``)."""
    if root in _prepared:
        return
    for unit in units_of(root):
        write_back(unit, parameter_groups(unit))
    torch_private.initialize(root)
    units: list[Any] = [unit for unit in units_of(root) if isinstance(unit, Unit)]
    # A unit that was sharded with FSDP2's own arguments has these.
    given = {unit: known for unit in units if (known := given_attributes(unit)) is not None}
    for name in ("_use_orig_params", "limit_all_gathers"):
        values = {each[name] for each in given.values()}
        if len(values) > 1:
            raise ValueError(f"Expects one homogeneous value for {name} but got {values}")
    for unit in units:
        _prepared.add(unit)
        if unit in given:
            _cast_inputs(unit, given[unit], is_root=unit is root)
        cast_buffers_of(unit, attributes_of(unit))
        _step_in_backward(unit, given.get(unit))
    _gather_for_training(units)
    if any(each["forward_prefetch"] for each in given.values()):
        _first_forward[root] = prefetch_in_order(root, units)


def _cast_inputs(unit: Any, attributes: Mapping[str, Any], is_root: bool) -> None:
    precision = as_mixed_precision(attributes["mixed_precision"]) or MixedPrecision()
    cast = bool(precision.cast_forward_inputs and parameter_groups(unit))
    cast |= is_root and bool(torch_private.is_root(unit)) and precision.cast_root_forward_inputs
    torch_private.set_cast_forward_inputs(unit, cast)


def _step_in_backward(unit: Any, given: Mapping[str, Any] | None) -> None:
    """Steps the optimizers of ``_apply_optimizer_in_backward`` when gradients are reduced: no backward reaches a shard."""

    def step(parameter: Any) -> None:
        for optimizer in parameter._in_backward_optimizers:
            optimizer.step()
        parameter.grad = None

    for parameter in unit.parameters():
        if isinstance(parameter, DTensor) and hasattr(parameter, "_in_backward_optimizers"):
            if given is not None and not given["_use_orig_params"]:
                raise RuntimeError(
                    "FSDP optimizer in backward only supported with use_orig_params=True!"
                )
            parameter.register_post_accumulate_grad_hook(step)  # type: ignore[no-untyped-call]


def _gather_for_training(units: list[Any]) -> None:
    """Gathers units once where their first forward is in inference mode.

    FSDP2 keeps what its first gathering allocates, and inference tensors cannot be trained.
    """
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(mode=False):
            for unit in units:
                unit.unshard()
                unit.reshard()


def cast_buffers_of(unit: nn.Module, attributes: Mapping[str, Any]) -> None:
    """``buffer_dtype`` for what is in no unit below."""
    precision = as_mixed_precision(attributes["mixed_precision"])
    if precision is not None and precision.buffer_dtype is not None:
        for module in own_modules(unit, attributes["_ignored_modules"]):
            cast_own_buffers(module, precision.buffer_dtype)


def prefetch_in_order(root: nn.Module, units: list[Any]) -> Callable[[], None]:
    """FSDP1's ``forward_prefetch=True``: each unit gathers the next one's parameters before its own computation.

    As in FSDP1 the order is that of the first forward of ``root``, at whose end the function that this returns is called.
    """
    order: list[Any] = [root] if parameter_groups(root) else []  # type: ignore[arg-type]

    def add(unit: Any, args: Any) -> None:
        if unit not in order and parameter_groups(unit):
            order.append(unit)

    def finish() -> None:
        for handle in handles:
            handle.remove()
        for unit, following in pairwise(order):
            unit.set_modules_to_forward_prefetch([following])

    handles = [unit.register_forward_pre_hook(add) for unit in units if unit is not root]
    return finish


_first_forward: WeakKeyDictionary[nn.Module, Callable[[], None]] = WeakKeyDictionary()
"""What ends that of a root."""


def check_is_root(unit: Any) -> bool:
    """Whether ``unit`` is the outermost one; settles that if no forward has."""
    prepare(unit)
    return bool(torch_private.is_root(unit))


def training_state(unit: Any) -> TrainingState:
    """What ``unit`` is doing."""
    if is_summoned(unit):
        return TrainingState.SUMMON_FULL_PARAMS
    if torch_private.is_running(unit):
        return TrainingState.FORWARD_BACKWARD
    return TrainingState.IDLE


def assert_idle(unit: Any) -> None:
    """Raises ValueError inside a forward, a backward or ``summon_full_params``."""
    state = training_state(unit)
    if state != TrainingState.IDLE:
        raise ValueError(
            f"expected to be in states {[TrainingState.IDLE]} but current state is {state}"
        )
