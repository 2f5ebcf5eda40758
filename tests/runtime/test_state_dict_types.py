"""What the state dict functions refuse, and what they do on one rank."""

import copy
from typing import Any

import pytest
import torch
import torch.distributed.fsdp as fsdp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from fsdp_migrate import runtime
from fsdp_migrate.runtime import OptimStateKeyType, StateDictType

pytestmark = pytest.mark.usefixtures("one_rank")
FULL, SHARDED = StateDictType.FULL_STATE_DICT, StateDictType.SHARDED_STATE_DICT


def model() -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
    fully_shard(made[0])
    return fully_shard(made)


def stepped(model: nn.Module, *groups: dict[str, Any]) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(groups or model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return optimizer


def two_groups(model: Any, first: int) -> list[dict[str, Any]]:
    parts = [model[first].parameters(), model[1 - first].parameters()]
    return [{"params": parts[0], "lr": first}, {"params": parts[1], "lr": 1 - first}]


class TestTypes:
    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (("FULL",), "'FULL' is not a valid StateDictType"),
            (
                (FULL, runtime.ShardedStateDictConfig()),
                r"Expected state_dict_config of type .*\.FullStateDictConfig.* but got .*\.ShardedState",
            ),
            (
                (SHARDED, None, runtime.FullOptimStateDictConfig()),
                r"Expected optim_state_dict_config of type .*\.ShardedOptim.* but got .*\.FullOptim",
            ),
        ],
    )
    def test_refuses(self, given: Any, message: str) -> None:
        sharded = model()
        for function in (runtime.set_state_dict_type, enter):
            with pytest.raises((ValueError, RuntimeError), match=message):
                function(sharded, *given)
        assert isinstance(sharded.state_dict()["0.bias"], DTensor)

    def test_torchs_own_objects_do(self) -> None:
        sharded = model()
        config = fsdp.FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
        kind = fsdp.StateDictType.FULL_STATE_DICT
        runtime.set_state_dict_type(sharded, kind, config, fsdp.FullOptimStateDictConfig())
        assert runtime.get_state_dict_type(sharded) == fsdp.StateDictSettings(
            kind, config, fsdp.FullOptimStateDictConfig()
        )
        assert not isinstance(sharded.state_dict()["0.bias"], DTensor)


def enter(*given: Any) -> None:
    with runtime.state_dict_type(*given):
        pass


