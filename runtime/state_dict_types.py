"""What a model's own ``state_dict()`` gives, and its ``load_state_dict()`` takes: FSDP1's types.

Units of the bridge have FSDP1's default from the start, models of ``fully_shard`` DTensors until a type is set.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from . import api, tensor_parallel
from .attributes import attributes_of
from .forms import WRAPPED, or_fsdp1s, unit_of
from .gather import gather, is_first, is_sharded, memory, offloaded, sharded_as
from .materialize import own_modules
from .notes import notes_of
from .optimizer_keys import as_saved
from .refusals import UnsupportedInFSDP2
from .running import Unit
from .torch_private import torch_asks_for_state, units_of
from .writeback import tell_of_change

PREFIX = f"{WRAPPED}."


@or_fsdp1s
@contextmanager
def state_dict_type(
    module: nn.Module,
    state_dict_type: api.StateDictType,
    state_dict_config: api.StateDictConfig | None = None,
    optim_state_dict_config: api.OptimStateDictConfig | None = None,
) -> Iterator[None]:
    """:func:`set_state_dict_type` for as long as the body runs, also if it fails."""
    before = [(notes := notes_of(each), notes.settings) for each in _modules_of_units(module)]
    set_state_dict_type(module, state_dict_type, state_dict_config, optim_state_dict_config)
    try:
        yield
    finally:
        for notes, settings in before:
            notes.settings = settings


@or_fsdp1s
def set_state_dict_type(
    module: nn.Module,
    state_dict_type: api.StateDictType,
    state_dict_config: api.StateDictConfig | None = None,
    optim_state_dict_config: api.OptimStateDictConfig | None = None,
) -> api.StateDictSettings:
    """From now on ``state_dict()`` and ``load_state_dict()`` of ``module`` do as FSDP1's did; returns the settings until
    now.

    The units in ``module`` carry the type, so that it also holds for a wrapper around them and for each of them
    alone.

    - ``FULL_STATE_DICT``: whole tensors, gathered one by one; all ranks must call. With ``rank0_only`` the first rank of
      each shard group has them, the others only what no rank shards.
    - ``SHARDED_STATE_DICT``: DTensors. Where nothing is sharded (NO_SHARD, one rank) whole tensors.
    - ``LOCAL_STATE_DICT`` may be set, but both raise UnsupportedInFSDP2 under it, unless nothing is sharded.
    - ``load_state_dict()`` takes whole tensors and DTensors in the others, and ``assign=True``, on every rank.

    As under FSDP1 the values are copies, except for buffers, and the functions of
    ``torch.distributed.checkpoint.state_dict`` give what their options say. A module without units is left as it is;
    FSDP1's context failed there.
    """
    found = _settings_of(module)
    if any(each.state_dict_type != found[0].state_dict_type for each in found):
        raise AssertionError("All FSDP modules should have the same state_dict_type.")
    settings = _settings(state_dict_type, state_dict_config, optim_state_dict_config)
    for each in _modules_of_units(module):
        _follow(each, settings)
    if found:
        return found[0]
    return api.StateDictSettings(None, None, None)  # type: ignore[arg-type]


def follow_default_type(unit: nn.Module) -> None:
    """Gives a new unit what FSDP1's have from the start: whole tensors in and out."""
    settings = default_settings()
    for each in own_modules(unit, ()):
        _follow(each, settings)


def _follow(module: nn.Module, settings: api.StateDictSettings) -> None:
    notes = notes_of(module)
    if not notes.follows_types:
        notes.follows_types = True
        module.register_load_state_dict_pre_hook(_load)  # type: ignore[no-untyped-call]
        if isinstance(module, FSDPModule):
            module.register_state_dict_pre_hook(_begin)  # type: ignore[no-untyped-call]
            module.register_state_dict_post_hook(_save)  # type: ignore[no-untyped-call]
            tensor_parallel.follow(module)
    notes.settings = settings


def default_settings() -> api.StateDictSettings:
    """What holds where no type was set."""
    return _settings(api.StateDictType.FULL_STATE_DICT, None, None)


@or_fsdp1s
def get_state_dict_type(module: nn.Module) -> api.StateDictSettings | None:
    """The settings of the units in ``module``, which must be the same; None where it has no units."""
    found = _settings_of(module)
    for settings in found:
        if settings != found[0]:
            raise AssertionError(
                "All FSDP modules must have the same state dict settings."
                f"Got {settings} and {found[0]}."
            )
    if found:
        return found[0]
    return None


def _settings_of(module: nn.Module) -> list[api.StateDictSettings]:
    return [notes_of(unit).settings or default_settings() for unit in units_of(module)]


_CONFIGS = {
    api.StateDictType.FULL_STATE_DICT: (api.FullStateDictConfig, api.FullOptimStateDictConfig),
    api.StateDictType.LOCAL_STATE_DICT: (api.LocalStateDictConfig, api.LocalOptimStateDictConfig),
    api.StateDictType.SHARDED_STATE_DICT: (
        api.ShardedStateDictConfig,
        api.ShardedOptimStateDictConfig,
    ),
}


def _settings(kind: Any, config: Any, optim_config: Any) -> api.StateDictSettings:
    """The settings that arguments ask for, of this project's classes or torch's."""
    kind = api.StateDictType(kind)
    given = {"state_dict_config": config, "optim_state_dict_config": optim_config}
    for (argument, chosen), expected in zip(given.items(), _CONFIGS[kind], strict=True):
        if chosen is None:
            given[argument] = expected()
        elif type(chosen).__name__ != expected.__name__:
            raise RuntimeError(f"Expected {argument} of type {expected} but got {type(chosen)}")
    return api.StateDictSettings(kind, **given)


