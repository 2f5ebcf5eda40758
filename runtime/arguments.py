"""What FSDP1's constructor arguments come to: the options and the mesh of each unit, and its sharding."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy

from .api import (
    CPUOffload,
    MixedPrecision,
    ShardingStrategy,
    as_backward_prefetch,
    as_cpu_offload,
    as_mixed_precision,
    as_sharding_strategy,
)
from .gradients import average_on_gloo, reduce_as_fsdp1
from .ignored import Ignored, resolve_ignored
from .materialize import materialize_modules, own_modules
from .mesh import ProcessGroups, build_mesh, compute_device
from .older_optimizers import replace_parameters
from .sync import broadcast_over_mesh
from .torch_private import shard

_SYNCED = "_fsdp_synced"

# The parameters of a unit by module and name.
Places = dict[tuple[nn.Module, str], nn.Parameter]


@dataclass(frozen=True)
class Arguments:
    """The constructor's arguments that a wrap policy may change for a unit."""

    process_group: Any
    sharding_strategy: Any
    cpu_offload: Any
    backward_prefetch: Any
    mixed_precision: Any
    param_init_fn: Callable[[nn.Module], Any] | None
    device_id: Any
    sync_module_states: bool
    forward_prefetch: bool
    limit_all_gathers: bool
    use_orig_params: bool
    device_mesh: DeviceMesh | None

    def for_unit(self, name: str, changes: dict[str, Any]) -> Arguments:
        """These arguments with what a policy returned for the unit ``name``."""
        unknown = changes.keys() - {field.name for field in dataclasses.fields(self)}
        if unknown:
            raise ValueError(
                f"auto_wrap_policy returned {min(unknown)!r} for the unit {name!r}, but that cannot be "
                "set for a unit: pass it to FullyShardedDataParallel"
            )
        return dataclasses.replace(self, **changes)

    @cached_property
    def strategy(self) -> ShardingStrategy:
        return as_sharding_strategy(self.sharding_strategy)

    @cached_property
    def precision(self) -> MixedPrecision | None:
        return as_mixed_precision(self.mixed_precision)

    @cached_property
    def groups(self) -> ProcessGroups | None:
        given = self.process_group
        return tuple(given) if isinstance(given, list) else given

    def check(self, has_policy: bool) -> None:
        """Raises what FSDP1 raises for arguments that do not fit each other (``_init_utils.py``)."""
        alone = not has_policy and self.process_group is None and self.device_mesh is None
        if self.strategy.is_hybrid and alone:
            raise ValueError(
                f"Manual wrapping with {self.strategy} requires explicit specification of process "
                "group or device_mesh."
            )
        as_backward_prefetch(self.backward_prefetch)  # raises while nothing is sharded yet
        if self.precision is not None and os.environ.get("FSDP_USE_FULL_PREC_IN_EVAL") == "1":
            warnings.warn(
                "FSDP_USE_FULL_PREC_IN_EVAL=1 has no equivalent in FSDP2: evaluation runs in "
                "mixed_precision.param_dtype",
                stacklevel=4,
            )


class Common:
    """What the units that one constructor call makes share."""

    def __init__(self, ignored: Ignored, device: torch.device) -> None:
        self.ignored = ignored
        self.device = device
        # Building a mesh is a collective: units that ask for the same one share it.
        self._mesh = cache(partial(build_mesh, device_type=device.type))

    def mesh(self, arguments: Arguments) -> DeviceMesh:
        return self._mesh(
            arguments.strategy, process_group=arguments.groups, device_mesh=arguments.device_mesh
        )


def read(module: nn.Module, given: dict[str, Any]) -> tuple[Arguments, Common]:
    """The constructor's arguments for ``module``, which are checked, and what its units share."""
    names = [field.name for field in dataclasses.fields(Arguments)]
    arguments = Arguments(**{name: given[name] for name in names})
    arguments.check(given["auto_wrap_policy"] is not None)
    ignored = resolve_ignored(module, given["ignored_modules"], given["ignored_states"])
    own = (p for p in module.parameters() if p not in ignored.parameters)
    return arguments, Common(ignored, compute_device(own, given["device_id"], given["device_mesh"]))


def groups_of(mesh: DeviceMesh, arguments: Arguments) -> tuple[dist.ProcessGroup, Any]:
    """FSDP1's ``process_group``, the ranks to shard over, and ``_inter_node_pg``."""
    if arguments.strategy.is_hybrid:
        return mesh.get_group(1), mesh.get_group(0)
    if arguments.device_mesh is not None:
        return mesh.get_group(0), None
    group = dist.group.WORLD if arguments.groups is None else arguments.groups
    assert isinstance(group, dist.ProcessGroup)
    return group, None