class TestOptimizers:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda saved: saved.pop("state"), "has no 'state'"),
            (lambda saved: saved["state"].update({0: {}}), "keyed by numbers.*rekey_optim_state"),
            (
                lambda saved: saved["param_groups"][0]["params"].remove("1.bias"),
                "is not in its state dict",
            ),
            (
                lambda saved: saved["param_groups"][0]["params"].append("2.bias"),
                "contains '2.bias'",
            ),
            (lambda saved: saved["param_groups"].append({"params": []}), "has 2 groups"),
            (
                lambda saved: saved["state"]["0.bias"].update(exp_avg=torch.ones(3)),
                r"shape \(3,\) and the parameter \(6,\): it may be the shard of one rank",
            ),
        ],
    )
    def test_refuses(self, change: Any, message: str) -> None:
        sharded = model()
        optimizer = stepped(sharded)
        saved = runtime.optim_state_dict(sharded, optimizer)
        change(saved)
        before = copy.deepcopy(optimizer.state_dict())
        with pytest.raises(ValueError, match=message):
            runtime.optim_state_dict_to_load(sharded, optimizer, saved, load_directly=True)
        assert str(optimizer.state_dict()) == str(before)

    def test_refuses_other_objects_and_other_parameters(self) -> None:
        sharded = model()
        with pytest.raises(ValueError, match="expected a model, an optimizer and its state dict"):
            runtime.optim_state_dict_to_load(sharded, {}, {})
        with pytest.raises(ValueError, match="expected a model"):
            runtime.optim_state_dict_to_load({}, stepped(sharded), {})
        with pytest.raises(ValueError, match="create it after the model is sharded"):
            runtime.optim_state_dict(sharded, torch.optim.SGD(nn.Linear(2, 2).parameters()))

    def test_takes_every_order_of_arguments(self) -> None:
        sharded = model()
        optimizer = stepped(sharded)
        saved = runtime.optim_state_dict(sharded, optimizer)
        now = runtime.optim_state_dict_to_load(sharded, optimizer, saved)
        then = runtime.optim_state_dict_to_load(saved, sharded, optimizer)
        named = runtime.optim_state_dict_to_load(
            optim_state_dict=saved, model=sharded, optim=optimizer
        )
        assert str(now) == str(then) == str(named)

    def test_finds_groups_by_their_parameters(self) -> None:
        sharded = model()
        saved = runtime.optim_state_dict(sharded, stepped(sharded, *two_groups(sharded, 0)))
        other = torch.optim.AdamW(two_groups(sharded, 1))
        for group in other.param_groups:
            group["lr"] = 0.5
        runtime.optim_state_dict_to_load(sharded, other, saved, load_directly=True)
        assert [group["lr"] for group in other.param_groups] == [1, 0]
        assert other.state[sharded[0].weight]["exp_avg"].shape == (6, 4)
        mixed = torch.optim.AdamW(
            [{"params": [p for p in sharded.parameters() if p.dim() == d]} for d in (1, 2)]
        )
        with pytest.raises(ValueError, match="create the same groups"):
            runtime.optim_state_dict_to_load(sharded, mixed, saved)

    def test_names_of_compiled_parts_are_those_of_the_model(self) -> None:
        sharded = model()
        saved = runtime.optim_state_dict(sharded, stepped(sharded))
        compiled = model()
        compiled[0] = torch.compile(compiled[0], backend="eager")
        optimizer = torch.optim.AdamW(compiled.parameters())
        runtime.optim_state_dict_to_load(compiled, optimizer, saved, load_directly=True)
        again = runtime.optim_state_dict(compiled, optimizer)
        with runtime.state_dict_type(compiled, FULL):
            assert again["state"].keys() == compiled.state_dict().keys() != saved["state"].keys()
        other = torch.optim.AdamW(sharded.parameters())
        runtime.optim_state_dict_to_load(sharded, other, again, load_directly=True)
        assert str(runtime.optim_state_dict(sharded, other)) == str(saved)

    def test_the_input_of_the_optimizer_tells_the_order(self) -> None:
        sharded = model()
        saved = runtime.full_optim_state_dict(sharded, stepped(sharded))
        backwards = list(sharded.parameters())[::-1]
        by_default = runtime.shard_full_optim_state_dict(saved, sharded)
        by_input = runtime.shard_full_optim_state_dict(saved, sharded, backwards)
        by_name = runtime.shard_full_optim_state_dict(
            saved, sharded, list(sharded.named_parameters())
        )
        assert str(by_name) == str(by_default)
        by_optimizer = runtime.shard_full_optim_state_dict(
            saved, sharded, optim=torch.optim.Adam(backwards)
        )
        assert by_default["state"][0]["exp_avg"].shape == (6, 4)
        assert by_input["state"][0]["exp_avg"].shape == (3,)
        assert str(by_input) == str(by_optimizer)

    def test_states_are_nested_and_may_have_shapes_of_their_own(self) -> None:
        sharded = model()
        optimizer = stepped(sharded, {"params": sharded.parameters()}, {"params": []})
        weight = sharded[0].weight
        own = {"a": [torch.ones(6, 4)], 1: (torch.ones(6, 4), torch.ones(3))}
        optimizer.state[weight]["own"] = own
        saved = runtime.optim_state_dict(sharded, optimizer)
        assert str(saved["state"]["0.weight"]["own"]) == str({1: own[1], "a": own["a"]})
        assert [len(group["params"]) for group in saved["param_groups"]] == [4, 0]
        runtime.optim_state_dict_to_load(sharded, optimizer, saved, load_directly=True)
        again = optimizer.state[weight]["own"]
        assert isinstance(again["a"][0], DTensor)
        assert isinstance(again[1][0], DTensor)
        assert torch.equal(again[1][1], own[1][1])
        assert [len(group["params"]) for group in optimizer.param_groups] == [4, 0]

    @pytest.mark.parametrize("is_named_optimizer", [False, True])
    def test_parameters_that_only_the_state_dict_has(self, is_named_optimizer: bool) -> None:
        sharded = model()
        saved = runtime.optim_state_dict(sharded, stepped(sharded))
        other = torch.optim.AdamW(sharded[0].parameters())
        with pytest.raises(
            ValueError, match=r"contains '1\.bias', which the optimizer does not have"
        ):
            runtime.optim_state_dict_to_load(sharded, other, saved, is_named_optimizer)

    def test_of_a_model_that_is_not_sharded(self) -> None:
        plain = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
        optimizer = stepped(plain)
        saved = runtime.optim_state_dict(plain, optimizer)
        loaded = runtime.optim_state_dict_to_load(plain, optimizer, saved)
        expected = optimizer.state_dict()
        assert loaded["param_groups"] == expected["param_groups"]
        assert torch.equal(loaded["state"][1]["exp_avg"], expected["state"][1]["exp_avg"])
        assert runtime.shard_full_optim_state_dict({"state": {}}, nn.ReLU()) == {"state": {}}

    def test_each_name_of_a_tied_parameter_is_known(self) -> None:
        tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        tied[1].weight = tied[0].weight
        sharded = fully_shard(tied)
        optimizer = stepped(sharded)
        saved = runtime.optim_state_dict(sharded, optimizer)
        saved["state"]["1.weight"] = saved["state"].pop("0.weight")
        loaded = runtime.optim_state_dict_to_load(sharded, optimizer, saved)
        assert loaded["state"].keys() == {0, 1, 2}

    def test_sharded_states_of_one_rank_are_whole(self) -> None:
        sharded = model()
        optimizer = stepped(sharded)
        saved = runtime.sharded_optim_state_dict(sharded, optimizer)
        assert type(saved["state"]["0.bias"]["exp_avg"]) is torch.Tensor
        state = optimizer.state[sharded[0].bias]["exp_avg"]
        saved["state"]["0.bias"]["exp_avg"].fill_(7)
        assert not (state.to_local() == 7).any()

    def test_rekeying_needs_known_keys_of_one_kind(self) -> None:
        sharded = model()
        saved = runtime.full_optim_state_dict(sharded, stepped(sharded))
        assert runtime.rekey_optim_state_dict(saved, OptimStateKeyType.PARAM_NAME, sharded) is saved
        numbered = runtime.rekey_optim_state_dict(saved, OptimStateKeyType.PARAM_ID, sharded)
        assert list(numbered["state"]) == [
            numbered["param_groups"][0]["params"].index(n) for n in (1, 0, 3, 2)
        ]
        with pytest.raises(ValueError, match="9 is the key of no parameter"):
            runtime.rekey_optim_state_dict(
                {**numbered, "state": {9: {}}}, OptimStateKeyType.PARAM_NAME, sharded
            )
        of_less = torch.optim.Adam([sharded[1].bias])
        less = {"state": {"1.bias": {}}, "param_groups": [{"params": ["1.bias"]}]}
        assert runtime.rekey_optim_state_dict(
            less, OptimStateKeyType.PARAM_ID, sharded, optim=of_less
        ) == {"state": {0: {}}, "param_groups": [{"params": [0]}]}
        of_more = torch.optim.Adam([*sharded.parameters(), nn.Parameter(torch.ones(1))])
        with pytest.raises(ValueError, match="4 is the key of no parameter"):
            runtime.rekey_optim_state_dict(
                {**numbered, "state": {4: {}}}, OptimStateKeyType.PARAM_NAME, sharded, optim=of_more
            )
        with pytest.raises(ValueError, match="mixes names and numbers"):
            runtime.rekey_optim_state_dict(
                {"state": {9: {}, "a": {}}}, OptimStateKeyType.PARAM_NAME, sharded
            )


