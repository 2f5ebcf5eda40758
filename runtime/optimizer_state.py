"""FSDP1's functions for the state dicts of optimizers, on ``fully_shard`` models.

Where a program shows which call is meant, ``torch.distributed.checkpoint.state_dict`` has functions
for it. These follow the type that is set on the model (:func:`set_state_dict_type`), take each of
FSDP1's arguments, and load nothing themselves. As FSDP1's, and unlike torch's, they do not step an
optimizer that has no state yet.

State dicts are keyed by parameter names, those that are to be loaded by the numbers that
``torch.optim`` gives to parameters. No state dict that is given is changed, and no two tensors of
a result are the same memory. A model that is FSDP1's still is given to FSDP1's function.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from .checkpoint_options import StateDictType
from .gather import apart_from, device_of, gather, is_sharded, offloaded, sharded_as
from .optimizer_keys import as_saved, clean, grouped_parameters, named, names_of
from .state_dict_types import get_state_dict_type
from .still_fsdp1 import or_fsdp1s
from .sync import broadcast_tensors

StateDict = dict[str, Any]


@or_fsdp1s
def optim_state_dict(
    model: nn.Module,
    optim: torch.optim.Optimizer,
    optim_state_dict: StateDict | None = None,
    group: dist.ProcessGroup | None = None,
) -> StateDict:
    """The state of ``optim`` by parameter names, of the type that is set on ``model``.

    Must be called by all ranks.

    Args:
        model: the model whose parameters ``optim`` has.
        optim: the optimizer.
        optim_state_dict: what is converted. None: ``optim.state_dict()``.
        group: with ``rank0_only`` the first rank of it has the result, the others an empty dict.
            None: all ranks.
    """
    settings = get_state_dict_type(model)
    return _save(
        model,
        optim,
        optim.state_dict() if optim_state_dict is None else optim_state_dict,
        full=settings.state_dict_type == StateDictType.FULL_STATE_DICT,
        offload=settings.optim_state_dict_config.offload_to_cpu,
        keep=not _rank0_only(model) or dist.get_rank(group) == 0,
    )


@or_fsdp1s
def full_optim_state_dict(
    model: nn.Module,
    optim: torch.optim.Optimizer,
    optim_input: Iterable[Any] | None = None,
    rank0_only: bool = True,
    group: dist.ProcessGroup | None = None,
) -> StateDict:
    """The whole state of ``optim`` on the CPU, whatever type is set; see :func:`optim_state_dict`.

    ``optim_input`` was FSDP1's way to number parameters; the optimizer says so itself.
    """
    keep = not rank0_only or dist.get_rank(group) == 0
    return _save(model, optim, optim.state_dict(), full=True, offload=True, keep=keep)


@or_fsdp1s
def sharded_optim_state_dict(
    model: nn.Module, optim: torch.optim.Optimizer, group: dist.ProcessGroup | None = None
) -> StateDict:
    """The state of ``optim`` as DTensors on the CPU, for ``torch.distributed.checkpoint``."""
    return _save(model, optim, optim.state_dict(), full=False, offload=True, keep=True)


@or_fsdp1s
def optim_state_dict_to_load(
    model: nn.Module,
    optim: torch.optim.Optimizer,
    optim_state_dict: StateDict,
    is_named_optimizer: bool = False,
    load_directly: bool = False,
    group: dist.ProcessGroup | None = None,
) -> StateDict:
    """What ``optim.load_state_dict`` takes, of a state dict by parameter names.

    States may be whole tensors or DTensors; parameters without a state get none, as before their
    first step. With ``rank0_only`` set on the model for optimizers, only the first rank needs
    ``optim_state_dict``. Must be called by all ranks. The three objects may come in any order, as
    FSDP1's own order changed (torch 2.1).

    Args:
        model: the model whose parameters ``optim`` has.
        optim: the optimizer that will load the result.
        optim_state_dict: as :func:`optim_state_dict` and its like give it; the checkpoint may come
            from FSDP1.
        is_named_optimizer: the optimizer's own state dict is keyed by names.
        load_directly: load the result, too.
        group: with ``rank0_only``, the ranks whose first one has the state dict. None: all ranks.

    Raises:
        ValueError: a state dict without states, keyed by numbers, with a name that the optimizer
            has no parameter of, without one of its parameters, with groups other than the
            optimizer's, or with a state of another shape than its parameter.
    """
    model, optim, optim_state_dict = _in_order(model, optim, optim_state_dict)
    source = _FromRank0(group) if _rank0_only(model) else None
    groups = grouped_parameters(model, optim)
    result = _load(model, groups, optim_state_dict, source, is_named_optimizer)
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

    ``optim_input`` is what the optimizer was made of; with neither it nor ``optim`` that is
    ``model.parameters()``.
    """
    return _load(model, grouped_parameters(model, optim, optim_input), full_optim_state_dict)


