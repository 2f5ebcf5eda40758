"""FSDP1's functions for the state dicts of optimizers, on ``fully_shard`` models.

Unlike the functions of ``torch.distributed.checkpoint.state_dict`` they follow the type that is set on the model
(:func:`set_state_dict_type`), load nothing themselves, and do not step an optimizer that has no state yet. No state
dict that is given is changed, and no two tensors of a result are the same memory. All ranks must call them.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from . import optimizer_keys
from .api import StateDictType
from .forms import or_fsdp1s
from .gather import apart_from, current_device, gather, is_sharded, offloaded, sharded_as
from .materialize import broadcast_tensors
from .state_dict_types import default_settings, get_state_dict_type

StateDict = dict[str, Any]


@or_fsdp1s
def optim_state_dict(
    model: nn.Module,
    optim: torch.optim.Optimizer,
    optim_state_dict: StateDict | None = None,
    group: dist.ProcessGroup | None = None,
) -> StateDict:
    """The state of ``optim``, or ``optim_state_dict``, by parameter names, of the type that is set on ``model``.

    With ``rank0_only`` the first rank of ``group`` has the result, the others an empty dict.
    """
    settings = get_state_dict_type(model) or default_settings()
    full = settings.state_dict_type == StateDictType.FULL_STATE_DICT
    offload = settings.optim_state_dict_config.offload_to_cpu
    return _save(model, optim, full, _rank0_only(model), group, offload, optim_state_dict)


@or_fsdp1s
def full_optim_state_dict(
    model: nn.Module,
    optim: torch.optim.Optimizer,
    optim_input: Iterable[Any] | None = None,
    rank0_only: bool = True,
    group: dist.ProcessGroup | None = None,
) -> StateDict:
    """The whole state of ``optim`` on the CPU, whatever type is set; ``optim_input`` is not needed."""
    return _save(model, optim, True, rank0_only, group)


@or_fsdp1s
def sharded_optim_state_dict(
    model: nn.Module, optim: torch.optim.Optimizer, group: dist.ProcessGroup | None = None
) -> StateDict:
    """The state of ``optim`` as DTensors on the CPU, for ``torch.distributed.checkpoint``."""
    return _save(model, optim, False, False, group)


@or_fsdp1s
def optim_state_dict_to_load(
    model: nn.Module,
    optim: torch.optim.Optimizer,
    optim_state_dict: StateDict,
    is_named_optimizer: bool = False,
    load_directly: bool = False,
    group: dist.ProcessGroup | None = None,
) -> StateDict:
    """What ``optim.load_state_dict`` takes, of a state dict by parameter names, which may come from FSDP1.

    States may be whole tensors or DTensors; parameters without a state get none, as before their first step. With
    ``rank0_only`` set on the model for optimizers, only the first rank of ``group`` needs ``optim_state_dict``. The
    three objects may come in any order, as FSDP1's own order changed (torch 2.1).

    Raises ValueError for a state dict that does not fit the optimizer: in its keys, groups or shapes.
    """
    model, optim, optim_state_dict = _in_order(model, optim, optim_state_dict)
    source = None
    if _rank0_only(model):
        source = _FromRank0(group)
    groups = optimizer_keys.grouped_parameters(model, optim)
    result = _to_load(model, groups, optim_state_dict, source, is_named_optimizer)
    if load_directly:
        optim.load_state_dict(result)
    return result


@or_fsdp1s
def shard_full_optim_state_dict(
    full_optim_state_dict: StateDict,
    model: nn.Module,
    optim_input: Iterable[Any] | None = None,
    optim: torch.optim.Optimizer | None = None,
) -> StateDict:
    """:func:`optim_state_dict_to_load` of a whole state dict that every rank has.

    With neither ``optim_input`` nor ``optim`` it is of the model's parameters, in the groups of the state dict.
    """
    return _to_load(model, _groups(model, optim, optim_input), full_optim_state_dict)


@or_fsdp1s
def scatter_full_optim_state_dict(
    full_optim_state_dict: StateDict | None,
    model: nn.Module,
    optim_input: Iterable[Any] | None = None,
    optim: torch.optim.Optimizer | None = None,
    group: dist.ProcessGroup | None = None,
) -> StateDict:
    """:func:`shard_full_optim_state_dict` where only the first rank of ``group`` has it."""
    groups = _groups(model, optim, optim_input)
    return _to_load(model, groups, full_optim_state_dict or {}, _FromRank0(group))


@or_fsdp1s
def flatten_sharded_optim_state_dict(
    sharded_optim_state_dict: StateDict, model: nn.Module, optim: torch.optim.Optimizer
) -> StateDict:
    """:func:`optim_state_dict_to_load` of what :func:`sharded_optim_state_dict` gives."""
    groups = optimizer_keys.grouped_parameters(model, optim)
    return _to_load(model, groups, sharded_optim_state_dict)


def _groups(
    model: nn.Module, optim: torch.optim.Optimizer | None, optim_input: Iterable[Any] | None
) -> list[list[nn.Parameter]] | None:
    if optim is None and optim_input is None:
        return None
    return optimizer_keys.grouped_parameters(model, optim, optim_input)


def _rank0_only(model: nn.Module) -> bool:
    settings = get_state_dict_type(model) or default_settings()
    return bool(getattr(settings.optim_state_dict_config, "rank0_only", False))


def _in_order(*given: Any) -> tuple[nn.Module, Any, StateDict]:
    model = next((each for each in given if isinstance(each, nn.Module)), None)
    state = next((each for each in given if isinstance(each, dict)), {})
    optim = next((each for each in given if each is not model and each is not state), None)
    if model is None or not hasattr(optim, "param_groups"):
        kinds = ", ".join(type(each).__name__ for each in given)
        raise ValueError(f"expected a model, an optimizer and its state dict, not {kinds}")
    return model, optim, state


def _save(
    model: nn.Module,
    optim: torch.optim.Optimizer,
    full: bool,
    rank0_only: bool,
    group: dist.ProcessGroup | None,
    offload: bool = True,
    states: StateDict | None = None,
) -> StateDict:
    """``states``, or those of ``optim``, by names: whole or as DTensors. Called by all ranks."""
    keep = not rank0_only or dist.get_rank(group) == 0
    states = optim.state_dict() if states is None else states
    parameters = [p for group in optimizer_keys.grouped_parameters(model, optim) for p in group]
    names = optimizer_keys.names_of(model)
    if not names.keys() >= set(parameters):
        raise ValueError(
            "the optimizer has parameters that the model does not: create it after the model is "
            "sharded, with the model's parameters alone"
        )

    def name(key: Any) -> Any:
        if isinstance(key, str):
            return optimizer_keys.as_saved(key)
        return names[parameters[key]] if key in range(len(parameters)) else key

    def convert(value: torch.Tensor) -> torch.Tensor:
        result = value
        if isinstance(value, DTensor) and (full or not is_sharded(value)):
            result = gather(value)  # by all ranks, also those that keep nothing
        return apart_from(offloaded(result) if offload else result, value)

    state = {name(key): each for key, each in states["state"].items()}
    _check_keys(state, set(names.values()), group)
    saved: StateDict = {"state": {}}
    for key in sorted(state, key=str):  # in the same order on all ranks, as they gather together
        converted = _mapped(state[key], convert)
        if keep:
            saved["state"][key] = converted
    if "param_groups" in states:
        saved["param_groups"] = [
            {**copy.deepcopy(each), "params": [name(key) for key in each["params"]]}
            for each in states["param_groups"]
        ]
    return saved if keep else {}


def _check_keys(state: StateDict, names: set[str], group: dist.ProcessGroup | None) -> None:
    """Warns of what is no parameter's, and raises what FSDP1 raises where ranks would gather different states."""
    for key in state.keys() - names:
        warnings.warn(
            f"Found a optim state, {key}, that FSDP cannot process. FSDP "
            "will directly copy everything to the returned state_dict. In "
            "most cases, this is a user-defined state that is not "
            "associated with any particular parameter. Another possible "
            "case is this state is managed by TorchRec. Otherwise, there may "
            " be a mismatched assumption of optim_state_dict of this mode.",
            stacklevel=5,
        )
    own = sorted(
        key
        for key in state.keys() & names
        if any(isinstance(value, DTensor) for value in state[key].values())
    )
    ranks: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(ranks, own, group)
    if any(each != ranks[0] for each in ranks):
        every = set().union(*ranks)
        raise RuntimeError(
            "FSDP currently requires each rank to have at least the optimizer states needed by rank 0's "
            "optimizer but some ranks are missing some of those states"
            + "".join(
                f"\nRank {rank} is missing states for the parameters: {sorted(lost)}"
                for rank, each in enumerate(ranks)
                if (lost := every - {*each})
            )
        )