def test_states_of_an_optimizer_after_an_evaluation() -> None:
    sharded = model()
    optimizer = stepped(sharded)
    with torch.no_grad():
        sharded(torch.ones(2, 4))
    assert not isinstance(sharded[1].weight, DTensor)  # the root has kept its parameters
    saved = runtime.optim_state_dict(sharded, optimizer)
    assert saved["state"].keys() == {"0.weight", "0.bias", "1.weight", "1.bias"}
    loaded = runtime.optim_state_dict_to_load(sharded, optimizer, saved)
    assert loaded["state"].keys() == {*range(4)}


def test_types_of_a_model_that_is_not_the_bridges() -> None:
    model = fully_shard(nn.Linear(2, 2))
    with runtime.state_dict_type(model, FULL):
        assert not isinstance(model.state_dict()["bias"], DTensor)
    state = model.state_dict()
    assert isinstance(state["bias"], DTensor)
    model.load_state_dict(state)
    runtime.set_state_dict_type(model, SHARDED)
    assert runtime.get_state_dict_type(model).state_dict_type == SHARDED


def test_loading_after_an_evaluation() -> None:
    model = nn.Linear(2, 2, bias=False)
    with runtime.like_fsdp1(model):
        fully_shard(model)
    with torch.no_grad():
        model(torch.ones(1, 2))
    model.load_state_dict({"weight": torch.ones(2, 2)})
    with torch.no_grad():
        assert (model(torch.ones(1, 2)) == 2).all()


def test_an_optimizer_of_no_groups_has_no_states() -> None:
    """Where FSDP1 ends with `StopIteration`."""
    model = runtime.FullyShardedDataParallel(nn.ReLU(), device_id=torch.device("cpu"))
    states: dict[str, Any] = {"state": {}, "param_groups": []}
    shard = runtime.FullyShardedDataParallel.shard_full_optim_state_dict
    assert shard(states, model, optim_input=[]) == states
