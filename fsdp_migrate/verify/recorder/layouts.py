"""How a parameter is laid out over processes: in an FSDP1 flat shard, as a DTensor, or whole in each."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

WRAPPERS = {"_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod"}
_SHARDED = {"FullyShardedDataParallel", "FSDPModule"}


@dataclass(frozen=True)
class Part:
    """What this process holds of one parameter, and `read`, which returns it as it is now.

    `offsets` are where it begins: an index for each dimension, or if it is `flat` one index into the flattened
    parameter. `owner` is the identity of the parameter whose gradient has its own, or that and more: then within `span`.
    """

    name: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    flat: bool
    read: Callable[[], torch.Tensor]
    owner: int
    span: tuple[int, int] | None = None


@dataclass
class Holding:
    """What this process holds of a parameter, or of an FSDP1 unit; not `readable` where the parts cannot be told.

    So many `replicas` of it are held by as many processes, of which this is the `first` or not.
    """

    replicas: int
    parts: list[Part] = field(default_factory=list)
    first: bool = True
    readable: bool = True


def clean(*path: str) -> str:
    """A qualified name without the names that wrappers add."""
    names = ".".join(path).split(".")
    return ".".join(name for name in names if name and name not in WRAPPERS)


def is_sharded(module: nn.Module) -> bool:
    """Whether a module is a unit of FSDP1 or FSDP2."""
    return any(base.__name__ in _SHARDED for base in type(module).__mro__)


def flat_members(module: nn.Module) -> list[torch.Tensor]:
    """The parameters, flat and original, of a module that is an FSDP1 unit; none for any other."""
    flat = getattr(module.__dict__.get("_handle"), "flat_param", None)
    if flat is None:
        return []
    return [flat, *(flat._params or ()), *(flat._shared_params or ())]


def fsdp2_state(module: nn.Module) -> Any:
    """FSDP2's state of a unit; None for any other module."""
    ask: Any = getattr(module, "_get_fsdp_state", lambda: None)
    with contextlib.suppress(AssertionError):  # a copy of a unit has none
        return ask()
    return None


def fsdp2_groups(module: nn.Module) -> list[Any]:
    """The groups of parameters of a unit of FSDP2, which are in `fsdp_params`; none for any other module."""
    state = fsdp2_state(module)
    if hasattr(state, "_fsdp_param_groups"):  # torch >= 2.12
        return list(state._fsdp_param_groups)
    group = getattr(state, "_fsdp_param_group", None)
    if group is None:
        return []
    return [group]


def gathered(module: nn.Module) -> list[torch.Tensor]:
    """The parameters of an FSDP2 unit as a forward has them, whole; none for any other module."""
    known = [parameter for group in fsdp2_groups(module) for parameter in group.fsdp_params]
    return [p._unsharded_param for p in known if hasattr(p, "_unsharded_param")]


def flat_unit(name: str, module: nn.Module, wanted: Callable[[torch.Tensor], bool]) -> Holding:
    """An FSDP1 unit; `name` is the module's own."""
    handle: Any = module.__dict__["_handle"]
    flat = handle.flat_param
    # A sharded unit has copies under HYBRID_SHARD only, in the other nodes' groups; an unsharded
    # one in its whole group.
    group = None
    if handle.uses_sharded_strategy:
        group = getattr(module, "_inter_node_pg", None)
    if not handle.uses_sharded_strategy:
        group = handle.process_group
    replicas = 1
    if group is not None:
        replicas = group.size()
    holding = Holding(replicas)
    # A parameter that is not contiguous is flattened in the order of its memory.
    holding.readable = all(getattr(flat, "_contiguities", ()))
    holding.first = group is None or group.rank() == 0
    for index, info in enumerate(flat._shard_param_infos):
        if flat._params is None:
            owner = flat
        else:
            owner = flat._params[index]
        if not info.in_shard or not wanted(owner):
            continue
        start = info.offset_in_shard
        span = None
        if owner is flat:
            span = (start, start + info.numel_in_shard)
        holding.parts.append(
            Part(
                name=clean(name, flat._fqns[index]),
                shape=tuple(flat._shapes[index]),
                offsets=(info.intra_param_start_idx,),
                flat=True,
                read=_reader(flat, index, start, info.numel_in_shard),
                owner=id(owner),
                span=span,
            )
        )
    return holding