def _to_load(
    model: nn.Module,
    groups: list[list[nn.Parameter]] | None,
    saved: StateDict,
    source: _FromRank0 | None = None,
    by_name: bool = False,
) -> StateDict:
    """What an optimizer of ``groups`` (None: those of ``saved``) loads of ``saved``, keyed by numbers or ``by_name``.

    With ``source`` only its first rank needs ``saved``.
    """
    if source is not None:
        saved = source.outline(saved)
    if "state" not in saved:
        raise ValueError(
            "the optimizer's state dict has no 'state': ranks that have none need rank0_only=True, "
            "or scatter_full_optim_state_dict"
        )
    if groups is None:
        groups = optimizer_keys.saved_groups(model, saved)
    keys: dict[nn.Parameter, Any] = {
        p: number for number, p in enumerate(p for group in groups for p in group)
    }
    if by_name:
        keys = {p: name for name, p in model.named_parameters() if p in keys}
    known = optimizer_keys.named(model)
    owners = {name: p for name, p in known.items() if p in keys}
    states = {}
    for name in sorted(saved["state"], key=str):
        if isinstance(name, str) and optimizer_keys.clean(name) not in known:
            warnings.warn(
                f"{name!r} is not the name of a parameter: its state is loaded unchanged",
                stacklevel=4,
            )
            states[name] = _mapped(saved["state"][name], torch.clone)
            continue
        owner = _owner(name, owners)

        def convert(value: torch.Tensor, name: str = name, owner: Any = owner) -> torch.Tensor:
            return _as_held(value, name, owner, source)

        states[keys[owner]] = _mapped(saved["state"][name], convert)
    loaded: StateDict = {"state": states}
    if "param_groups" in saved:
        loaded["param_groups"] = _groups_to_load(saved["param_groups"], groups, owners, keys)
    return loaded


