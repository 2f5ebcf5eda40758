"""What one rank of several does, as far as it needs no other one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed.fsdp as fsdp
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from fsdp_migrate import runtime
from fsdp_migrate.runtime import clip
from fsdp_migrate.runtime.gather import is_first, is_sharded, sharded_as


@pytest.mark.parametrize("rank_of_four", range(4), indirect=True)
def test_the_first_rank_is_that_of_the_shards(rank_of_four: int) -> None:
    def of(shape: tuple[int, ...], *placements: Any) -> DTensor:
        mesh = DeviceMesh("cpu", torch.arange(4).view(shape))
        return DTensor.from_local(torch.ones(2), mesh, placements)

    shards, hybrid = of((4,), Shard(0)), of((2, 2), Replicate(), Shard(0))
    same = of((4, 1), Replicate(), Shard(0))
    assert [is_sharded(t) for t in (shards, hybrid, same)] == [True, True, False]
    assert is_first(shards) == (rank_of_four == 0)
    assert is_first(hybrid) == (rank_of_four in (0, 2))
    assert is_first(same) == (rank_of_four == 0)


def unit(api: Any, module: nn.Module, **options: Any) -> Any:
    cpu = torch.device("cpu")
    return api.FullyShardedDataParallel(module, device_id=cpu, use_orig_params=True, **options)


def partly_ignored(api: Any) -> nn.Module:
    parts = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.BatchNorm1d(2))
    return unit(api, parts, ignored_modules=[parts[0]])


KINDS = {
    "ignored": partly_ignored,
    "without parameters": lambda api: unit(api, nn.BatchNorm1d(2, affine=False)),
    "without its own": lambda api: unit(
        api, nn.Sequential(unit(api, nn.Linear(2, 2)), nn.BatchNorm1d(2, affine=False))
    ),
    "beside one": lambda api: nn.Sequential(nn.Linear(2, 2), unit(api, nn.Linear(2, 2))),
}


@pytest.mark.parametrize("rank_of_four", [0, 1], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
def test_what_ranks_have_of_a_state_dict_that_is_the_first_ones(
    rank_of_four: int, kind: str
) -> None:
    def keys(api: Any) -> list[str]:
        model = KINDS[kind](api)
        config = api.FullStateDictConfig(rank0_only=True)
        types = api.FullyShardedDataParallel.state_dict_type
        with types(model, api.StateDictType.FULL_STATE_DICT, config):
            return list(model.state_dict())

    assert keys(runtime) == keys(fsdp)


@pytest.mark.parametrize("rank_of_four", [1], indirect=True)
def test_sharded_states_are_dtensors(rank_of_four: int) -> None:
    model = unit(runtime, nn.Linear(2, 2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    with runtime.state_dict_type(model, runtime.StateDictType.SHARDED_STATE_DICT):
        of_type = runtime.optim_state_dict(model, optimizer)
    for saved in (of_type, runtime.sharded_optim_state_dict(model, optimizer)):
        assert isinstance(saved["state"]["bias"]["exp_avg"], DTensor)


@pytest.mark.parametrize("rank_of_four", [1], indirect=True)
def test_norms_are_summed_over_the_ranks_of_the_shards(
    rank_of_four: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = unit(runtime, nn.Linear(2, 2), device_mesh=mesh, sharding_strategy="HYBRID_SHARD")
    model(torch.ones(1, 2)).sum().backward()
    groups: list[Any] = []
    monkeypatch.setattr(
        clip.dist, "all_reduce", lambda *args, group=None, **options: groups.append(group)
    )
    model.clip_grad_norm_(1.0)
    assert groups == [mesh.get_group("shard")]


@pytest.mark.parametrize("rank_of_four", [0, 3], indirect=True)
def test_parts_of_fsdp1_are_loaded(rank_of_four: int) -> None:
    model, theirs = (unit(api, nn.Linear(3, 6)) for api in (runtime, fsdp))
    kind = fsdp.StateDictType.SHARDED_STATE_DICT
    with fsdp.FullyShardedDataParallel.state_dict_type(theirs, kind):
        state = theirs.state_dict()
    expected = [each.tensor for each in state["weight"].local_shards()]  # the last rank has none
    model.load_state_dict(state)
    found = model.weight.to_local()
    assert found.shape == (2 * len(expected), 3)
    assert all(torch.equal(found, each) for each in expected)


class Parts:
    """As a ShardedTensor of six rows by three has them."""

    shape, dtype = torch.Size([6, 3]), torch.float32

    def __init__(self, *own: torch.Tensor) -> None:
        self.own = own

    def local_shards(self) -> list[Any]:
        return [SimpleNamespace(tensor=each) for each in self.own]


@pytest.mark.parametrize("rank_of_four", [0], indirect=True)
def test_parts_that_are_cut_otherwise_are_refused(rank_of_four: int) -> None:
    weight = unit(runtime, nn.Linear(3, 6)).weight
    assert sharded_as(Parts(torch.ones(2, 3)), weight).dtype == torch.float32
    for parts in (Parts(), Parts(torch.ones(3, 3)), Parts(torch.ones(3, 2))):
        with pytest.raises(ValueError, match="a ShardedTensor has a part of shape"):
            sharded_as(parts, weight)


@pytest.mark.parametrize("rank_of_four", [1], indirect=True)
def test_what_is_laid_out_otherwise_is_laid_out_anew(rank_of_four: int) -> None:
    weight = unit(runtime, nn.Linear(3, 6)).weight.detach()
    assert sharded_as(weight, weight) is weight
    other = init_device_mesh("cpu", (4,), mesh_dim_names=("other",))
    for mesh, placement in ((weight.device_mesh, Replicate()), (other, Shard(0))):
        value = DTensor.from_local(torch.ones(2, 3), mesh, [placement], shape=(6, 3), stride=(3, 1))
        found = sharded_as(value, weight)
        assert (found.device_mesh, found.placements) == (weight.device_mesh, weight.placements)
