"""Optimizers' states: saving and loading them, whole and sharded."""

import copy
import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh

from ..registry import cannot, each, holds
from .common import batches, blocks_by_hand, close, full, in_blocks, layers, net, said, train
from .process_groups import two_groups


def stepped(api: Any, model: Any = None, optimizer: Any = torch.optim.Adam, **options: Any) -> Any:
    """A model and its optimizer after a few steps."""
    model = model or in_blocks(api, **options)
    optimizer = optimizer(model.parameters(), lr=0.05)
    train(model, optimizer)
    return model, optimizer


def alone() -> dict[str, Any]:
    """The state of the same optimizer without FSDP, by name."""
    model = copy.deepcopy(net())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for x in batches(2):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
    return {name: optimizer.state[p] for name, p in model.named_parameters()}


def plain(state: Any) -> Any:
    """A copy of a state as it is now, sorted by name: flat parameters come in another order."""
    if isinstance(state, dict):
        return {
            k: sorted(state[k]) if k == "params" else plain(state[k])
            for k in sorted(state, key=str)
        }
    if isinstance(state, list):
        return [plain(each) for each in state]
    return state.detach().clone() if isinstance(state, torch.Tensor) else state


def saved(api: Any, model: Any, optimizer: Any) -> Any:
    """The states of an optimizer as they are now."""
    return plain(api.FSDP.optim_state_dict(model, optimizer))


def load(api: Any, model: Any, optimizer: Any, state: Any) -> None:
    optimizer.load_state_dict(api.FSDP.optim_state_dict_to_load(model, optimizer, state))


def go_on(api: Any, model: Any, optimizer: Any, again: Any, other: Any) -> list[float]:
    """The losses of another model that takes the states over; they are those of the first one."""
    again.load_state_dict(model.state_dict())
    load(api, again, other, api.FSDP.optim_state_dict(model, optimizer))
    rest = batches(6)[3:]
    losses = train(again, other, inputs=rest)
    assert losses == train(model, optimizer, inputs=rest)
    return losses


def same(before: Any, after: Any) -> bool:
    """Whether two saved states hold the same averages."""
    assert before["state"].keys() == after["state"].keys()
    return all(
        torch.equal(state["exp_avg"], after["state"][name]["exp_avg"])
        for name, state in before["state"].items()
    )


@holds(tolerance=1e-6)
def keys_and_values(api: Any) -> Any:
    """`optim_state_dict` gives the states of an optimizer without FSDP, by the names of the parameters."""
    results, expected = [], alone()
    for use_orig_params in (True, False):
        model, optimizer = stepped(api, use_orig_params=use_orig_params)
        state = api.FSDP.optim_state_dict(model, optimizer)
        assert set(state) == {"state", "param_groups"}
        assert set(state["state"]) == set(expected)
        for name, of_one in expected.items():
            torch.testing.assert_close(state["state"][name]["exp_avg"], of_one["exp_avg"])
        results.append(plain(state))
    return results


def in_parts(api: Any) -> Any:
    """One unit is used, the other not."""
    parts = layers(lambda m, x: m.used(x), unused=(4, 4), used=(4, 4))
    return api.FSDP(parts, auto_wrap_policy=api.wrap.always_wrap_policy, use_orig_params=True)


def below_checkpoints(api: Any) -> Any:
    model = in_blocks(api)
    apply_activation_checkpointing(model, check_fn=lambda m: type(m) is nn.Linear)
    return model


def with_an_ignored_head(api: Any) -> Any:
    model = net()
    return in_blocks(api, model, ignored_modules=[model.head])


NAMES = {name for name, _ in net().named_parameters()}


SAVED: dict[str, tuple[Any, ...]] = {
    "keys_are_those_of_the_model": ("The names are those of the model's state dict.", in_blocks),
    "no_shard": (
        "NO_SHARD saves and loads the same states.",
        lambda api: in_blocks(api, sharding_strategy=api.ShardingStrategy.NO_SHARD),
    ),
    "units_without_states": (
        "Units that were not used have no states, and the others are saved and loaded.",
        in_parts, {"used.bias", "used.weight"},
    ),
    "ignored_parameters": (
        "States of ignored parameters are saved and loaded with the others.", with_an_ignored_head,
    ),
    "offload": (
        "States of parameters on the CPU are saved and loaded.",
        lambda api: in_blocks(api, cpu_offload=api.CPUOffload(offload_params=True)),
    ),
    "parameters_outside_of_units": (
        "States of parameters that are in no unit are saved and loaded with the others.",
        lambda api: blocks_by_hand(api, use_orig_params=True),
    ),
    "units_below_checkpoints": (
        "Activation checkpoint wrappers do not show in the names of states.", below_checkpoints
    ),
}  # fmt: skip


@each(SAVED)
def saved_and_loaded(api: Any, build: Any, names: set[str] = NAMES) -> Any:
    model, optimizer = stepped(api, build(api))
    state = api.FSDP.optim_state_dict(model, optimizer)
    before = plain(state)
    buffers = {name for name, _ in model.named_buffers()}
    assert set(before["state"]) == names <= set(model.state_dict()) - buffers
    load(api, model, optimizer, state)
    return before, train(model, optimizer)


