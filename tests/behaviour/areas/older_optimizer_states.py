"""Optimizers' states by FSDP1's older functions, and keys that change."""

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..registry import each, holds
from .common import batches, error, full, in_blocks, net, train
from .optimizers import load, plain, same, saved, stepped


@holds()
def input_of_an_optimizer(api: Any) -> Any:
    """The older functions take the parameters as `optim_input`, too."""
    model, optimizer = stepped(api, use_orig_params=False)
    local, key = net(), api.fully_sharded_data_parallel.OptimStateKeyType.PARAM_ID
    save, whole = api.FSDP.full_optim_state_dict, {"rank0_only": False}
    found = [plain(save(model, optimizer, **whole))]
    found.append(plain(save(model, optimizer, optim_input=list(model.parameters()), **whole)))
    given = list(local.parameters())
    api.FSDP.rekey_optim_state_dict(found[0], key, local, optim_input=given)
    return found


@holds()
def older_states(api: Any) -> Any:
    """`full_optim_state_dict` and `shard_full_optim_state_dict` save and load whole states, `sharded_optim_state_dict` and
    `flatten_sharded_optim_state_dict` shards."""
    results: list[Any] = []
    for save, convert, how in (
        ("full_optim_state_dict", "shard_full_optim_state_dict", {"rank0_only": False}),
        ("sharded_optim_state_dict", "flatten_sharded_optim_state_dict", {}),
    ):
        model, optimizer = stepped(api, use_orig_params=False)
        before = plain(api.FSDP.full_optim_state_dict(model, optimizer, rank0_only=False))
        state = getattr(api.FSDP, save)(model, optimizer, **how)
        train(model, optimizer)
        optimizer.load_state_dict(getattr(api.FSDP, convert)(state, model, optim=optimizer))
        after = plain(api.FSDP.full_optim_state_dict(model, optimizer, rank0_only=False))
        assert same(before, after)
        results.append((sorted(state["state"]), before, after))
    return results


@holds()
def older_full_states_of_rank_0(api: Any) -> Any:
    """By default `full_optim_state_dict` gives them to rank 0 only, and `scatter_full_optim_state_dict` hands them out."""
    model, optimizer = stepped(api, use_orig_params=False)
    state = api.FSDP.full_optim_state_dict(model, optimizer)
    assert (state == {}) == (dist.get_rank() != 0)
    before = plain(state)
    train(model, optimizer)
    given = state if dist.get_rank() == 0 else None
    optimizer.load_state_dict(api.FSDP.scatter_full_optim_state_dict(given, model, optim=optimizer))
    return before, plain(api.FSDP.full_optim_state_dict(model, optimizer, rank0_only=False))


@holds()
def older_states_without_the_optimizer(api: Any) -> Any:
    """Without the optimizer, `scatter_full_optim_state_dict` finds the groups of parameters in the state dict."""
    model, _ = stepped(api)
    weights = [p for name, p in model.named_parameters() if name.endswith("weight")]
    others = [p for name, p in model.named_parameters() if not name.endswith("weight")]
    optimizer = torch.optim.Adam([{"params": others}, {"params": weights, "lr": 0.1}], lr=0.05)
    train(model, optimizer)
    state = api.FSDP.full_optim_state_dict(model, optimizer)
    before = plain(state)
    train(model, optimizer)
    given = state if dist.get_rank() == 0 else None
    optimizer.load_state_dict(api.FSDP.scatter_full_optim_state_dict(given, model))
    again = plain(api.FSDP.full_optim_state_dict(model, optimizer))
    assert str(again) == str(before)
    return again


class Outside(nn.Module):
    """A unit, and what is in none: parameters that may be new."""

    def __init__(self, api: Any, more: bool, ignored: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.Linear(4, 4)
        if more and ignored:
            layer.extra = nn.Parameter(torch.ones(4))
        states = [layer.extra] if more and ignored else None
        self.block = api.FSDP(layer, use_orig_params=True, ignored_states=states)
        if more and not ignored:
            self.extra = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x)


def parameters_of(model: nn.Module, apart: bool) -> list[Any]:
    """In one group, or what is new in one of its own."""
    new = [p for name, p in model.named_parameters() if name.endswith("extra")]
    old = [p for name, p in model.named_parameters() if not name.endswith("extra")]
    return [{"params": old}, {"params": new}] if apart else [*old, *new]


