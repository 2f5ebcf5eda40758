"""What FSDP1's constructor arguments come to: the options and the mesh of each unit, and its sharding."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy

from .api import BackwardPrefetch, CPUOffload, MixedPrecision, ShardingStrategy, as_mixed_precision
from .environment import tell_of_variables
from .gradients import average_on_gloo
from .ignored import resolve_ignored
from .materialize import broadcast_over_mesh, materialize_modules, own_modules
from .mesh import ProcessGroups, build_mesh, compute_device
from .plan import Unit

_SYNCED = "_fsdp_synced"
_NOT_OF_A_UNIT = {"module", "auto_wrap_policy", "ignored_modules", "ignored_states"}


@dataclass
class Arguments:
    """The constructor's arguments, in FSDP1's order with its defaults; :meth:`of_unit` gives those of a unit inside.

    Raises what FSDP1 raises for those that do not fit each other (``_init_utils.py``).
    """

    module: nn.Module
    process_group: Any = None
    sharding_strategy: Any = None
    cpu_offload: Any = None
    auto_wrap_policy: Any = None
    backward_prefetch: Any = BackwardPrefetch.BACKWARD_PRE
    mixed_precision: Any = None
    ignored_modules: Iterable[nn.Module] | None = None
    param_init_fn: Callable[[nn.Module], Any] | None = None
    device_id: int | str | torch.device | None = None
    sync_module_states: bool = False
    forward_prefetch: bool = False
    limit_all_gathers: bool = True
    use_orig_params: bool = False
    ignored_states: Iterable[nn.Parameter] | Iterable[nn.Module] | None = None
    device_mesh: DeviceMesh | None = None

    def __post_init__(self) -> None:
        alone = (self.auto_wrap_policy, self.process_group, self.device_mesh) == (None, None, None)
        if self.strategy.is_hybrid and alone:
            raise ValueError(
                f"Manual wrapping with {self.strategy} requires explicit specification of process "
                "group or device_mesh."
            )
        low = None
        if self.precision is not None:
            low = self.precision.param_dtype
        tell_of_variables(self.module.modules(), low)
        if self.backward_prefetch is not None:
            BackwardPrefetch(self.backward_prefetch)  # raises while nothing is sharded yet
        self.ignored = resolve_ignored(self.module, self.ignored_modules, self.ignored_states)
        own = [p for p in self.module.parameters() if p not in self.ignored.parameters]
        self.device = compute_device(own, self.device_id, self.device_mesh)
        # Building a mesh is a collective: units that ask for the same one share it.
        self._build_mesh = cache(partial(build_mesh, device_type=self.device.type))

    def of_unit(self, unit: Unit) -> Arguments:
        """These arguments with what a policy returned for ``unit``."""
        unknown = unit.kwargs.keys() - ({field.name for field in fields(self)} - _NOT_OF_A_UNIT)
        if unknown:
            raise ValueError(
                f"auto_wrap_policy returned {min(unknown)!r} for the unit {unit.name!r}, but that cannot "
                "be set for a unit: pass it to FullyShardedDataParallel"
            )
        own = copy.copy(self)
        vars(own).update(unit.kwargs, module=unit.module)
        return own

    @property
    def strategy(self) -> ShardingStrategy:
        given = self.sharding_strategy
        if given is None:
            return ShardingStrategy.FULL_SHARD
        return ShardingStrategy(given)

    @property
    def precision(self) -> MixedPrecision | None:
        return as_mixed_precision(self.mixed_precision)

    @property
    def groups(self) -> ProcessGroups | None:
        given = self.process_group
        return tuple(given) if isinstance(given, list) else given

    @property
    def mesh(self) -> DeviceMesh:
        return self._build_mesh(
            self.strategy, process_group=self.groups, device_mesh=self.device_mesh
        )

    def attributes(self) -> dict[str, Any]:
        """What FSDP1's wrapper has as attributes."""
        process_group, inter_node = self._groups_of_mesh()
        return {
            "process_group": process_group,
            "_inter_node_pg": inter_node,
            "rank": process_group.rank(),
            "world_size": process_group.size(),
            "compute_device": self.device,
            "sharding_strategy": _strategy_over(process_group.size(), self.strategy),
            "mixed_precision": self.mixed_precision or MixedPrecision(),
            "cpu_offload": self.cpu_offload or CPUOffload(),
            "backward_prefetch": self.backward_prefetch,
            "forward_prefetch": self.forward_prefetch,
            "limit_all_gathers": self.limit_all_gathers,
            "_use_orig_params": self.use_orig_params,
            "_device_mesh": self.device_mesh,
            "_ignored_modules": self.ignored.modules,
            "_ignored_params": self.ignored.parameters,
        }

    def _groups_of_mesh(self) -> tuple[dist.ProcessGroup, Any]:
        """FSDP1's ``process_group``, the ranks to shard over, and ``_inter_node_pg``."""
        if self.strategy.is_hybrid:
            return self.mesh.get_group(1), self.mesh.get_group(0)
        if self.device_mesh is not None:
            return self.mesh.get_group(0), None
        group = dist.group.WORLD if self.groups is None else self.groups
        assert isinstance(group, dist.ProcessGroup)
        return group, None


