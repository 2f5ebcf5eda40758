"""Whole parameters beside FSDP1's, on one rank."""

from typing import Any

import pytest
import torch
import torch.distributed.fsdp as fsdp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from fsdp_migrate import runtime

pytestmark = pytest.mark.usefixtures("one_rank")


def unit(api: Any, module: nn.Module, **options: Any) -> Any:
    cpu = torch.device("cpu")
    return api.FullyShardedDataParallel(module, device_id=cpu, use_orig_params=True, **options)


def test_gradients_that_are_made_inside() -> None:
    def made(api: Any) -> Any:
        model = unit(api, nn.Linear(2, 2))
        with api.FullyShardedDataParallel.summon_full_params(model, with_grads=True):
            model.weight.grad = torch.ones(2, 2)
        return model.weight.grad is None

    assert made(runtime) == made(fsdp)


def test_changes_around_an_evaluation() -> None:
    """A root of ``fully_shard`` keeps what an evaluation has gathered."""
    model = fully_shard(nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        for value in (1.0, 2.0):
            model(torch.ones(1, 2))
            with runtime.summon_full_params(model, with_grads=True):
                model.weight.fill_(value)
                model(torch.ones(1, 2))
            assert isinstance(model.weight, DTensor)
            assert (model(torch.ones(1, 2)) == 2 * value).all()