@each(
    {
        "new_beside_units": (
            "A parameter outside of units that the states do not know is left out of them.",
        ),
        "new_in_a_group": ("So it is where it has a group of its own.", True),
        "new_and_ignored": ("So is a new parameter that its unit ignores.", False, True),
    }
)
def new_parameters(api: Any, apart: bool = False, ignored: bool = False) -> Any:
    results = []
    for save, convert, how in (
        ("full_optim_state_dict", "shard_full_optim_state_dict", {"rank0_only": False}),
        ("sharded_optim_state_dict", "flatten_sharded_optim_state_dict", {}),
        ("optim_state_dict", "optim_state_dict_to_load", {}),
    ):
        model = Outside(api, more=False)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        train(model, optimizer)
        states = getattr(api.FSDP, save)(model, optimizer, **how)
        model = Outside(api, True, ignored)
        optimizer = torch.optim.Adam(parameters_of(model, apart), lr=0.05)
        given = (model, optimizer, states) if "to_load" in convert else (states, model)
        options = {} if "to_load" in convert else {"optim": optimizer}
        loaded = getattr(api.FSDP, convert)(*given, **options)
        assert len(loaded["param_groups"]) == 1
        results.append([*loaded["param_groups"][0]["params"]])
        if not apart:  # the program adds the new one, and the optimizer goes on
            loaded["param_groups"][0]["params"].append(2)
            optimizer.load_state_dict(loaded)
            results.append((train(model, optimizer), sorted(full(api, model).items())))
    return results


@holds()
def rekey_to_ids(api: Any) -> Any:
    """`rekey_optim_state_dict` turns names into the numbers of an optimizer without FSDP, which loads it."""
    model, optimizer = stepped(api)
    state = api.FSDP.full_optim_state_dict(model, optimizer, rank0_only=False)
    local = net()
    local.load_state_dict(model.state_dict())
    other = torch.optim.Adam(local.parameters(), lr=0.05)
    keys = api.fully_sharded_data_parallel.OptimStateKeyType
    rekeyed = api.FSDP.rekey_optim_state_dict(state, keys.PARAM_ID, local, optim=other)
    assert sorted(rekeyed["state"]) == list(range(12))
    other.load_state_dict(rekeyed)
    return plain(rekeyed)


@holds()
def rekey_to_names(api: Any) -> Any:
    """`rekey_optim_state_dict` turns numbers into names, which an optimizer of units loads."""
    local = net()
    other = torch.optim.Adam(local.parameters(), lr=0.05)
    local(torch.ones(2, 4)).pow(2).mean().backward()
    other.step()
    keys = api.fully_sharded_data_parallel.OptimStateKeyType
    state = api.FSDP.rekey_optim_state_dict(other.state_dict(), keys.PARAM_NAME, local, optim=other)
    assert "blocks.1.up.bias" in state["state"]
    model = in_blocks(api)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    load(api, model, optimizer, state)
    return plain(state), saved(api, model, optimizer)


@holds()
def ranks_with_other_parameters(api: Any) -> Any:
    """Ranks whose optimizers have other parameters are an error for `full_optim_state_dict` of flat parameters."""
    model = in_blocks(api, use_orig_params=False)
    given = list(model.parameters())
    optimizer = torch.optim.Adam(given[: len(given) - 2 * dist.get_rank()], lr=0.05)
    train(model, optimizer)
    text = error(lambda: api.FSDP.full_optim_state_dict(model, optimizer, rank0_only=False))
    return text.splitlines()[0]


@holds()
def all_of_the_interface(api: Any) -> Any:
    """Given states are converted as the optimizer's own; by default to the CPU, and sharded where that is asked for."""
    types = api.StateDictType
    model, optimizer = stepped(api)
    own = copy.deepcopy(optimizer.state_dict())
    state = plain(api.FSDP.optim_state_dict(model, optimizer, optim_state_dict=own))
    assert str(state) == str(saved(api, model, optimizer))
    config = api.ShardedOptimStateDictConfig(offload_to_cpu=False)
    with api.FSDP.state_dict_type(
        model, types.SHARDED_STATE_DICT, api.ShardedStateDictConfig(), config
    ):
        sharded = api.FSDP.optim_state_dict(model, optimizer, optim_state_dict=own)
    train(model, optimizer)
    api.FSDP.optim_state_dict_to_load(model, optimizer, sharded, load_directly=True)
    assert str(saved(api, model, optimizer)) == str(state)
    return state


@holds()
def several_calls(api: Any) -> Any:
    """Saving and loading in every step changes nothing."""
    results = []
    for saves in (False, True):
        model = in_blocks(api)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        losses = []
        for x in batches(4):
            losses += train(model, optimizer, inputs=[x])
            if saves:
                state = api.FSDP.optim_state_dict(model, optimizer)
                api.FSDP.optim_state_dict_to_load(model, optimizer, state, load_directly=True)
        results.append((losses, full(api, model)))
    assert results[0][0] == results[1][0]
    return results
