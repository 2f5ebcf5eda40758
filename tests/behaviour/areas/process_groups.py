"""Groups and meshes: which ranks share a model's shards, and which hold copies of them."""

from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate

from ..registry import holds
from .common import close, error, full, in_blocks, net, said, state_of, train


@holds()
def a_group(api: Any) -> Any:
    """`process_group` says over which ranks a model is sharded."""
    group = dist.new_group([0, 1])
    model = in_blocks(api, process_group=group)
    assert model.process_group is group
    assert model.blocks[0].process_group is group
    return model.rank, model.world_size, train(model), full(api, model)


@holds(ranks=4, tolerance=1e-6)
def groups_of_two_among_four(api: Any) -> Any:
    """Two groups of two ranks, or a dimension of a mesh, train two models."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))["dp"]
    results = []
    for options in (
        {"process_group": groups[dist.get_rank() // 2], "sync_module_states": True},
        {"device_mesh": mesh, "sharding_strategy": api.ShardingStrategy.NO_SHARD},
    ):
        model = in_blocks(api, **options)
        losses = train(model)
        results.append((model.rank, model.world_size, losses, full(api, model)))
    return results


@holds()
def a_mesh(api: Any) -> Any:
    """A device mesh of one dimension says so too."""
    mesh = init_device_mesh("cpu", (2,))
    model = in_blocks(api, device_mesh=mesh)
    assert model.process_group is mesh.get_group()
    return model.rank, model.world_size, train(model), full(api, model)


@holds()
def hybrid_by_hand_needs_groups(api: Any) -> Any:
    """The hybrid strategies without a policy want a pair of groups or a mesh."""
    strategies = api.ShardingStrategy
    texts = [
        error(lambda s=s: api.FSDP(net(), sharding_strategy=s))
        for s in (strategies.HYBRID_SHARD, strategies._HYBRID_SHARD_ZERO2)
    ]
    assert "requires explicit specification of process group" in texts[0]
    return texts


def two_by_two(api: Any, **options: Any) -> Any:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    return in_blocks(api, device_mesh=mesh, **options)


@holds(ranks=4)
def hybrid_over_a_mesh(api: Any) -> Any:
    """HYBRID_SHARD over a mesh shards inside of its rows and replicates across them."""
    model = two_by_two(api, sharding_strategy=api.ShardingStrategy.HYBRID_SHARD)
    return model.world_size, model.sharding_strategy.name, train(model), full(api, model)


@holds(ranks=4)
def hybrid_zero2_over_a_mesh(api: Any) -> Any:
    """_HYBRID_SHARD_ZERO2 does so too, and trains the same."""
    model = two_by_two(api, sharding_strategy=api.ShardingStrategy._HYBRID_SHARD_ZERO2)
    return model.sharding_strategy.name, train(model), full(api, model)


def two_groups() -> tuple[Any, Any]:
    rank = dist.get_rank()
    inside = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    across = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    return inside[rank // 2], across[rank % 2]


@holds(ranks=4, tolerance=1e-6)
def full_shard_over_two_dimensions(api: Any) -> Any:
    """Over a mesh of two dimensions FULL_SHARD shards along the first, and NO_SHARD replicates along it."""
    results = []
    for strategy in (api.ShardingStrategy.FULL_SHARD, api.ShardingStrategy.NO_SHARD):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
        model = in_blocks(api, device_mesh=mesh, sharding_strategy=strategy)
        assert model.process_group is mesh.get_group(0)
        results.append((model.rank, model.world_size, train(model), full(api, model)))
    return results


@holds(ranks=4)
def hybrid_over_groups(api: Any) -> Any:
    """A pair of groups, of one node and across nodes, does the same as a mesh."""
    groups = two_groups()
    model = in_blocks(
        api, process_group=groups, sharding_strategy=api.ShardingStrategy.HYBRID_SHARD
    )
    assert model.process_group is groups[0]
    return model.world_size, train(model), full(api, model)


@holds(ranks=4)
def hybrid_over_nodes(api: Any) -> Any:
    """With a policy HYBRID_SHARD needs no groups: it shards over the devices of a node."""
    with mock.patch.object(torch.cpu, "device_count", return_value=2):
        model = in_blocks(api, sharding_strategy=api.ShardingStrategy.HYBRID_SHARD)
        return model.world_size, train(model), full(api, model)


@holds(ranks=4)
def hybrid_states(api: Any) -> Any:
    """State dicts of a hybrid model are whole, and load."""
    model = two_by_two(api, sharding_strategy=api.ShardingStrategy.HYBRID_SHARD)
    losses, state = train(model), model.state_dict()
    other = two_by_two(api, sharding_strategy=api.ShardingStrategy.HYBRID_SHARD)
    other.load_state_dict(state)
    assert close(full(api, model), full(api, other))
    return losses, state


@holds()
def a_group_of_one_rank(api: Any) -> Any:
    """Over one rank a unit becomes NO_SHARD, and a warning says so unless it was asked for."""
    mine = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    strategies, built = api.ShardingStrategy, []
    texts = []
    for strategy in (None, strategies.FULL_SHARD, strategies.SHARD_GRAD_OP, strategies.NO_SHARD):
        options = {"process_group": mine, "sharding_strategy": strategy}
        texts.append(said(lambda o=options: built.append(api.FSDP(nn.Linear(3, 3), **o))))
    switching = [[t for t in each if "switching" in t] for each in texts]
    assert [len(each) for each in switching] == [1, 1, 1, 0]
    return switching, [model.sharding_strategy.name for model in built]


@holds(ranks=4)
def hybrid_states_of_rank_0(api: Any) -> Any:
    """`sync_module_states` gives all ranks of a hybrid model the states of rank 0."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(dist.get_rank())
    layer = nn.Linear(4, 4)
    layer.register_buffer("mark", torch.full((2,), float(dist.get_rank())))
    torch.manual_seed(0)
    first = nn.Linear(4, 4)
    model = api.FSDP(
        layer,
        device_mesh=mesh,
        sharding_strategy=api.ShardingStrategy.HYBRID_SHARD,
        sync_module_states=True,
    )
    found = full(api, model)
    assert torch.equal(found["weight"], first.weight)
    assert not model.mark.any()
    return found