def _strategy_over(world_size: int, strategy: ShardingStrategy) -> ShardingStrategy:
    """What FSDP1 calls ``strategy`` where there is one rank to shard over."""
    if world_size > 1 or strategy is ShardingStrategy.NO_SHARD:
        return strategy
    text = f"FSDP is switching to use `NO_SHARD` instead of {strategy} since the world size is 1."
    if strategy.is_hybrid:
        text = f"{strategy} over one rank: FSDP1 adds up no gradients over replicas there, which this does."
    warnings.warn(text, stacklevel=4)
    if strategy.is_hybrid:
        return strategy
    return ShardingStrategy.NO_SHARD


def warn_of_container(module: nn.Module) -> None:
    """FSDP1's warning for a unit that nothing calls."""
    warnings.warn(
        f"FSDP will not all-gather parameters for containers that do not implement forward: {module}",
        stacklevel=4,
    )


def ready_to_shard(module: nn.Module, arguments: Arguments) -> dict[str, Any]:
    """Materializes and synchronizes what a unit holds: what is not ignored and in no unit below; the options that
    ``fully_shard`` needs for it."""
    ignored, device = arguments.ignored, arguments.device
    own = [] if is_unit(module) else own_modules(module, ignored.modules)
    materialize_modules(own, device, arguments.param_init_fn, ignored.parameters)
    found = dict.fromkeys(p for m in own for p in m.parameters(recurse=False))
    parameters = [p for p in found if p not in ignored.parameters]
    _check_parameters(module, parameters, arguments.use_orig_params)
    for parameter in parameters:
        if not parameter.is_contiguous():  # FSDP1 flattened those, FSDP2 refuses them
            parameter.data = parameter.data.contiguous()
    empty = {p for p in parameters if p.numel() == 0}  # nor can FSDP2 reduce their gradients
    for parameter in empty:
        parameter.data = parameter.data.to(device)
    if arguments.sync_module_states:
        buffers = [b for b in module.buffers() if not hasattr(b, _SYNCED)]
        for buffer in buffers:
            setattr(buffer, _SYNCED, True)
        broadcast_over_mesh([*buffers, *parameters], arguments.mesh, device)
    options: dict[str, Any] = {"mesh": arguments.mesh}
    if arguments.strategy.keeps_unsharded:
        # Else FSDP1's FULL_SHARD: True, but False for the unit whose forward runs first, as torch has it by default.
        options["reshard_after_forward"] = False
    if arguments.precision is not None:
        options["mp_policy"] = _precision_policy(arguments.precision)
    if arguments.cpu_offload is not None and arguments.cpu_offload.offload_params:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=torch.accelerator.is_available())
    if ignored.parameters or empty:
        options["ignored_params"] = ignored.parameters | empty
    return options


def after_sharding(unit: Any, arguments: Arguments) -> None:
    """What ``fully_shard`` has no options for."""
    average_on_gloo(unit)
    if arguments.backward_prefetch is None:
        # A list replaces FSDP2's own choice, and a unit has itself already.
        FSDPModule.set_modules_to_backward_prefetch(unit, [unit])


def _precision_policy(mixed_precision: MixedPrecision) -> MixedPrecisionPolicy:
    """The policy of a unit that is not the root."""
    # Since torch 2.15 FSDP2 reduces in the parameters' own dtype where it is not told another; FSDP1 never did.
    reduced = mixed_precision.reduce_dtype or mixed_precision.param_dtype
    return MixedPrecisionPolicy(
        mixed_precision.param_dtype,
        reduced,
        cast_forward_inputs=mixed_precision.cast_forward_inputs,
    )


def _check_parameters(
    module: nn.Module, parameters: list[nn.Parameter], use_orig_params: bool
) -> None:
    """Raises what FSDP1 raises for parameters that it cannot flatten (``_flat_param.py``)."""
    for name, parameter in module.named_parameters():
        if parameter.ndim == 0 and any(parameter is p for p in parameters):
            raise ValueError(
                f"FSDP doesn't support scalar parameters. Change {name} to a 1D tensor with numel "
                "equal to 1."
            )
    dtypes = list(dict.fromkeys(p.dtype for p in parameters))
    if len(dtypes) > 1:
        raise ValueError(
            f"Must flatten tensors with uniform dtype but got {dtypes[0]} and {dtypes[1]}"
        )
    if not use_orig_params and len({p.requires_grad for p in parameters}) > 1:
        raise ValueError(
            "Must flatten tensors with uniform `requires_grad` when `use_orig_params=False`"
        )


def is_unit(module: nn.Module) -> bool:
    """Whether ``module`` is sharded, by the bridge or by ``fully_shard``."""
    return isinstance(module, FSDPModule)
