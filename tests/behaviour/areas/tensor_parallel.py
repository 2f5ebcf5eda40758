"""Units of tensor-parallel modules, over a mesh of two dimensions."""

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from ..registry import holds
from .common import Block, clean, net

COLUMNS, ROWS = ColwiseParallel, RowwiseParallel


def two_by_two() -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))


def parallel(api: Any, mesh: DeviceMesh, **options: Any) -> Any:
    """Blocks whose layers are split by columns and by rows, between layers that are not."""
    model = net()
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], {"up": COLUMNS(), "down": ROWS()})
    return api.FSDP(model, device_mesh=mesh["dp"], **options)


def in_units(api: Any, mesh: DeviceMesh, **options: Any) -> Any:
    """Each block is a unit."""
    return parallel(api, mesh, auto_wrap_policy=api.wrap.ModuleWrapPolicy({Block}), **options)


def one_layer(api: Any, mesh: DeviceMesh, **options: Any) -> Any:
    """A layer that is split by columns is all there is."""
    model = nn.Sequential(nn.Linear(4, 6, bias=False))
    parallelize_module(model, mesh["tp"], {"0": COLUMNS()})
    return api.FSDP(model, device_mesh=mesh["dp"], **options)


def by_rows(api: Any, mesh: DeviceMesh, **options: Any) -> Any:
    """A layer that is split by rows is all there is."""
    model = nn.Sequential(nn.Linear(4, 6, bias=False))
    parallelize_module(model, mesh["tp"], {"0": ROWS(input_layouts=Replicate())})
    return api.FSDP(model, device_mesh=mesh["dp"], **options)


def two_layers(api: Any, mesh: DeviceMesh, **options: Any) -> Any:
    """Both, one after the other."""
    model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.Linear(6, 4, bias=False))
    parallelize_module(model, mesh["tp"], {"0": COLUMNS(), "1": ROWS()})
    return api.FSDP(model, device_mesh=mesh["dp"], **options)


SHAPES = (parallel, in_units, one_layer)


def inputs(mesh: DeviceMesh, count: int = 2) -> list[torch.Tensor]:
    """The same on the ranks that share a part of the data."""
    generator = torch.Generator().manual_seed(mesh["dp"].get_local_rank())
    return [torch.randn(5, 4, generator=generator) for _ in range(count)]


def trained(model: Any, mesh: DeviceMesh) -> Any:
    torch.manual_seed(3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for x in inputs(mesh):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    return optimizer


def laid_out(tensors: Any) -> dict[str, Any]:
    """Each tensor: whether it is a DTensor, on which dimensions, how, its shape and this rank's part."""
    found = {}
    for name, value in tensors:
        is_split = isinstance(value, DTensor)
        how = (value.device_mesh.mesh_dim_names, str(value.placements)) if is_split else ()
        part = value.to_local() if is_split else value
        found[clean(name)] = how, tuple(value.shape), part.detach().clone()
    return found


@holds(ranks=4, tolerance=1e-6)
def summoned(api: Any) -> Any:
    """Inside of `summon_full_params` a parameter is whole over FSDP's ranks and a DTensor of tensor parallelism."""
    results = []
    for make in SHAPES:
        mesh = two_by_two()
        model = make(api, mesh)
        trained(model, mesh)
        with api.FSDP.summon_full_params(model):
            found = laid_out(model.named_parameters())
        assert any(how == (("tp",), "(Shard(dim=0),)") for how, _, _ in found.values())
        results.append(found)
    return results


@holds(ranks=4, tolerance=1e-6)
def full_state_dicts(api: Any) -> Any:
    """FULL_STATE_DICT is whole over FSDP's ranks: DTensors of tensor parallelism, which load again."""
    results = []
    for make in SHAPES:
        mesh = two_by_two()
        model = make(api, mesh)
        trained(model, mesh)
        state = model.state_dict()
        found = laid_out(state.items())
        assert any(how == (("tp",), "(Shard(dim=0),)") for how, _, _ in found.values())
        other = make(api, mesh)
        other.load_state_dict(state)
        (x,) = inputs(mesh, 1)
        assert torch.allclose(model(x), other(x), atol=1e-6)
        results.append(found)
    return results


@holds(ranks=4, tolerance=1e-6)
def states_of_rank_0(api: Any) -> Any:
    """With `rank0_only` and `offload_to_cpu` the first of FSDP's ranks has the states, for each part of tensor parallelism."""
    results = []
    for make in SHAPES:
        mesh = two_by_two()
        model = make(api, mesh)
        trained(model, mesh)
        config = api.FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
        with api.FSDP.state_dict_type(model, api.StateDictType.FULL_STATE_DICT, config):
            found = laid_out(model.state_dict().items())
        assert bool(found) == (mesh["dp"].get_local_rank() == 0)
        results.append(found)
    return results


@holds(ranks=4, tolerance=1e-5)
def states_of_optimizers(api: Any) -> Any:
    """The whole states of an optimizer are DTensors of tensor parallelism."""
    results = []
    for make in SHAPES:
        mesh = two_by_two()
        model = make(api, mesh)
        optimizer = trained(model, mesh)
        states = api.FSDP.optim_state_dict(model, optimizer)
        results.append({k: laid_out(states["state"][k].items()) for k in sorted(states["state"])})
    return results
