"""The bridge: FSDP1's wrapper, with its whole public interface, on FSDP2's engine."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from . import optimizer_keys, optimizer_state, state_dict_types, torch_private
from .api import (
    BackwardPrefetch,
    CPUOffload,
    MixedPrecision,
    TrainingState,
    as_mixed_precision,
)
from .auto_wrap import wrap_children
from .clip import clip_grad_norm_
from .gather import assign_data
from .gradients import no_sync
from .ignored import resolve_ignored
from .materialize import own_modules
from .mesh import compute_device
from .precision import cast_own_buffers, casting_anew
from .refusals import PRIVATE_PARTS, comm_hook, private_part
from .state_dict_types import PREFIX, WRAPPED, leave_out_of_state_dicts
from .still_fsdp1 import is_fsdp1, or_fsdp1s
from .summon import is_summoned, summon_full_params, whole_parameters
from .torch_private import units_of
from .units import (
    Arguments,
    Common,
    groups_of,
    prefetch_in_forward_order,
    shard_unit,
    strategy_over,
)

torch_private.make_data_settable(assign_data)


class _BridgeType(type):
    """Lets ``isinstance(model, FullyShardedDataParallel)`` also see models that libraries wrap with torch's FSDP1.

    A model of ``fully_shard`` is not an instance: a program with a branch for each must take the one for FSDP2.
    """

    def __instancecheck__(cls, instance: object) -> bool:
        return super().__instancecheck__(instance) or (
            cls is FullyShardedDataParallel and is_fsdp1(type(instance))
        )

    def __subclasscheck__(cls, subclass: type) -> bool:
        return super().__subclasscheck__(subclass) or (
            cls is FullyShardedDataParallel and is_fsdp1(subclass)
        )

    @property
    def __signature__(cls) -> inspect.Signature:
        signature = inspect.signature(cls.__init__)  # type: ignore[misc]
        return signature.replace(parameters=list(signature.parameters.values())[1:])


class FullyShardedDataParallel(FSDPModule, nn.Module, metaclass=_BridgeType):
    """FSDP1's wrapper of a module, a unit of FSDP2.

    ``torch.distributed.fsdp.FullyShardedDataParallel``'s arguments, methods, attributes, errors and warnings, in the
    same order and with the same defaults; torch's own option objects are accepted as well as those of this package.
    FSDP2's methods are there too.

    What differs from FSDP1: parameters are DTensors with the model's own shapes, and gradients have their dtype.
    Hybrid sharding over one rank synchronizes gradients, where FSDP1 did not (pytorch#154888). A parameter that is
    shared inside a unit stays shared when the unit is built from the meta device. Without an accelerator the CPU is
    used, also without ``device_id``. BACKWARD_POST runs as BACKWARD_PRE, and ``limit_all_gathers`` has no effect:
    FSDP2 bounds memory by other means. ``use_orig_params`` decides only whether optimizers that were made before go
    on with the parameters.

    Raises ValueError where an argument has no equivalent in FSDP2, or does not fit another one, or two units share a
    parameter.
    """

    _fsdp_wrapped_module: nn.Module

    def __new__(cls, *args: Any, **kwargs: Any) -> FullyShardedDataParallel:
        return nn.Module.__new__(cls)  # FSDPModule's would build the class after the next one

    def __init__(
        self,
        module: nn.Module,
        process_group: Any = None,
        sharding_strategy: Any = None,
        cpu_offload: Any = None,
        auto_wrap_policy: Any = None,
        backward_prefetch: Any = BackwardPrefetch.BACKWARD_PRE,
        mixed_precision: Any = None,
        ignored_modules: Iterable[nn.Module] | None = None,
        param_init_fn: Callable[[nn.Module], Any] | None = None,
        device_id: int | str | torch.device | None = None,
        sync_module_states: bool = False,
        forward_prefetch: bool = False,
        limit_all_gathers: bool = True,
        use_orig_params: bool = False,
        ignored_states: Iterable[nn.Parameter] | Iterable[nn.Module] | None = None,
        device_mesh: DeviceMesh | None = None,
    ) -> None:
        super().__init__()
        arguments = Arguments(
            process_group=process_group,
            sharding_strategy=sharding_strategy,
            cpu_offload=cpu_offload,
            backward_prefetch=backward_prefetch,
            mixed_precision=mixed_precision,
            param_init_fn=param_init_fn,
            device_id=device_id,
            sync_module_states=sync_module_states,
            forward_prefetch=forward_prefetch,
            limit_all_gathers=limit_all_gathers,
            use_orig_params=use_orig_params,
            device_mesh=device_mesh,
        )
        arguments.check(auto_wrap_policy is not None)
        ignored = resolve_ignored(module, ignored_modules, ignored_states)
        own = (p for p in module.parameters() if p not in ignored.parameters)
        common = Common(ignored, compute_device(own, device_id, device_mesh))
        if auto_wrap_policy is not None:
            wrap_children(module, auto_wrap_policy, arguments, common, _unit)
        self._wrap(module, arguments, common)

    def _wrap(self, module: nn.Module, arguments: Arguments, common: Common) -> None:
        """Makes this a unit around ``module``, whose own units are there already."""
        mesh = common.mesh(arguments)
        self._fsdp_wrapped_module = module
        shard_unit(self, module, arguments, common, mesh)
        self.process_group, self._inter_node_pg = groups_of(mesh, arguments)
        self.rank = self.process_group.rank()
        self.world_size = self.process_group.size()
        self.compute_device = common.device
        self.sharding_strategy = strategy_over(self.world_size, arguments.strategy)
        self.mixed_precision = arguments.mixed_precision or MixedPrecision()
        self.cpu_offload = arguments.cpu_offload or CPUOffload()
        self.backward_prefetch = arguments.backward_prefetch
        self.forward_prefetch = arguments.forward_prefetch
        self.limit_all_gathers = arguments.limit_all_gathers
        self._use_orig_params = arguments.use_orig_params
        self._device_mesh = arguments.device_mesh
        self._ignored_modules, self._ignored_params = common.ignored
        self._is_prepared = False
        leave_out_of_state_dicts(self)
        state_dict_types.follow_default_type(self)

    # The wrapped module #

    @property
    def module(self) -> nn.Module:
        """The wrapped module, without activation checkpointing around it."""
        inner = self._fsdp_wrapped_module
        checkpointed = inner._modules.get("_checkpoint_wrapped_module")
        return inner if checkpointed is None else checkpointed

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == WRAPPED:
                raise
        try:
            return getattr(self._fsdp_wrapped_module, name)
        except AttributeError:
            if name in PRIVATE_PARTS:
                raise private_part(name) from None
            raise

    def __getitem__(self, key: Any) -> Any:
        return self._fsdp_wrapped_module.__getitem__(key)  # type: ignore[operator]

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError(
            "cannot copy a FullyShardedDataParallel: copy the model before wrapping it, or load "
            "its state dict into another one"
        )

    # Running #

    @torch_private.run_eagerly(inside=False)
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped module's forward, with its parameters gathered before and freed after."""
        if is_summoned(self):  # whole already, perhaps changed
            return self._fsdp_wrapped_module(*args, **kwargs)
        args, kwargs = self._before_forward(args, kwargs)
        with casting_anew():
            output = self._fsdp_wrapped_module(*args, **kwargs)
        return self._after_forward(args, output)

    @torch_private.run_eagerly()
    def _before_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._prepare()
        return torch_private.pre_forward(self, args, kwargs)

    @torch_private.run_eagerly()
    def _after_forward(self, args: tuple[Any, ...], output: Any) -> Any:
        return torch_private.post_forward(self, args, output)

    def _prepare(self) -> None:
        """What FSDP1 does, and checks, at the first use of a root (``_runtime_utils.py``, ``_lazy_init``)."""
        if self._is_prepared:
            return
        torch_private.initialize(self)
        units = [unit for unit in units_of(self) if isinstance(unit, FullyShardedDataParallel)]
        for name in ("_use_orig_params", "limit_all_gathers"):
            values = {getattr(unit, name) for unit in units}
            if len(values) > 1:
                raise ValueError(f"Expects one homogeneous value for {name} but got {values}")
        for unit in units:
            unit._is_prepared = True
            precision = as_mixed_precision(unit.mixed_precision) or MixedPrecision()
            cast = bool(precision.cast_forward_inputs and torch_private.parameter_groups(unit))
            cast |= bool(unit is self and self._is_root and precision.cast_root_forward_inputs)
            torch_private.set_cast_forward_inputs(unit, cast)
            if precision.buffer_dtype is not None:
                for module in own_modules(unit, unit._ignored_modules):
                    cast_own_buffers(module, precision.buffer_dtype)
        torch_private.gather_for_training(units)
        if any(unit.forward_prefetch for unit in units):
            prefetch_in_forward_order(self, units)

    # Programs set it to False where a unit was used by itself, as FSDP1's error tells them.
    _is_root = property(torch_private.is_root, torch_private.set_root)

    def check_is_root(self) -> bool:
        """Whether this is the outermost unit; settles that if no forward has."""
        self._prepare()
        return bool(self._is_root)

    @property
    def training_state(self) -> TrainingState:
        """What this unit is doing."""
        if is_summoned(self):
            return TrainingState.SUMMON_FULL_PARAMS
        if torch_private.is_running(self):
            return TrainingState.FORWARD_BACKWARD
        return TrainingState.IDLE

    def _assert_idle(self) -> None:
        if self.training_state != TrainingState.IDLE:
            raise ValueError(
                f"expected to be in states {[TrainingState.IDLE]} but current state is "
                f"{self.training_state}"
            )

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulates gradients without reducing them, on all units below."""
        if not self.check_is_root():
            raise RuntimeError(
                "`no_sync()` on inner FSDP instances is not supported. Please call `no_sync()` on "
                "root FSDP module."
            )
        self._assert_idle()
        with no_sync(self):
            yield

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Scales gradients so that their norm over all ranks is at most ``max_norm``; returns the norm before."""
        if not self.check_is_root():
            raise RuntimeError(
                "`clip_grad_norm_()` should only be called on the root FSDP instance"
            )
        self._assert_idle()
        norm = clip_grad_norm_(self, max_norm, norm_type)
        if all(p.grad is None for p in self.parameters()):
            warnings.warn(
                f"Called FSDP.clip_grad_norm_() on rank {self.rank} with no gradients -- returning "
                f"the total norm in the default dtype {norm.dtype}",
                stacklevel=2,
            )
        return norm

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """Raises :class:`UnsupportedInFSDP2`: FSDP2 reduces gradients itself."""
        raise comm_hook()

    # Modules, parameters and buffers #

    def apply(self, fn: Callable[[nn.Module], None]) -> FullyShardedDataParallel:
        """Calls ``fn`` on every module below with its parameters whole, and on this one."""
        self._assert_idle()
        with whole_parameters([self]):
            return super().apply(fn)

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """As ``nn.Module``'s; torch's state dict functions get names without the wrapper."""
        if not torch_private.torch_asks_for_state():
            yield from super().named_modules(memo, prefix, remove_duplicate)
            return
        memo = set() if memo is None else memo
        if self not in memo:
            if remove_duplicate:
                memo.add(self)
            yield prefix, self
            yield from self._fsdp_wrapped_module.named_modules(memo, prefix, remove_duplicate)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """As ``nn.Module``'s, with clean names inside ``summon_full_params``."""
        summoned = is_summoned(self)
        for name, parameter in super().named_parameters(prefix, recurse, remove_duplicate):
            yield name.replace(PREFIX, "") if summoned else name, parameter

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """As ``nn.Module``'s, with clean names inside ``summon_full_params``."""
        summoned = is_summoned(self)
        for name, buffer in super().named_buffers(prefix, recurse, remove_duplicate):
            yield name.replace(PREFIX, "") if summoned else name, buffer

    def _fqn_modifiers(self) -> dict[str, str]:
        """Tells torch's state dict functions that the wrapper is in no name of a state dict."""
        inner = self._fsdp_wrapped_module
        return dict.fromkeys((*inner._modules, *inner._parameters, *inner._buffers), WRAPPED)

    @staticmethod
    @or_fsdp1s
    def fsdp_modules(module: nn.Module, root_only: bool = False) -> list[FullyShardedDataParallel]:
        """The units in ``module``, itself included, or those of them that are roots."""
        units = [m for m in module.modules() if isinstance(m, FullyShardedDataParallel)]
        return [unit for unit in units if unit.check_is_root()] if root_only else units

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


def _unit(module: nn.Module, arguments: Arguments, common: Common) -> FullyShardedDataParallel:
    """A unit that a constructor makes below its own."""
    unit = FullyShardedDataParallel.__new__(FullyShardedDataParallel)
    nn.Module.__init__(unit)
    unit._wrap(module, arguments, common)
    return unit