@or_fsdp1s
def scatter_full_optim_state_dict(
    full_optim_state_dict: StateDict | None,
    model: nn.Module,
    optim_input: Iterable[Any] | None = None,
    optim: torch.optim.Optimizer | None = None,
    group: dist.ProcessGroup | None = None,
) -> StateDict:
    """:func:`shard_full_optim_state_dict` where only the first rank of ``group`` has it."""
    groups = grouped_parameters(model, optim, optim_input)
    return _load(model, groups, full_optim_state_dict or {}, _FromRank0(group))


@or_fsdp1s
def flatten_sharded_optim_state_dict(
    sharded_optim_state_dict: StateDict, model: nn.Module, optim: torch.optim.Optimizer
) -> StateDict:
    """:func:`optim_state_dict_to_load` of what :func:`sharded_optim_state_dict` gives."""
    return _load(model, grouped_parameters(model, optim), sharded_optim_state_dict)


def _rank0_only(model: nn.Module) -> bool:
    return bool(getattr(get_state_dict_type(model).optim_state_dict_config, "rank0_only", False))


def _in_order(*given: Any) -> tuple[nn.Module, Any, StateDict]:
    model = next((each for each in given if isinstance(each, nn.Module)), None)
    state = next((each for each in given if isinstance(each, dict)), {})
    optim = next((each for each in given if each is not model and each is not state), None)
    if model is None or not hasattr(optim, "param_groups"):
        kinds = ", ".join(type(each).__name__ for each in given)
        raise ValueError(f"expected a model, an optimizer and its state dict, not {kinds}")
    return model, optim, state


@torch.no_grad()
def _save(
    model: nn.Module,
    optim: torch.optim.Optimizer,
    states: StateDict,
    *,
    full: bool,
    offload: bool,
    keep: bool,
) -> StateDict:
    parameters = [p for group in grouped_parameters(model, optim) for p in group]
    names = names_of(model)
    if not names.keys() >= set(parameters):
        raise ValueError(
            "the optimizer has parameters that the model does not: create it after the model is "
            "sharded, with the model's parameters alone"
        )

    def name(key: Any) -> str:
        return as_saved(key) if isinstance(key, str) else names[parameters[key]]

    def convert(value: torch.Tensor) -> torch.Tensor:
        result = value
        if isinstance(value, DTensor) and (full or not is_sharded(value)):
            result = gather(value)  # by all ranks, also those that keep nothing
        return apart_from(offloaded(result) if offload else result, value)

    # In the same order on all ranks, as they gather together.
    state = {name(key): each for key, each in states["state"].items()}
    saved: StateDict = {"state": {}, "param_groups": []}
    for key in sorted(state):
        converted = _mapped(state[key], convert)
        if keep:
            saved["state"][key] = converted
    if not keep:
        return {}
    for group in states.get("param_groups", []):
        own = {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}
        saved["param_groups"].append({**own, "params": [name(key) for key in group["params"]]})
    return saved


