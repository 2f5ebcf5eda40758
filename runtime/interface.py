"""FSDP1's methods and attributes, which the bridge has and a model that is sharded in place answers."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from . import optimizer_keys, optimizer_state, state_dict_types, torch_private
from .api import TrainingState
from .attributes import attributes_of
from .clip import clip_grad_norm_
from .forms import or_fsdp1s, uncompiled
from .gradients import no_sync
from .refusals import UnsupportedInFSDP2
from .running import Unit, assert_idle, check_is_root, training_state
from .summon import summon_full_params


class Interface:
    """FSDP1's methods, for units of both forms: ``self`` need not be an instance, and may be a unit that is compiled."""

    # Programs set it to False where a unit was used by itself, as FSDP1's error tells them.
    _is_root = property(torch_private.is_root, torch_private.set_root)

    def check_is_root(self) -> bool:
        """Whether this is the outermost unit; settles that if no forward has."""
        return check_is_root(uncompiled(self))  # type: ignore[arg-type]

    @property
    def training_state(self) -> TrainingState:
        """What this unit is doing."""
        return training_state(self)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulates gradients without reducing them, on all units below."""
        unit: Any = uncompiled(self)  # type: ignore[arg-type]
        if not check_is_root(unit):
            raise RuntimeError(
                "`no_sync()` on inner FSDP instances is not supported. Please call `no_sync()` on "
                "root FSDP module."
            )
        assert_idle(unit)
        with no_sync(unit):
            yield

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Scales gradients so that their norm over all ranks is at most ``max_norm``; returns the norm before."""
        unit: Any = uncompiled(self)  # type: ignore[arg-type]
        if not check_is_root(unit):
            raise RuntimeError(
                "`clip_grad_norm_()` should only be called on the root FSDP instance"
            )
        assert_idle(unit)
        norm = clip_grad_norm_(unit, max_norm, norm_type)
        if all(p.grad is None for p in unit.parameters()):
            warnings.warn(
                f"Called FSDP.clip_grad_norm_() on rank {attributes_of(unit)['rank']} with no gradients "
                f"-- returning the total norm in the default dtype {norm.dtype}",
                stacklevel=2,
            )
        return norm

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """Raises :class:`UnsupportedInFSDP2`: FSDP2 reduces gradients itself."""
        raise UnsupportedInFSDP2(
            "FSDP361",
            "FSDP2 has no register_comm_hook()",
            "to compress gradients, pass MixedPrecision(reduce_dtype=...); to change the communication, use "
            "set_custom_reduce_scatter() and set_all_reduce_hook()",
        )

    @staticmethod
    @or_fsdp1s
    def fsdp_modules(module: nn.Module, root_only: bool = False) -> list[Any]:
        """The units in ``module``, itself included, or those of them that are roots."""
        units = [unit for unit in torch_private.units_of(module) if isinstance(unit, Unit)]
        if root_only:
            return [unit for unit in units if check_is_root(unit)]
        return units

    summon_full_params = staticmethod(summon_full_params)

    # State dicts #

    state_dict_type = staticmethod(state_dict_types.state_dict_type)
    set_state_dict_type = staticmethod(state_dict_types.set_state_dict_type)
    get_state_dict_type = staticmethod(state_dict_types.get_state_dict_type)
    optim_state_dict = staticmethod(optimizer_state.optim_state_dict)
    optim_state_dict_to_load = staticmethod(optimizer_state.optim_state_dict_to_load)
    full_optim_state_dict = staticmethod(optimizer_state.full_optim_state_dict)
    sharded_optim_state_dict = staticmethod(optimizer_state.sharded_optim_state_dict)
    shard_full_optim_state_dict = staticmethod(optimizer_state.shard_full_optim_state_dict)
    scatter_full_optim_state_dict = staticmethod(optimizer_state.scatter_full_optim_state_dict)
    flatten_sharded_optim_state_dict = staticmethod(
        optimizer_state.flatten_sharded_optim_state_dict
    )
    rekey_optim_state_dict = staticmethod(optimizer_keys.rekey_optim_state_dict)
