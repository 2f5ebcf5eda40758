"""The runtime's functions for optimizers and gradients, beside what FSDP1 did."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from fsdp_migrate import runtime
from fsdp_migrate.runtime import FullyShardedDataParallel

from .checks import check
from .train import TORCH, fsdp1_on_cpu, full_fsdp1, full_fsdp2


class Part(nn.Module):
    """Two layers, of which a step may use one or both."""

    def __init__(self) -> None:
        super().__init__()
        self.always = nn.Linear(6, 6)
        self.sometimes = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        x = torch.relu(self.always(x))
        return self.sometimes(x) if both else x


class Parts(nn.Module):
    """Units of which a step may leave out a part, or the last one as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([Part() for _ in range(3)])
        self.head = nn.Linear(6, 3)
        self.unused = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        for index, part in enumerate(self.parts):
            if index < 2 or step % 3:
                x = part(x, both=(step + index) % 2 == 0)
        return self.head(x)


def trained(
    model: nn.Module,
    make: Callable[[Any], torch.optim.Optimizer],
    no_sync: Callable[[], Any] | None,
    before_step: Callable[[nn.Module], None],
    full: Callable[[nn.Module], Any],
) -> dict[str, torch.Tensor]:
    """The parameters after some steps."""
    optimizer = make(model.parameters())
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(4):
        for last in (False, True) if no_sync else (True,):
            with no_sync() if no_sync and not last else contextlib.nullcontext():
                model(
                    torch.randn(4, 6, generator=generator), step
                ).float().square().mean().backward()
        before_step(model)
        optimizer.step()
        optimizer.zero_grad()
    parameters: dict[str, torch.Tensor] = full(model)[0]
    return parameters


def options(api: Any, strategy: str, low: bool) -> dict[str, Any]:
    precision = api.MixedPrecision(torch.bfloat16, torch.bfloat16) if low else None
    return {
        "auto_wrap_policy": api.ModuleWrapPolicy({Part}),
        "sharding_strategy": api.ShardingStrategy[strategy],
        "mixed_precision": precision,
    }


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.5)


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.1)


def frozen() -> nn.Module:
    torch.manual_seed(0)
    model = Parts()
    model.parts[0].always.bias.requires_grad_(False)
    return model


@check(2)
def unused_parameters_get_the_zeros_that_fsdp1_gave() -> None:
    cases = [
        ("FULL_SHARD", False, adamw, False),
        ("FULL_SHARD", False, momentum, True),
        ("SHARD_GRAD_OP", False, adamw, True),
        ("NO_SHARD", True, adamw, False),
    ]
    for strategy, low, make, accumulate in cases:
        with fsdp1_on_cpu():
            wrapped = FSDP(frozen(), use_orig_params=True, **options(TORCH, strategy, low))
            no_sync = wrapped.no_sync if accumulate else None
            expected = trained(wrapped, make, no_sync, lambda model: None, full_fsdp1)
        del wrapped, no_sync
        model = FullyShardedDataParallel(
            frozen(), use_orig_params=True, **options(runtime, strategy, low)
        )
        no_sync = model.no_sync if accumulate else None
        found = trained(model, make, no_sync, lambda model: None, full_fsdp2)
        for name in expected:
            assert torch.equal(expected[name], found[name]), (strategy, low, make.__name__, name)


@check(2)
def gradients_are_filled_where_a_unit_has_some() -> None:
    model = frozen()
    with runtime.like_fsdp1(model):
        for part in model.parts:
            fully_shard(part)
        fully_shard(model)
    model(torch.ones(2, 6), 0).sum().backward()
    filled = {name for name, p in model.named_parameters() if p.grad is not None}
    everything = {name for name, _ in model.named_parameters()}
    assert everything - filled == {
        "parts.0.always.bias",  # frozen
        *(name for name in everything if name.startswith("parts.2.")),  # a unit that did not run
    }
    assert not model.unused.weight.grad.full_tensor().any()
    assert model.unused.weight.grad.placements == model.unused.weight.placements


@check(2)
def local_shards_are_views_of_what_they_are_of() -> None:
    torch.manual_seed(0)
    model = fully_shard(nn.Linear(6, 5))
    weight = model.weight
    local = runtime.local_shard(weight.data)
    assert type(local) is torch.Tensor
    sizes = [0, 0]
    dist.all_gather_object(sizes, local.numel())
    assert sum(sizes) == weight.numel()
    local.fill_(3)
    assert (weight.full_tensor() == 3).all()
    tensor = torch.ones(2)
    assert runtime.local_shard(tensor) is tensor


@check(2)
def the_local_type_may_be_set_and_is_refused_where_it_is_used() -> None:
    model = runtime.FullyShardedDataParallel(nn.Linear(6, 5))
    whole = model.state_dict()
    runtime.set_state_dict_type(model, runtime.StateDictType.LOCAL_STATE_DICT)
    for use in (model.state_dict, lambda: model.load_state_dict(whole)):
        with pytest.raises(runtime.UnsupportedInFSDP2, match="FSDP334"):
            use()
    with runtime.state_dict_type(model, runtime.StateDictType.FULL_STATE_DICT):
        model.load_state_dict(whole)
        assert torch.equal(model.state_dict()["weight"], whole["weight"])


@check(2)
def a_models_own_state_dicts_are_whole_wherever_they_are_called() -> None:
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)).state_dict()
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    with runtime.like_fsdp1(model):
        fully_shard(model[0])
        fully_shard(model)
    around = nn.ModuleDict({"model": model})
    around.load_state_dict({f"model.{name}": value for name, value in whole.items()})
    for prefix, module in (("", model), ("model.", around)):
        state = module.state_dict()
        assert not any(isinstance(value, DTensor) for value in state.values())
        assert all(torch.equal(state[prefix + name], value) for name, value in whole.items())
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict({})
    assert isinstance(get_model_state_dict(model)["0.weight"], DTensor)  # as its options say
    with runtime.state_dict_type(model, runtime.StateDictType.SHARDED_STATE_DICT):
        assert isinstance(model.state_dict()["0.weight"], DTensor)
    assert torch.equal(model.state_dict()["0.weight"], whole["0.weight"])
