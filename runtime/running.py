"""A unit's forward, and what FSDP1 does and checks at the first use of a root."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.distributed.distributed_c10d import DebugLevel, get_debug_level
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from . import torch_forward, torch_private, torch_shown
from .api import MixedPrecision, TrainingState, as_mixed_precision
from .attributes import attributes_of, given_attributes
from .gradients import has_gradients
from .materialize import own_modules
from .notes import Notes, notes_of
from .order import Order
from .precision import autocasts, cast_anew, cast_own_buffers
from .summon import whole_parameters
from .torch_private import parameter_groups, units_of
from .unused_forwards import follow
from .writeback import forget_data, require_data_before_forward, write_back


class Unit:
    """What units have in common that run as FSDP1's: the bridge's, and those that are sharded in place."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError(
            "cannot copy a sharded model: copy it before sharding, or load its state dict into "
            "another model"
        )

    def apply(self, fn: Callable[[nn.Module], None]) -> Any:
        """Calls a function on every module below with its parameters whole, and on this one."""
        notes = notes_of(self)  # type: ignore[arg-type]
        if "whole_in_apply" not in notes.quirks:
            return super().apply(fn)  # type: ignore[misc]
        assert_idle(self)
        notes.acted("whole_in_apply", "apply")
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
    notes, args, kwargs, kept_casts = begun
    try:
        output = forward(*args, **kwargs)
    finally:
        _end(notes, kept_casts)
    return _after_forward(unit, notes, output)