def strategy_over(world_size: int, strategy: ShardingStrategy) -> ShardingStrategy:
    """What FSDP1 calls ``strategy`` where there is one rank to shard over."""
    if world_size > 1 or strategy.is_hybrid:
        return strategy
    if strategy is not ShardingStrategy.NO_SHARD:
        warnings.warn(
            f"FSDP is switching to use `NO_SHARD` instead of {strategy} since the world size is 1.",
            stacklevel=4,
        )
    return ShardingStrategy.NO_SHARD


def attributes_from(mesh: DeviceMesh, arguments: Arguments, common: Common) -> dict[str, Any]:
    """What FSDP1's wrapper has as attributes."""
    process_group, inter_node = groups_of(mesh, arguments)
    ignored_modules, ignored_parameters = common.ignored
    return {
        "process_group": process_group,
        "_inter_node_pg": inter_node,
        "rank": process_group.rank(),
        "world_size": process_group.size(),
        "compute_device": common.device,
        "sharding_strategy": strategy_over(process_group.size(), arguments.strategy),
        "mixed_precision": arguments.mixed_precision or MixedPrecision(),
        "cpu_offload": arguments.cpu_offload or CPUOffload(),
        "backward_prefetch": arguments.backward_prefetch,
        "forward_prefetch": arguments.forward_prefetch,
        "limit_all_gathers": arguments.limit_all_gathers,
        "_use_orig_params": arguments.use_orig_params,
        "_device_mesh": arguments.device_mesh,
        "_ignored_modules": ignored_modules,
        "_ignored_params": ignored_parameters,
    }


def shard_unit(
    unit: Any, module: nn.Module, arguments: Arguments, common: Common, mesh: DeviceMesh
) -> None:
    """Materializes, synchronizes and shards what ``unit`` holds of ``module``: what is not ignored and in no unit below."""
    if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
        warn_of_container(module)
    options, places = ready_to_shard(module, arguments, common, mesh)
    shard(unit, **options)
    reduce_as_fsdp1(unit)
    after_sharding(unit, arguments)
    if arguments.use_orig_params:
        replace_parameters(successors(places))


def warn_of_container(module: nn.Module) -> None:
    """FSDP1's warning for a unit that nothing calls."""
    warnings.warn(
        f"FSDP will not all-gather parameters for containers that do not implement forward: {module}",
        stacklevel=4,
    )


def ready_to_shard(
    module: nn.Module, arguments: Arguments, common: Common, mesh: DeviceMesh
) -> tuple[dict[str, Any], Places]:
    """Materializes and synchronizes one unit; the options that ``fully_shard`` needs for it, and its parameters' places."""
    ignored = common.ignored
    own = [] if is_unit(module) else own_modules(module, ignored.modules)
    materialize_modules(own, common.device, arguments.param_init_fn, ignored.parameters)
    places = {
        (m, name): p
        for m in own
        for name, p in m.named_parameters(recurse=False)
        if p not in ignored.parameters
    }
    parameters = list(dict.fromkeys(places.values()))
    _check_parameters(module, parameters, arguments.use_orig_params)
    for parameter in parameters:
        if not parameter.is_contiguous():  # FSDP1 flattened those, FSDP2 refuses them
            parameter.data = parameter.data.contiguous()
    empty = {p for p in parameters if p.numel() == 0}  # nor can FSDP2 reduce their gradients
    for parameter in empty:
        parameter.data = parameter.data.to(common.device)
    if arguments.sync_module_states:
        buffers = [b for b in module.buffers() if not hasattr(b, _SYNCED)]
        for buffer in buffers:
            setattr(buffer, _SYNCED, True)
        broadcast_over_mesh([*buffers, *parameters], mesh, common.device)
    options: dict[str, Any] = {"mesh": mesh}
    if arguments.strategy.keeps_unsharded:
        # Else FSDP1's FULL_SHARD: True, but False for the unit whose forward runs first, as torch has it by default.
        options["reshard_after_forward"] = False
    if arguments.precision is not None:
        options["mp_policy"] = _precision_policy(arguments.precision)
    if as_cpu_offload(arguments.cpu_offload):
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=torch.accelerator.is_available())
    if ignored.parameters or empty:
        options["ignored_params"] = ignored.parameters | empty
    return options, places


def after_sharding(unit: Any, arguments: Arguments) -> None:
    """What ``fully_shard`` has no options for."""
    average_on_gloo(unit)
    if as_backward_prefetch(arguments.backward_prefetch) is None:
        # A list replaces FSDP2's own choice, and a unit has itself already.
        unit.set_modules_to_backward_prefetch([unit])


def successors(places: Places) -> dict[torch.Tensor, nn.Parameter]:
    """The parameters that are in some places now, by those that were there before."""
    now = {p: m._parameters[name] for (m, name), p in places.items()}
    return {p: new for p, new in now.items() if new is not None and new is not p}


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
