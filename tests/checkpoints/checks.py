"""What state dicts are while a type is set. Each check runs on two ranks and asserts for itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.fsdp as fsdp
from torch import nn
from torch.distributed.tensor import DTensor

from fsdp_migrate import runtime
from fsdp_migrate.runtime import FullyShardedDataParallel, StateDictType, state_dict_type

from ..nets import Block, Tied, Transformer

FULL, SHARDED = StateDictType.FULL_STATE_DICT, StateDictType.SHARDED_STATE_DICT
CHECKS: dict[str, Callable[[], Any]] = {}
States = dict[str, Any]


def check(function: Callable[[], Any]) -> Callable[[], Any]:
    CHECKS[function.__name__.replace("_", "-")] = function
    return function


def sharded(cls: type[nn.Module] = Transformer, seed: int = 0, **options: Any) -> nn.Module:
    torch.manual_seed(seed)
    policy = runtime.ModuleWrapPolicy({Block, nn.Conv2d})
    return FullyShardedDataParallel(cls(), auto_wrap_policy=policy, **options)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def train(model: Any, optimizer: torch.optim.Optimizer, cls: Any = Transformer) -> list[float]:
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(*cls.batch(generator)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def whole(model: nn.Module) -> States:
    """What a model holds, whole, without any of the functions under test."""
    state = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    return {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()
        for name, value in named(state)
        if name != "cos"  # the one buffer that no state dict has
    }


def named(state: Any) -> list[tuple[str, Any]]:
    """The pairs of a dict, or of names and values, with the names of the model without wrappers."""
    pairs = state.items() if isinstance(state, dict) else state
    return [
        (n.replace("_fsdp_wrapped_module.", "").replace("_checkpoint_wrapped_module.", ""), value)
        for n, value in pairs
    ]


def is_whole(state: States, of: States) -> bool:
    """Whether every value is plain and what `of` has."""
    return all(
        not isinstance(value, DTensor) and torch.equal(value, of[name])
        for name, value in state.items()
    )


@check
def loading_takes_whole_tensors_and_shards() -> None:
    source = sharded(Tied, seed=1)
    with state_dict_type(source, FULL):
        plain = source.state_dict()
    with state_dict_type(source, SHARDED, runtime.ShardedStateDictConfig(offload_to_cpu=True)):
        shards = source.state_dict()
    for state in (plain, shards):
        for kind in (FULL, SHARDED):
            for assign in (False, True):
                model = sharded(Tied)
                given = {name: value.clone() for name, value in state.items()}
                kept = dict(given)
                with state_dict_type(model, kind):
                    model.load_state_dict(given, assign=assign)
                assert is_whole(whole(model), plain)
                assert all(given[name] is kept[name] for name in kept)
                if not assign:  # which cuts ties, with or without sharding
                    again = sharded(Tied, seed=1)
                    assert train(model, adam(model)) == train(again, adam(again))
    with state_dict_type(model, FULL):
        with pytest.raises(RuntimeError, match="size mismatch"):
            model.load_state_dict({**plain, "norm.bias": plain["norm.bias"][:4]})
        with pytest.raises(RuntimeError, match=r"Missing key.*norm\.bias"):
            model.load_state_dict({k: v for k, v in plain.items() if k != "norm.bias"})
        missing = model.load_state_dict({}, strict=False).missing_keys
        assert [name for name, _ in named((n, None) for n in missing)] == list(plain)


@check
def a_meta_model_is_loaded_with_assign() -> None:
    source = sharded(seed=1)
    state = whole(source)
    with torch.device("meta"):
        model = Transformer()
    for block in model.blocks:
        fsdp.fully_shard(block)
    fsdp.fully_shard(model)
    with state_dict_type(model, FULL):
        model.load_state_dict(state, assign=True)
    model.cos = source.module.cos
    assert is_whole(whole(model), state)
    assert train(model, adam(model)) == train(source, adam(source))