def _reader(flat: Any, index: int, start: int, count: int) -> Callable[[], torch.Tensor]:
    def read() -> torch.Tensor:
        # `_local_shard` is the shard in full precision, whatever form the unit is in just now.
        # Before the first forward there is none, and the parameter is the shard.
        shard: torch.Tensor = getattr(flat, "_local_shard", flat).detach()
        original = shard
        if flat._params is not None:
            original = flat._params[index].detach()
        # `p.data = x` takes it out of the shard: FSDP1 writes it back in the next forward.
        if original.shape == (count,) and original.dtype == shard.dtype:
            return original
        return shard[start : start + count]

    return read


def single(name: str, parameter: torch.Tensor, processes: int, rank: int) -> Holding:
    """A parameter by itself: a DTensor, or a plain one that each of so many processes holds."""
    tensor: Any = parameter
    if not hasattr(tensor, "_local_tensor"):
        whole = tuple(tensor.shape), (0,) * tensor.dim(), False
        part = Part(name, *whole, tensor.detach, id(parameter))
        return Holding(processes, [part], first=rank == 0)
    mesh = tensor.device_mesh
    coordinate = tensor.device_mesh.get_coordinate()
    copies = 1
    first = coordinate is not None
    for dimension, placement in enumerate(tensor.placements):
        if placement.is_replicate():
            copies *= mesh.size(dimension)
            first = first and coordinate[dimension] == 0
    if not tensor._local_tensor.numel():
        return Holding(copies, first=first)
    from torch.distributed.tensor import _utils

    shape = tensor.shape
    _, offsets = _utils.compute_local_shape_and_global_offset(shape, mesh, tensor.placements)
    place = tuple(shape), tuple(offsets), False
    part = Part(name, *place, lambda: tensor._local_tensor.detach(), id(parameter))
    return Holding(copies, [part], first=first)


def dtype_of(model: nn.Module) -> torch.dtype:
    """The dtype that a sharded model computes in when it is called: the narrowest that its units and autocast ask for."""
    found: list[torch.dtype | None] = []
    found += [p.dtype for p in model.parameters() if p.is_floating_point()]
    for module in model.modules():
        policy = getattr(fsdp2_state(module), "_mp_policy", None)
        handle = module.__dict__.get("_handle")
        found.append(getattr(handle, "_fwd_bwd_param_dtype", None))
        found.append(getattr(policy, "param_dtype", None))
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            found.append(torch.get_autocast_dtype(device))
    known = [dtype for dtype in found if dtype is not None]
    return max(known or [torch.float32], key=lambda dtype: torch.finfo(dtype).eps)


def precisions(model: nn.Module) -> dict[str, list[str]]:
    """The dtypes that each trained parameter of a sharded model is computed with, and that its gradient is reduced in."""
    found: dict[str, list[str]] = {}
    for path, module in model.named_modules():
        for parameter, name, compute, reduce in units_dtypes(module):
            if parameter.requires_grad and parameter.is_floating_point():
                dtypes = (compute, reduce)
                found[clean(path, name)] = [str(d).removeprefix("torch.") for d in dtypes]
    return found


_Dtypes = tuple[torch.Tensor, str, torch.dtype, torch.dtype]
"""A parameter, its name in its module, and what it is computed with and reduced in."""


def units_dtypes(module: nn.Module) -> Iterator[_Dtypes]:
    """The parameters of a unit; none for any other module."""
    handle: Any = module.__dict__.get("_handle")
    flat: Any = getattr(handle, "flat_param", None)
    if flat is not None:
        compute = handle._fwd_bwd_param_dtype
        for index, name in enumerate(flat._fqns):
            owner = flat
            if flat._params is not None:
                owner = flat._params[index]
            yield owner, name, compute, handle._reduce_dtype
    names = {id(m): path for path, m in module.named_modules()}
    for group in fsdp2_groups(module):
        for own in group.fsdp_params:
            sharded = own.sharded_param
            place = own._module_info
            compute = group.mp_policy.param_dtype or sharded.dtype
            name = clean(names.get(id(place.module), ""), place.param_name)
            yield sharded, name, compute, group.mp_policy.reduce_dtype or compute
