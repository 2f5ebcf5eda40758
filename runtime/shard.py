"""``shard_model``: FSDP1's constructor as a function, on FSDP2's engine."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard

from .fsdp_state import set_cast_forward_inputs, units_of
from .ignored import Ignored, resolve_ignored
from .materialize import materialize, own_modules
from .mesh import ProcessGroups, build_mesh, compute_device
from .options import (
    BackwardPrefetch,
    MixedPrecision,
    ShardingStrategy,
    as_backward_prefetch,
    as_cpu_offload,
    as_mixed_precision,
    as_sharding_strategy,
)
from .plan import Unit, has_forward, plan_units
from .precision import cast_own_buffers, mixed_precision_policy, run_in_full_precision
from .prefetch import disable_backward_prefetch, prefetch_in_forward_order
from .sync import broadcast_over_mesh
from .ties import check_ties


@dataclass(frozen=True)
class UnitOptions:
    """The arguments that may differ from unit to unit, read and checked."""

    process_group: ProcessGroups | None
    device_mesh: DeviceMesh | None
    sharding_strategy: ShardingStrategy
    cpu_offload: bool
    backward_prefetch: BackwardPrefetch | None
    mixed_precision: MixedPrecision | None
    param_init_fn: Callable[[nn.Module], Any] | None
    sync_module_states: bool

    def override(self, unit: Unit) -> UnitOptions:
        """The options of ``unit``, from the arguments that its policy returned for it."""
        changes: dict[str, Any] = {}
        for name, value in unit.kwargs.items():
            if name in ("limit_all_gathers", "use_orig_params", "forward_prefetch"):
                continue  # of no effect on the result
            if name not in UnitOptions.__dataclass_fields__:
                raise ValueError(
                    f"auto_wrap_policy returned {name!r} for {unit.name!r}, which a unit cannot "
                    "have for itself: pass it to shard_model"
                )
            changes[name] = _READERS[name](value) if name in _READERS else value
        return replace(self, **changes)


_READERS: dict[str, Callable[[Any], Any]] = {
    "sharding_strategy": as_sharding_strategy,
    "cpu_offload": as_cpu_offload,
    "backward_prefetch": as_backward_prefetch,
    "mixed_precision": as_mixed_precision,
}

# The models that `shard_model` sharded as a root, with their mixed precision: one may become part
# of a larger model.
_roots: WeakKeyDictionary[nn.Module, MixedPrecision] = WeakKeyDictionary()


def shard_model(
    module: nn.Module,
    process_group: ProcessGroups | None = None,
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
) -> nn.Module:
    """Shards ``module`` in place as ``FullyShardedDataParallel(module, ...)`` did, and returns it.

    The arguments are FSDP1's, in its order and with its defaults; torch's own option objects are
    accepted as well as those of this package. Create the optimizer afterwards, as sharding replaces
    the parameters, or use :func:`remap_optimizer`. Must be called by all ranks of the default process group.

    Three things differ from FSDP1. A parameter that takes no part in a step has no gradient, where
    FSDP1 gave it zeros (which weight decay and momentum act on). Hybrid sharding over one rank
    synchronizes gradients, where FSDP1 did not (pytorch#154888). A parameter that is shared inside
    a unit stays shared when the unit is built from the meta device.

    Args:
        module: the model, or a part of it that is called by itself. Parts may be sharded before the
            whole. A container such as ModuleList stays as it is; its parameters must be in units.
        process_group: the ranks to shard over; for the hybrid strategies the pair (shard group,
            replicate group). None: all ranks.
        sharding_strategy: a :class:`ShardingStrategy`, torch's, or a member's name. None:
            FULL_SHARD.
        cpu_offload: a :class:`CPUOffload`. None: parameters stay on the device.
        auto_wrap_policy: which modules become units (see :func:`plan_units`). None: the whole model
            is one unit.
        backward_prefetch: None switches prefetching in backward off; BACKWARD_POST runs as
            BACKWARD_PRE.
        mixed_precision: a :class:`MixedPrecision`. Together with a policy it leaves batch norm in
            float32.
        ignored_modules: modules whose parameters stay whole, unreduced and where they are.
        param_init_fn: initializes a module of a unit that is on the meta device. None:
            ``reset_parameters()``.
        device_id: the device to train on; it becomes the current one. None: where the model is, or
            the accelerator, or without one the CPU.
        sync_module_states: give every rank the parameters and buffers of the first one.
        forward_prefetch: gather the next unit's parameters earlier in forward, in the order of the
            first forward.
        limit_all_gathers: without effect; FSDP2 bounds memory by other means.
        use_orig_params: without effect; FSDP2 always keeps the parameters apart.
        ignored_states: parameters or modules, in place of ``ignored_modules``.
        device_mesh: one dimension, or two (replicate, shard) for the hybrid strategies, in place of
            ``process_group``.

    Raises:
        ValueError: an argument has no equivalent in FSDP2, or does not fit another one, or two units
            share a parameter. The message names it.
    """
    options = UnitOptions(
        tuple(process_group) if isinstance(process_group, list) else process_group,
        device_mesh,
        as_sharding_strategy(sharding_strategy),
        as_cpu_offload(cpu_offload),
        as_backward_prefetch(backward_prefetch),
        as_mixed_precision(mixed_precision),
        param_init_fn,
        sync_module_states,
    )
    ignored = resolve_ignored(module, ignored_modules, ignored_states)
    _check(module, options, auto_wrap_policy)
    _check_parameters(module, ignored)
    device = compute_device(
        (p for p in module.parameters() if p not in ignored.parameters), device_id, device_mesh
    )
    # Units that ask for the same mesh share it: building one is a collective.
    mesh_of = cache(partial(build_mesh, device_type=device.type))

    inner_units = units_of(module)
    units = plan_units(
        module,
        auto_wrap_policy,
        ignored_modules=ignored.modules,
        ignored_parameters=ignored.parameters,
        mixed_precision=options.mixed_precision,
    )
    if auto_wrap_policy is not None and options.mixed_precision is not None:
        for submodule in module.modules():
            if isinstance(submodule, tuple(options.mixed_precision._module_classes_to_ignore)):
                run_in_full_precision(submodule)
    boundaries = {unit.module for unit in units} | ignored.modules
    check_ties(module, (own_modules(unit.module, boundaries) for unit in units), ignored.parameters)
    roots = _roots_of(module, units, own_modules(module, boundaries), ignored)
    buffer_dtypes: list[tuple[list[nn.Module], torch.dtype]] = []
    synced: set[torch.Tensor] = set()
    for unit in units:
        unit_options = options.override(unit)
        own = own_modules(unit.module, boundaries)
        mesh = mesh_of(
            unit_options.sharding_strategy,
            process_group=unit_options.process_group,
            device_mesh=unit_options.device_mesh,
        )
        materialize(own, device, unit_options.param_init_fn, ignored.parameters)
        is_root = unit.module in roots
        _shard_unit(unit, own, unit_options, mesh, device, ignored, synced, is_root=is_root)
        if is_root and unit_options.mixed_precision is not None:
            _roots[unit.module] = unit_options.mixed_precision
        buffer_dtype = getattr(unit_options.mixed_precision, "buffer_dtype", None)
        if buffer_dtype is not None:
            buffer_dtypes.append((own, buffer_dtype))

    if module in roots:
        _become_inner(inner_units)
    for root in roots:
        inside = set(root.modules())
        dtypes = [(own, dtype) for own, dtype in buffer_dtypes if own[0] in inside]
        if dtypes:
            _cast_buffers_at_first_forward(root, dtypes)
        if forward_prefetch:
            prefetch_in_forward_order(root)
    return module


def _roots_of(
    module: nn.Module, units: list[Unit], own: list[nn.Module], ignored: Ignored
) -> list[nn.Module]:
    """The units that are called from outside: ``module``, or the outermost ones in a container.

    A container such as ModuleList is never called, so nothing would gather what it holds itself.
    FSDP1 let it be wrapped, with a warning, and trained if all parameters were in units below.
    """
    if has_forward(module):
        return [module]
    left = [p for m in own for p in m.parameters(recurse=False) if p not in ignored.parameters]
    if left:
        raise ValueError(
            f"module is a {type(module).__name__}, which has no forward to gather its parameters "
            "for: shard each of its children"
        )
    below = {id(m) for unit in units[:-1] for m in unit.module.modules() if m is not unit.module}
    return [unit.module for unit in units[:-1] if id(unit.module) not in below]


def _check(module: nn.Module, options: UnitOptions, policy: Any) -> None:
    if isinstance(module, FSDPModule):
        raise ValueError("module is sharded already: call shard_model once for each module")
    if policy is not None and units_of(module):
        raise ValueError(
            "auto_wrap_policy was given for a model of which a part is sharded already: shard "
            "either by hand or by policy"
        )
    hybrid = options.sharding_strategy.is_hybrid
    if hybrid and policy is None and options.process_group is None and options.device_mesh is None:
        raise ValueError(
            f"sharding_strategy={options.sharding_strategy.name} without auto_wrap_policy needs "
            "process_group or device_mesh, so that all parts of the model use the same groups"
        )
    if options.mixed_precision is not None and os.environ.get("FSDP_USE_FULL_PREC_IN_EVAL") == "1":
        warnings.warn(
            "FSDP_USE_FULL_PREC_IN_EVAL=1 has no equivalent in FSDP2: evaluation runs in "
            "mixed_precision.param_dtype",
            stacklevel=3,
        )


def _check_parameters(module: nn.Module, ignored: Ignored) -> None:
    """``fully_shard`` says the same, but when some of the units are sharded already."""
    scalars = [
        name
        for name, parameter in module.named_parameters()
        if parameter.ndim == 0 and parameter not in ignored.parameters
    ]
    if scalars:
        raise ValueError(
            f"{', '.join(scalars)}: a parameter of no dimension cannot be sharded (nor could FSDP1): "
            "give it the shape (1,), or pass it in ignored_states"
        )


def _shard_unit(
    unit: Unit,
    own: list[nn.Module],
    options: UnitOptions,
    mesh: DeviceMesh,
    device: torch.device,
    ignored: Ignored,
    synced: set[torch.Tensor],
    *,
    is_root: bool,
) -> None:
    parameters = {
        p: None for m in own for p in m.parameters(recurse=False) if p not in ignored.parameters
    }
    for parameter in parameters:
        if not parameter.is_contiguous():  # FSDP1 flattened those, FSDP2 refuses them
            parameter.data = parameter.data.contiguous()
    if options.sync_module_states:
        buffers = [b for b in unit.module.buffers() if b not in synced]
        synced.update(buffers)
        broadcast_over_mesh([*buffers, *parameters], mesh, device)
    if not parameters and not is_root:
        return  # nothing to gather
    keep_unsharded = options.sharding_strategy.keeps_unsharded
    fully_shard(
        unit.module,
        mesh=mesh,
        # None is FSDP1's FULL_SHARD: True, but False for the unit whose forward runs first.
        reshard_after_forward=False if keep_unsharded else None,
        mp_policy=mixed_precision_policy(options.mixed_precision, is_root=is_root),
        offload_policy=_offload_policy(options.cpu_offload),
        ignored_params=ignored.parameters or None,
    )
    assert isinstance(unit.module, FSDPModule)
    if mesh.device_type == "cpu":
        # Some releases' gloo sums where it is asked to average (pytorch#162338).
        unit.module.set_force_sum_reduction_for_comms(True)
    if options.backward_prefetch is None:
        disable_backward_prefetch(unit.module)


def _offload_policy(offload: bool) -> OffloadPolicy:
    if not offload:
        return OffloadPolicy()
    return CPUOffloadPolicy(pin_memory=torch.accelerator.is_available())


def _become_inner(units: list[FSDPModule]) -> None:
    """Roots that became part of a larger model cast their inputs as inner units do."""
    for unit in units:
        mixed_precision = _roots.pop(unit, None) if isinstance(unit, nn.Module) else None
        if mixed_precision is not None:
            set_cast_forward_inputs(unit, mixed_precision.cast_forward_inputs)


def _cast_buffers_at_first_forward(
    root: nn.Module, dtypes: list[tuple[list[nn.Module], torch.dtype]]
) -> None:
    """As FSDP1 does: until then a program may still load or compute buffers in their own dtype."""

    def cast(module: nn.Module, args: Any) -> None:
        handle.remove()
        for modules, dtype in dtypes:
            for submodule in modules:
                cast_own_buffers(submodule, dtype)

    handle = root.register_forward_pre_hook(cast, prepend=True)