@torch.no_grad()
def _load(
    model: nn.Module,
    groups: list[list[nn.Parameter]],
    saved: StateDict,
    source: _FromRank0 | None = None,
    by_name: bool = False,
) -> StateDict:
    """What an optimizer of ``groups`` loads of ``saved``."""
    if source is not None:
        saved = source.outline(saved)
    if "state" not in saved:
        raise ValueError(
            "the optimizer's state dict has no 'state': ranks that have none need rank0_only=True, "
            "or scatter_full_optim_state_dict"
        )
    keys: dict[nn.Parameter, Any] = {
        p: number for number, p in enumerate(p for group in groups for p in group)
    }
    if by_name:
        keys = {p: name for p, name in names_of(model).items() if p in keys}
    owners = {name: p for name, p in named(model).items() if p in keys}
    states = {}
    for name in sorted(saved["state"], key=str):
        parameter = _owner(name, owners)

        def convert(value: torch.Tensor, name: str = name, owner: Any = parameter) -> torch.Tensor:
            if value.dim() == 0:
                return value.clone()  # such as `step`, which the parameters of FSDP1's unit share
            if source is not None:
                value = source.fetch(value, owner)
            if value.dim() == owner.dim() and value.shape != owner.shape:
                raise ValueError(
                    f"a state of {name!r} has the shape {tuple(value.shape)} and the parameter "
                    f"{tuple(owner.shape)}: was it saved of one rank's shard?"
                )
            if isinstance(owner, DTensor):
                return apart_from(sharded_as(value, owner), value)
            return apart_from(value.to(owner.device), value)

        states[keys[parameter]] = _mapped(saved["state"][name], convert)
    loaded: StateDict = {"state": states}
    if "param_groups" in saved:
        loaded["param_groups"] = _groups_to_load(saved["param_groups"], groups, owners, keys)
    return loaded


def _owner(name: Any, owners: dict[str, nn.Parameter]) -> nn.Parameter:
    if not isinstance(name, str):
        raise ValueError(
            "the optimizer's state dict is keyed by numbers: give it the parameters' names with "
            "rekey_optim_state_dict(state_dict, OptimStateKeyType.PARAM_NAME, model, optim=...)"
        )
    owner = owners.get(clean(name))
    if owner is None:
        raise ValueError(f"the optimizer's state dict names {name!r}, which the optimizer has not")
    return owner


def _groups_to_load(
    saved: list[StateDict],
    groups: list[list[nn.Parameter]],
    owners: dict[str, nn.Parameter],
    keys: dict[nn.Parameter, Any],
) -> list[StateDict]:
    """The saved options of each of the optimizer's groups, found by its parameters."""
    if len(saved) != len(groups):
        raise ValueError(
            f"the optimizer's state dict has {len(saved)} groups of parameters, the optimizer "
            f"{len(groups)}"
        )
    of = {_owner(name, owners): i for i, group in enumerate(saved) for name in group["params"]}
    names = {parameter: name for name, parameter in owners.items()}
    loaded = []
    for number, group in enumerate(groups):
        missing = [p for p in group if p not in of]
        if missing:
            raise ValueError(
                f"the optimizer's state dict does not have its parameter {names[missing[0]]!r}"
            )
        found = {of[parameter] for parameter in group} or {number}
        if len(found) > 1:
            raise ValueError(
                f"group {number} of the optimizer is in several groups of its state dict: make the "
                "same groups as before"
            )
        options = copy.deepcopy({k: v for k, v in saved[found.pop()].items() if k != "params"})
        loaded.append({**options, "params": [keys[parameter] for parameter in group]})
    return loaded


class _FromRank0:
    """A state dict that only the first rank of a group has; its tensors travel one by one."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group

    def outline(self, saved: StateDict) -> StateDict:
        """On all ranks ``saved``, with meta tensors in place of what is fetched later."""
        sent = [saved]
        if dist.get_rank(self.group) != 0:
            sent = [{}]
        elif saved:
            sent = [_mapped(saved, lambda value: value.to("meta") if value.dim() else value.cpu())]
        source = 0 if self.group is None else dist.get_global_rank(self.group, 0)
        dist.broadcast_object_list(sent, source, self.group)
        if dist.get_rank(self.group) == 0:
            return saved
        return sent[0]

    def fetch(self, value: torch.Tensor, owner: nn.Parameter) -> torch.Tensor:
        """``value`` of the first rank, where ``owner`` communicates."""
        device = device_of(owner.device_mesh) if isinstance(owner, DTensor) else owner.device
        fetched = torch.empty_like(value, device=device) if value.is_meta else value.to(device)
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