@holds()
def loading(api: Any) -> Any:
    """`optim_state_dict_to_load` gives what another optimizer loads, which then trains the same."""
    results = []
    for use_orig_params in (True, False):
        model, optimizer = stepped(api, use_orig_params=use_orig_params)
        again = in_blocks(api, use_orig_params=use_orig_params)
        other = torch.optim.Adam(again.parameters(), lr=0.05)
        results.append(go_on(api, model, optimizer, again, other))
        assert close(full(api, model), full(api, again))
    return results


@holds()
def loading_directly(api: Any) -> Any:
    """`load_directly` loads it into the optimizer at once."""
    model, optimizer = stepped(api)
    state = api.FSDP.optim_state_dict(model, optimizer)
    before = plain(state)
    train(model, optimizer)
    api.FSDP.optim_state_dict_to_load(model, optimizer, state, load_directly=True)
    after = saved(api, model, optimizer)
    assert same(before, after)
    return after


@holds()
def rank0_only(api: Any) -> Any:
    """`rank0_only` gives rank 0 the states, and the others nothing; with it set, they are loaded on every rank."""
    types = api.StateDictType
    model, optimizer = stepped(api)
    whole = saved(api, model, optimizer)
    config = api.FullOptimStateDictConfig(rank0_only=True, offload_to_cpu=True)
    with api.FSDP.state_dict_type(model, types.FULL_STATE_DICT, api.FullStateDictConfig(), config):
        state = api.FSDP.optim_state_dict(model, optimizer)
        assert (state == {}) == (dist.get_rank() != 0)
        before = plain(state)
        train(model, optimizer)
        load(api, model, optimizer, state)
    after = saved(api, model, optimizer)
    assert same(whole, after)
    return before, after


@holds()
def sharded_type(api: Any) -> Any:
    """With SHARDED_STATE_DICT the states are shards with the same names, with a device mesh DTensors, and load."""
    results: list[Any] = []
    for options in ({}, {"device_mesh": init_device_mesh("cpu", (2,))}):
        model, optimizer = stepped(api, **options)
        before = saved(api, model, optimizer)
        with api.FSDP.state_dict_type(model, api.StateDictType.SHARDED_STATE_DICT):
            state = api.FSDP.optim_state_dict(model, optimizer)
            shard = state["state"]["stem.weight"]["exp_avg"]
            assert type(shard) is not torch.Tensor
            if options:
                assert torch.equal(shard.full_tensor(), before["state"]["stem.weight"]["exp_avg"])
                results.append((type(shard).__name__, str(shard.placements)))
            train(model, optimizer)
            load(api, model, optimizer, state)
        after = saved(api, model, optimizer)
        assert same(before, after)
        results.append((tuple(shard.size()), sorted(state["state"]), after))
    return results, train(model, optimizer)


@holds()
def without_groups(api: Any) -> Any:
    """A state dict without groups is converted without them."""
    model, optimizer = stepped(api)
    own = copy.deepcopy(optimizer.state_dict())
    groups = own.pop("param_groups")
    state = api.FSDP.optim_state_dict(model, optimizer, optim_state_dict=own)
    assert "param_groups" not in state
    loaded = api.FSDP.optim_state_dict_to_load(model, optimizer, state)
    loaded["param_groups"] = groups
    optimizer.load_state_dict(loaded)
    return plain(state), train(model, optimizer)


@holds()
def before_the_first_step(api: Any) -> Any:
    """Before the first step the states are empty."""
    model = in_blocks(api)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    state = api.FSDP.optim_state_dict(model, optimizer)
    assert state["state"] == {}
    return plain(state)


@holds()
def asked_for_after_an_evaluation(api: Any) -> Any:
    """To ask for states frees nothing that an evaluation gathered: what was changed since shows after the next backward."""
    model = in_blocks(api)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-3)
    losses = train(model, optimizer)
    with torch.no_grad():
        model(*batches(1))
        for parameter in model.parameters():
            parameter.mul_(0.5)
    api.FSDP.optim_state_dict(model, optimizer)
    return losses + train(model, optimizer)


@holds()
def other_entries(api: Any) -> Any:
    """Entries of a state that are no tensors are saved and loaded."""
    results = []
    for make in (torch.optim.Adam, torch.optim.SGD):
        model = in_blocks(api)
        optimizer = make(model.parameters(), lr=0.05)
        train(model, optimizer)
        own = copy.deepcopy(optimizer.state_dict())
        for of_one in own["state"].values():
            of_one["mine"], of_one["none"] = 2.74, None
        state = api.FSDP.optim_state_dict(model, optimizer, optim_state_dict=own)
        loaded = api.FSDP.optim_state_dict_to_load(model, optimizer, state)
        assert all(s["mine"] == 2.74 and s["none"] is None for s in loaded["state"].values())
        results.append(plain(state))
    return results