@holds(ranks=4, tolerance=1e-6)
def hybrid_over_a_mesh_without_names(api: Any) -> Any:
    """A mesh without names stays the program's own: its states are on it, and can be redistributed on an equal one."""
    results = []
    strategies = api.ShardingStrategy
    for strategy in (strategies.HYBRID_SHARD, strategies._HYBRID_SHARD_ZERO2):
        for make in (in_blocks, lambda api, **options: api.FSDP(net(), **options)):
            # Of ranks as no other behaviour has them: DTensor remembers meshes of equal ranks, whatever their names.
            mesh, equal = (DeviceMesh("cpu", [[0, 2], [1, 3]]) for _ in range(2))
            model = make(api, device_mesh=mesh, sharding_strategy=strategy)
            losses, state = train(model), state_of(api, model, "SHARDED_STATE_DICT")
            values = [value for value in state.values() if isinstance(value, DTensor)]
            assert len(values) == len(list(net().parameters()))
            assert all(value.device_mesh == mesh for value in values)
            assert mesh.mesh_dim_names is None
            again = make(api, device_mesh=equal, sharding_strategy=strategy)
            whole = [v.redistribute(equal, [Replicate(), Replicate()]).to_local() for v in values]
            with api.FSDP.state_dict_type(again, api.StateDictType.SHARDED_STATE_DICT):
                again.load_state_dict(state)
            results.append((losses, whole, full(api, again)))
    return results


@holds(ranks=4)
def hybrid_shards(api: Any) -> Any:
    """Over a mesh of two dimensions SHARDED_STATE_DICT has DTensors that are sharded in its rows, and loads."""
    model = two_by_two(api, sharding_strategy=api.ShardingStrategy.HYBRID_SHARD)
    train(model)
    types = api.StateDictType
    state = state_of(api, model, "SHARDED_STATE_DICT")
    again = two_by_two(api, sharding_strategy=api.ShardingStrategy.HYBRID_SHARD)
    with api.FSDP.state_dict_type(again, types.SHARDED_STATE_DICT):
        again.load_state_dict(state)
    assert close(full(api, model), full(api, again))
    return {n: (type(t).__name__, str(getattr(t, "placements", ""))) for n, t in state.items()}