@torch_private.run_eagerly
def _before_forward(unit: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The unit's notes, the inputs, and whether autocast kept its casts; None where all is gathered already."""
    notes = notes_of(unit)
    if notes.is_running or notes.is_summoned:  # then they may be changed
        return None
    groups = parameter_groups(unit)
    write_back(unit, groups)
    require_data_before_forward(unit, groups)
    forget_data(groups)
    if not notes.is_prepared:
        prepare(unit)
    if torch_private.is_gathered(groups) and not torch_private.is_running(unit):
        notes.acted("sharded_after_forward", "forward")
        if "sharded_after_forward" in notes.quirks:
            _follow_changes(unit, groups)
    if notes.order is not None and not torch_private.is_recomputed(unit):
        notes.order.forward_begins(unit)
    made = torch_forward.pre_forward(unit, groups, args, kwargs)
    nested = [each for each in (*args, *kwargs.values()) if isinstance(each, list | dict | tuple)]
    # FSDP1's root made copies, too.
    if nested and not torch_forward.copies_inputs(unit) and "list_inputs" in notes.quirks:
        if any(isinstance(each, list | dict) for each in nested):
            notes.acted("list_inputs", type(unit).__name__)
        made = torch_forward.in_place_of((args, kwargs), made)
    kept_casts = None
    if "autocast_cache" in notes.quirks:
        if autocasts():
            notes.acted("autocast_cache", type(unit).__name__)
        kept_casts = cast_anew()
    notes.is_running = True
    return notes, *made, kept_casts


def _follow_changes(unit: Any, groups: list[Any]) -> None:
    """Lets a unit that is gathered already compute with what FSDP1's would: its copies may be older than the parameters."""
    if torch_private.holds_whole(groups):
        FSDPModule.reshard(unit)  # NO_SHARD has no copies
    else:
        torch_private.follow_requires_grad(groups)


@torch_private.run_eagerly
def _end(notes: Notes, kept_casts: bool | None) -> None:
    notes.is_running = False
    if kept_casts is not None:
        torch.set_autocast_cache_enabled(kept_casts)


@torch_private.run_eagerly
def _after_forward(unit: nn.Module, notes: Notes, output: Any) -> Any:
    if not torch.is_grad_enabled() and torch_forward.is_outermost_forward(unit):
        notes.acted("sharded_after_forward", "forward without gradients")
    if notes.end_first_forward is not None:
        notes.end_first_forward()
        notes.end_first_forward = None
    show = None
    if "sharded_after_forward" in notes.quirks:
        show = _show_as_fsdp1
    follow(unit, notes, output)
    return torch_forward.post_forward(unit, output, show)


def _show_as_fsdp1(unit: Any) -> None:
    """After a forward the parameters of ``unit`` are the sharded ones. By its name one may still be whole, for a loss.

    FSDP1's flat parameters left whole tensors in the attributes (``use_orig_params=False``), and a unit that stays gathered
    until backward did so always, unless gradients were off. Where a program has torch's words alone, either may have been.
    """
    original = (given_attributes(unit) or {}).get("_use_orig_params")
    is_whole = torch.is_grad_enabled()
    if original:
        is_whole = is_whole and torch_private.keeps_unsharded_after_forward(unit)
        notes_of(unit).has_gradients = is_whole and has_gradients(unit)
    for group in parameter_groups(unit):
        torch_shown.show_sharded(group, whole_attributes=is_whole or original is False)


def prepare(root: Any) -> None:
    """What FSDP1 does, and checks, at the first use of a root (``_runtime_utils.py``, ``_lazy_init``)."""
    if notes_of(root).is_prepared:
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
        notes_of(unit).is_prepared = True
        if unit in given:
            _cast_inputs(unit, given[unit], is_root=unit is root)
        elif unit is root:
            _cast_as_root(unit)
        cast_buffers_of(unit, attributes_of(unit))
        _step_in_backward(unit, given.get(unit))
    _gather_for_training(units)
    _watch_order(root, units)
    if any(each["forward_prefetch"] for each in given.values()):
        notes_of(root).end_first_forward = prefetch_in_order(root, units)


def _cast_inputs(unit: Any, attributes: Mapping[str, Any], is_root: bool) -> None:
    precision = as_mixed_precision(attributes["mixed_precision"]) or MixedPrecision()
    cast = bool(precision.cast_forward_inputs and parameter_groups(unit))
    cast |= is_root and bool(torch_private.is_root(unit)) and precision.cast_root_forward_inputs
    torch_private.set_cast_forward_inputs(unit, cast)


def _cast_as_root(unit: Any) -> None:
    """Casts the inputs of a unit that is run by itself, ``model.encode(x)``, as the model's are: under FSDP1 it was a root."""
    notes = notes_of(unit)
    outermost: Any = None if notes.outermost is None else notes.outermost()
    if outermost in (None, unit) or "root_inputs" not in notes.quirks:
        return
    policy = torch_private.precision_policy(unit)
    casts = torch_private.precision_policy(outermost).cast_forward_inputs
    if casts and policy.param_dtype is not None and not policy.cast_forward_inputs:
        notes.acted("root_inputs", type(unit).__name__)
        torch_private.set_cast_forward_inputs(unit, True)


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


def _watch_order(root: Any, units: list[Any]) -> None:
    """Compares the order of units where FSDP1 would."""
    if get_debug_level() == DebugLevel.DETAIL:
        order = Order(root, units, attributes_of(root)["process_group"])
        for unit in units:
            notes_of(unit).order = order


def _gather_for_training(units: list[Any]) -> None:
    """Gathers units once where their first forward is in inference mode.

    FSDP2 keeps what its first gathering allocates, and inference tensors cannot be trained.
    """
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(mode=False):
            for unit in units:
                FSDPModule.unshard(unit)
                FSDPModule.reshard(unit)


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
            FSDPModule.set_modules_to_forward_prefetch(unit, [following])

    handles = [unit.register_forward_pre_hook(add) for unit in units if unit is not root]
    return finish


def check_is_root(unit: Any) -> bool:
    """Whether ``unit`` is the outermost one; settles that if no forward has."""
    prepare(unit)
    return bool(torch_private.is_root(unit))


def training_state(unit: Any) -> TrainingState:
    """What ``unit`` is doing."""
    if notes_of(unit).is_summoned:
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
