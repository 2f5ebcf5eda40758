"""What one rank of several does, as far as it needs no other one."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.fsdp as fsdp
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from fsdp_migrate import runtime
from fsdp_migrate.runtime import clip
from fsdp_migrate.runtime.gather import is_first, is_sharded, memory, sharded_as
from fsdp_migrate.runtime.mesh import build_mesh

from .units import unit


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


def partly_ignored(api: Any) -> nn.Module:
    parts = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.BatchNorm1d(2))
    return unit(api, parts, ignored_modules=[parts[0]])


class Extra(nn.Linear):
    """Has a state that is no tensor."""

    def get_extra_state(self) -> Any:
        return {"a": 1}


KINDS = {
    "ignored": partly_ignored,
    "an extra state": lambda api: unit(api, nn.Sequential(Extra(2, 2), nn.Linear(2, 2))),
    "without parameters": lambda api: unit(api, nn.BatchNorm1d(2, affine=False)),
    "without its own": lambda api: unit(
        api, nn.Sequential(unit(api, nn.Linear(2, 2)), nn.BatchNorm1d(2, affine=False))
    ),
    "beside one": lambda api: nn.Sequential(nn.Linear(2, 2), unit(api, nn.Linear(2, 2))),
}


@pytest.mark.parametrize("rank_of_four", [0, 1], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
def test_what_ranks_have_of_a_state_dict_of_the_first(rank_of_four: int, kind: str) -> None:
    def keys(api: Any) -> list[str]:
        model = KINDS[kind](api)
        config = api.FullStateDictConfig(rank0_only=True)
        types = api.FullyShardedDataParallel.state_dict_type
        with types(model, api.StateDictType.FULL_STATE_DICT, config):
            return list(model.state_dict())

    assert keys(runtime) == keys(fsdp)


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
    assert model.process_group is mesh.get_group("shard")
    assert model._inter_node_pg is mesh.get_group("replicate")
    assert unit(runtime, nn.Linear(2, 2), device_mesh=mesh["shard"]).process_group.size() == 2
    assert groups == [mesh.get_group("shard")]


@pytest.mark.parametrize("rank_of_four", [0, 3], indirect=True)
def test_parts_of_fsdp1_are_loaded(rank_of_four: int) -> None:
    half = torch.bfloat16
    model, theirs = (unit(api, nn.Linear(3, 6, dtype=half)) for api in (runtime, fsdp))
    kind = fsdp.StateDictType.SHARDED_STATE_DICT
    with fsdp.FullyShardedDataParallel.state_dict_type(theirs, kind):
        state = theirs.state_dict()
    expected = [each.tensor for each in state["weight"].local_shards()]  # the last rank has none
    assert sharded_as(state["weight"], model.weight).dtype == half
    assert [memory(state["weight"])] * len(expected) == [memory(each) for each in expected]
    model.load_state_dict(state)
    found = model.weight.to_local()
    assert found.shape == (2 * len(expected), 3)
    assert all(torch.equal(found, each) for each in expected)


class Parts:
    """As a ShardedTensor of six rows by three has them."""

    shape, dtype = torch.Size([6, 3]), torch.float32

    def __init__(self, *own: torch.Tensor) -> None:
        self.own, self._process_group = own, dist.group.WORLD

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


@pytest.mark.parametrize("rank_of_four", [1], indirect=True)
def test_meshes(rank_of_four: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def shape(strategy: str, **options: Any) -> Any:
        found = build_mesh(runtime.ShardingStrategy[strategy], "cpu", **options)
        is_own = found.ndim == 2 and found is not options.get("device_mesh")
        names = ("replicate", "shard") if is_own else None  # the program's own mesh stays as it is
        assert found.mesh_dim_names == names
        return found.mesh.tolist()

    unnamed = init_device_mesh("cpu", (2, 2))
    assert shape("HYBRID_SHARD", device_mesh=unnamed) == [[0, 1], [2, 3]]
    model = unit(runtime, nn.Linear(2, 2), device_mesh=unnamed, sharding_strategy="HYBRID_SHARD")
    assert model.process_group is unnamed.get_group(1)
    assert model._inter_node_pg is unnamed.get_group(0)
    pair = dist.new_group([0, 1])
    monkeypatch.setattr(torch.cpu, "device_count", lambda: 2)
    assert shape("HYBRID_SHARD") == [[0, 1], [2, 3]]
    assert shape("NO_SHARD", process_group=pair) == [[0], [1]]
    assert shape("NO_SHARD", process_group=dist.group.WORLD) == [[0], [1], [2], [3]]
    assert shape("FULL_SHARD", process_group=pair) == [0, 1]
    assert shape("FULL_SHARD", process_group=dist.group.WORLD) == [0, 1, 2, 3]
    monkeypatch.setattr(torch.cpu, "device_count", lambda: 3)
    with pytest.raises(ValueError, match="the 3 devices of a node, which does not divide"):
        shape("HYBRID_SHARD")
    with pytest.raises(ValueError, match="Expected process_group to be passed"):
        shape("HYBRID_SHARD", process_group=(pair, pair, pair))
    across = dist.new_group([1, 3])

    def all_gather(rows: list[torch.Tensor], row: torch.Tensor, group: Any = None) -> None:
        assert group is across
        rows[0].copy_(row)
        rows[1].copy_(row + 2)

    monkeypatch.setattr(dist, "all_gather", all_gather)
    assert shape("HYBRID_SHARD", process_group=(pair, across)) == [[0, 1], [2, 3]]


@pytest.mark.parametrize("rank_of_four", [1], indirect=True)
def test_what_is_broadcast(rank_of_four: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = dist.new_group([1, 2])

    def broadcast(sent: torch.Tensor, src: int, group: Any = None) -> None:
        assert (src, group) == (1, pair)
        sent.fill_(7)

    monkeypatch.setattr(dist, "broadcast", broadcast)
    below = unit(runtime, nn.BatchNorm1d(2))
    model = nn.Sequential(nn.Linear(2, 2), below, nn.Linear(2, 2))
    model[0].weight.data = torch.ones(2, 2).t()[:, :1].expand(2, 2).t().contiguous().t()
    runtime.broadcast_module_states(model, pair)
    own = [*model[0].parameters(), *model[2].parameters()]
    assert all((each == 7).all() for each in own)
    assert not (below.running_mean == 7).any()


@pytest.mark.parametrize("rank_of_four", [1], indirect=True)
def test_the_ranks_of_a_scaler_agree(rank_of_four: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = dist.new_group([1, 2])
    asked: list[Any] = []

    def all_reduce(found: torch.Tensor, group: Any = None) -> None:
        asked.append(group)
        found.fill_(1)  # the other one has found something

    model = unit(runtime, nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = runtime.ShardedGradScaler("cpu", init_scale=4.0, process_group=pair)
    scaler.scale(model(torch.ones(1, 2)).sum()).backward()
    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    before = model.weight.to_local().clone()
    scaler.step(optimizer)
    scaler.update()
    assert asked == [pair]
    assert scaler.get_scale() == 2.0
    assert torch.equal(model.weight.to_local(), before)