def _modules_of_units(module: nn.Module) -> list[nn.Module]:
    return [each for unit in units_of(module) for each in own_modules(unit, ())]


def _begin(unit: nn.Module, *_: Any) -> None:
    tell_of_change(unit_of(unit))  # before FSDP2's own hook frees what is gathered


def _save(unit: nn.Module, state_dict: dict[str, Any], prefix: str, metadata: Any) -> None:
    """Makes what a unit and the units below it gave into what the type says.

    By values, not by names: other hooks may have given them names of their own by now.
    """
    unit = unit_of(unit)
    settings = notes_of(unit).settings
    if settings is None or torch_asks_for_state():
        return
    if any(isinstance(value, DTensor) for value in state_dict.values()):
        _count(unit, settings, "saved")
    config = settings.state_dict_config
    attributes = attributes_of(unit) if isinstance(unit, Unit) else {}
    if attributes.get("sharding_strategy") is api.ShardingStrategy.NO_SHARD:
        config = api.FullStateDictConfig()  # as FSDP1 has it, whatever was asked for
        warnings.warn(
            "When using ``NO_SHARD`` for ``ShardingStrategy``, full_state_dict will be returned.",
            stacklevel=4,
        )
    full = settings.state_dict_type == api.StateDictType.FULL_STATE_DICT
    offload = config.offload_to_cpu
    keep = not getattr(config, "rank0_only", False) or _is_first(unit)
    ignored = attributes.get("_ignored_params", ())
    kept = {memory(parameter) for parameter in ignored}
    own = {memory(parameter) for parameter in unit.parameters()} - kept
    for key in [key for key in state_dict if key.startswith(prefix)]:
        value = state_dict[key]
        _refuse_local(settings, value)
        if isinstance(value, DTensor) and (full or not is_sharded(value)):
            value = gather(value)  # by all ranks, also those that keep nothing
        if not isinstance(value, torch.Tensor):
            continue
        if not keep and memory(value) not in kept:
            del state_dict[key]
        else:
            if offload:
                value = offloaded(value)
            state_dict[key] = value.detach().clone() if memory(value) in own else value


def _load(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Makes what is given for the parameters of one module alone into shards like theirs.

    Module by module, so that a rank never holds more of them than one module's, and after the
    module's own hooks, which may know older names.
    """
    settings = notes_of(module).settings
    if settings is None:
        return
    if torch.Tensor in map(type, state_dict.values()):
        _count(module, settings, "loaded")
    if isinstance(module, FSDPModule):
        FSDPModule.reshard(module)  # a forward may have left parameters gathered
    for name, parameter in module._parameters.items():
        value = state_dict.get(prefix + name)
        if not torch_asks_for_state():
            _refuse_local(settings, parameter)
        if isinstance(parameter, DTensor) and isinstance(value, torch.Tensor):
            state_dict[prefix + name] = sharded_as(value, parameter)


def _count(unit: nn.Module, settings: api.StateDictSettings, what: str) -> None:
    """That a program relies on FSDP1's default, and has not set a type itself."""
    notes = notes_of(unit)
    if notes.is_outermost(unit) and settings == default_settings():
        notes.acted("whole_state_dicts", what)


def _refuse_local(settings: api.StateDictSettings, value: Any) -> None:
    is_local = settings.state_dict_type == api.StateDictType.LOCAL_STATE_DICT
    if is_local and isinstance(value, DTensor) and is_sharded(value):
        raise UnsupportedInFSDP2(
            "FSDP334",
            "LOCAL_STATE_DICT is FSDP1's flat parameters, which FSDP2 does not have",
            "load such a checkpoint with FSDP1 on the same number of ranks, and save it as FULL_STATE_DICT "
            "or SHARDED_STATE_DICT",
        )


def _is_first(unit: nn.Module) -> bool:
    """Whether this rank is the first of those that share the parameters of ``unit``, or there are none to share."""
    own = [p for each in own_modules(unit, ()) for p in each.parameters(recurse=False)]
    sharded = next((p for p in own if isinstance(p, DTensor)), None)
    return sharded is None or is_first(sharded)


# The name of the wrapped module, which is in the names of parameters and in no state dict #


def leave_out_of_state_dicts(unit: nn.Module) -> None:
    """Gives ``state_dict()`` and ``load_state_dict()`` of ``unit`` the names of the wrapped module."""
    unit.register_state_dict_post_hook(_without_prefix)  # type: ignore[no-untyped-call]
    unit.register_load_state_dict_pre_hook(_with_prefix)  # type: ignore[no-untyped-call]
    unit.register_load_state_dict_post_hook(_clean_keys)  # type: ignore[no-untyped-call]


def _without_prefix(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    _rename(state, prefix + PREFIX, prefix)


def _with_prefix(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    _rename(state, prefix, prefix + PREFIX)


def _clean_keys(module: nn.Module, incompatible: Any) -> None:
    for keys in incompatible:
        keys[:] = [as_saved(key) for key in keys]


def _rename(state: dict[str, Any], old: str, new: str) -> None:
    for key in [key for key in state if key.startswith(old)]:
        state[new + key.removeprefix(old)] = state.pop(key)