@holds()
def parameters_that_come_and_go(api: Any) -> Any:
    """Parameters that are frozen in every other step keep the states that they have."""
    model = in_blocks(api)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    states = []
    for step, x in enumerate(batches(4)):
        for parameter in model.head.parameters():
            parameter.requires_grad_(step % 2 == 1)
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
        states.append(saved(api, model, optimizer))
    assert "head.bias" not in states[0]["state"]
    assert "head.bias" in states[1]["state"]
    return states


@holds()
def into_other_units(api: Any) -> Any:
    """States of one wrapping load into another."""
    model, optimizer = stepped(api)
    again = api.FSDP(net(), auto_wrap_policy=api.wrap.always_wrap_policy, use_orig_params=True)
    go_on(api, model, optimizer, again, torch.optim.Adam(again.parameters(), lr=0.05))
    return full(api, again)


@holds(ranks=4, tolerance=1e-6)
def from_four_ranks_to_two(api: Any) -> Any:
    """States of four ranks load into an optimizer over two."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = pairs[dist.get_rank() // 2]
    model, optimizer = stepped(api)
    state = api.FSDP.optim_state_dict(model, optimizer)
    again = in_blocks(api, process_group=mine)
    other = torch.optim.Adam(again.parameters(), lr=0.05)
    other.load_state_dict(api.FSDP.optim_state_dict_to_load(again, other, state, group=mine))
    found = plain(api.FSDP.optim_state_dict(again, other, group=mine))
    assert same(plain(state), found)
    return found


@holds()
def torchs_state_dict_functions(api: Any) -> Any:
    """`get_optimizer_state_dict` gives the same names and whole states, and `set_optimizer_state_dict` takes them."""
    model, optimizer = stepped(api)
    options = StateDictOptions(full_state_dict=True)
    state = get_optimizer_state_dict(model, optimizer, options=options)
    assert set(state["state"]) == {name for name, _ in net().named_parameters()}
    before = plain(state)
    set_optimizer_state_dict(model, optimizer, state, options=options)
    return before, train(model, optimizer)


def through_a_file(api: Any, model: Any, optimizer: Any) -> Any:
    """What `load_sharded_optimizer_state_dict` reads of the states that SHARDED_STATE_DICT has."""
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    with api.FSDP.state_dict_type(model, api.StateDictType.SHARDED_STATE_DICT):
        states = {
            "model": model.state_dict(),
            "optimizer": api.FSDP.optim_state_dict(model, optimizer),
        }
        dcp.save(states, checkpoint_id=folder[0])
        read = load_sharded_optimizer_state_dict(
            states["model"], "optimizer", dcp.FileSystemReader(folder[0])
        )
        return api.FSDP.optim_state_dict_to_load(model, optimizer, read["optimizer"])


@holds(tolerance=1e-6)
def sharded_states_from_files(api: Any) -> Any:
    """What `load_sharded_optimizer_state_dict` reads is loaded, under FULL_SHARD and under NO_SHARD."""
    results = []
    for strategy in (api.ShardingStrategy.FULL_SHARD, api.ShardingStrategy.NO_SHARD):
        model, optimizer = stepped(api, sharding_strategy=strategy)
        before = saved(api, model, optimizer)
        optimizer.load_state_dict(through_a_file(api, model, optimizer))
        after = saved(api, model, optimizer)
        assert same(before, after)
        results.append((after, train(model, optimizer)))
    return results


@cannot(
    "FSDP1 takes the parts of one node's ranks for all; the runtime joins those of all", ranks=4
)
def hybrid_states_from_files(api: Any) -> Any:
    """Under HYBRID_SHARD the states that `load_sharded_optimizer_state_dict` reads are loaded with elements missing."""
    strategy = api.ShardingStrategy.HYBRID_SHARD
    model, optimizer = stepped(api, sharding_strategy=strategy, process_group=two_groups())
    before = saved(api, model, optimizer)
    optimizer.load_state_dict(through_a_file(api, model, optimizer))
    after = saved(api, model, optimizer)
    is_fsdp1 = api.FSDP.__module__.startswith("torch.")
    assert is_fsdp1 != same(before, after)
    return after


@holds()
def entries_of_no_parameter(api: Any) -> Any:
    """A key of the states that is no parameter's is saved as it is, with a warning, and loaded."""
    model = in_blocks(api)
    model, optimizer = stepped(api, model)
    own = copy.deepcopy(optimizer.state_dict())
    own["state"]["mine"] = {"count": 3, "mean": torch.arange(5.0)}
    found: list[Any] = []
    texts = said(
        lambda: found.append(api.FSDP.optim_state_dict(model, optimizer, optim_state_dict=own))
    )
    loaded = api.FSDP.optim_state_dict_to_load(model, optimizer, found[0])
    assert torch.equal(loaded["state"]["mine"]["mean"], torch.arange(5.0))
    optimizer.load_state_dict(loaded)
    return (
        [t for t in texts if "Found a optim state" in t],
        plain(found[0]),
        train(model, optimizer),
    )