def _as_held(
    value: torch.Tensor, name: str, owner: nn.Parameter, source: _FromRank0 | None
) -> torch.Tensor:
    """A saved state as the optimizer holds it: sharded as its parameter is."""
    if value.dim() == 0:
        return value.clone()  # such as `step`, which the parameters of FSDP1's unit share
    if source is not None:
        value = source.fetch(value, owner)
    if value.dim() == owner.dim() and value.shape != owner.shape:
        raise ValueError(
            f"a state of {name!r} has the shape {tuple(value.shape)} and the parameter "
            f"{tuple(owner.shape)}: it may be the shard of one rank"
        )
    if isinstance(owner, DTensor):
        return apart_from(sharded_as(value, owner), value)
    return apart_from(value.to(owner.device), value)


def _owner(name: Any, owners: dict[str, nn.Parameter]) -> nn.Parameter:
    if not isinstance(name, str):
        raise ValueError(
            "the optimizer's state dict is keyed by numbers: give it the parameters' names with "
            "rekey_optim_state_dict(state_dict, OptimStateKeyType.PARAM_NAME, model, optim=...)"
        )
    owner = owners.get(optimizer_keys.clean(name))
    if owner is None:
        raise ValueError(
            f"the optimizer's state dict contains {name!r}, which the optimizer does not have"
        )
    return owner


def _groups_to_load(
    saved: list[StateDict],
    groups: list[list[nn.Parameter]],
    owners: dict[str, nn.Parameter],
    keys: dict[nn.Parameter, Any],
) -> list[StateDict]:
    """The saved options of each of the optimizer's groups, found by its parameters.

    As under FSDP1 parameters outside of its units that the state dict does not know are in no group: the program adds them.
    """
    of = {_owner(name, owners): n for n, group in enumerate(saved) for name in group["params"]}
    groups = [
        known
        for group in groups
        if (known := [p for p in group if p in of or isinstance(p, DTensor)]) or not group
    ]
    if len(saved) != len(groups):
        raise ValueError(
            f"the optimizer's state dict has {len(saved)} groups of parameters, the optimizer "
            f"{len(groups)}"
        )
    loaded = []
    for number, group in enumerate(groups):
        found, *more = {of.get(parameter) for parameter in group} or {number}
        if more or found is None:
            raise ValueError(
                f"group {number} of the optimizer is not in its state dict: create the same groups as before"
            )
        options = copy.deepcopy(saved[found])
        loaded.append({**options, "params": [keys[parameter] for parameter in group]})
    return loaded


class _FromRank0:
    """A state dict that only the first rank of a group has; its tensors travel one by one."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group

    def outline(self, saved: StateDict) -> StateDict:
        """On all ranks ``saved``, with meta tensors in place of what is fetched later."""
        first = dist.get_rank(self.group) == 0
        sent: list[StateDict] = [{}]
        if first:
            sent = [_mapped(saved, lambda value: value.to("meta") if value.dim() else value.cpu())]
        if self.group is None:
            source = 0
        else:
            source = dist.get_global_rank(self.group, 0)
        dist.broadcast_object_list(sent, source, self.group)
        if first:
            return saved
        return sent[0]

    def fetch(self, value: torch.Tensor, owner: nn.Parameter) -> torch.Tensor:
        """``value`` of the first rank, where ``owner`` communicates."""
        device = owner.device
        if isinstance(owner, DTensor):
            device = current_device(owner.device_mesh.device_type)
        if value.is_meta:
            fetched = torch.empty_like(value, device=device)
        else:
            fetched = value.to(device)
        broadcast_tensors([fetched], self.group)
        return fetched


def _mapped(value: Any, convert: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """``value`` with the tensors in nested dicts, lists and tuples converted, in a fixed order."""
    if isinstance(value, torch.Tensor):
        return convert(value)
    if isinstance(value, dict):
        return {key: _mapped(value[key], convert) for key in sorted(value, key=str)}
    if type(value) in (list, tuple):
        return type(value)(_mapped(each, convert) for each in value)
    return copy.deepcopy(value)
