"""State dicts of the bridge beside FSDP1's, on one rank."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from fsdp_migrate import runtime

pytestmark = pytest.mark.usefixtures("one_rank")
CPU = torch.device("cpu")


def unit(api: Any, module: nn.Module, **options: Any) -> Any:
    return api.FullyShardedDataParallel(module, device_id=CPU, use_orig_params=True, **options)


def partly_ignored(api: Any) -> nn.Module:
    parts = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.BatchNorm1d(2))
    return unit(api, parts, ignored_modules=[parts[0]])


def in_place(model: nn.Module) -> nn.Module:
    with runtime.like_fsdp1(model):
        fully_shard(model)
    return model


def test_types_of_a_model_that_is_not_the_bridges() -> None:
    model = fully_shard(nn.Linear(2, 2))
    full, sharded = runtime.StateDictType.FULL_STATE_DICT, runtime.StateDictType.SHARDED_STATE_DICT
    with runtime.state_dict_type(model, full):
        assert not isinstance(model.state_dict()["bias"], DTensor)
    state = model.state_dict()
    assert isinstance(state["bias"], DTensor)
    model.load_state_dict(state)
    runtime.set_state_dict_type(model, sharded)
    assert runtime.get_state_dict_type(model).state_dict_type == sharded


def test_loading_after_an_evaluation() -> None:
    model = in_place(nn.Linear(2, 2, bias=False))
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
