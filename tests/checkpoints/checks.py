"""What a model takes while a type is set. Each check runs on two ranks and asserts for itself."""

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
from fsdp_migrate.runtime.optimizer_keys import clean

from ..nets import Block, Tied, Transformer

FULL, SHARDED = StateDictType.FULL_STATE_DICT, StateDictType.SHARDED_STATE_DICT
States = dict[str, Any]


def sharded(cls: type[nn.Module], seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return FullyShardedDataParallel(cls(), auto_wrap_policy=runtime.ModuleWrapPolicy({Block}))


def train(model: Any) -> list[float]:
    generator = torch.Generator().manual_seed(dist.get_rank())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(*Transformer.batch(generator)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def whole(model: nn.Module) -> States:
    """What a model holds, whole, without any of the functions under test."""
    state = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    return {
        clean(name): (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()
        for name, value in state.items()
        if clean(name) != "cos"  # the one buffer that no state dict has
    }


def same(found: States, expected: States) -> bool:
    return found.keys() == expected.keys() and all(
        torch.equal(value, expected[name]) for name, value in found.items()
    )


def loading_takes_whole_tensors_and_shards() -> None:
    source = sharded(Tied, seed=1)
    with state_dict_type(source, FULL):
        plain = source.state_dict()
    with state_dict_type(source, SHARDED, runtime.ShardedStateDictConfig(offload_to_cpu=True)):
        shards = source.state_dict()
    expected = train(sharded(Tied, seed=1))
    for state in (plain, shards):
        for kind in (FULL, SHARDED):
            for assign in (False, True):
                model, given = sharded(Tied), {name: v.clone() for name, v in state.items()}
                kept = dict(given)
                with state_dict_type(model, kind):
                    model.load_state_dict(given, assign=assign)
                assert same(whole(model), plain)
                assert all(given[name] is kept[name] for name in kept)
                # With `assign` ties are cut, with or without sharding.
                assert assign or train(model) == expected
    with state_dict_type(model, FULL):
        with pytest.raises(RuntimeError, match="size mismatch"):
            model.load_state_dict({**plain, "norm.bias": plain["norm.bias"][:4]})
        with pytest.raises(RuntimeError, match=r"Missing key.*norm\.bias"):
            model.load_state_dict({k: v for k, v in plain.items() if k != "norm.bias"})
        missing = model.load_state_dict({}, strict=False).missing_keys
        assert [*map(clean, missing)] == list(plain)


def a_meta_model_is_loaded_with_assign() -> None:
    source = sharded(Transformer, seed=1)
    state = whole(source)
    with torch.device("meta"):
        model = Transformer()
    for block in model.blocks:
        fsdp.fully_shard(block)
    fsdp.fully_shard(model)
    with state_dict_type(model, FULL):
        model.load_state_dict(state, assign=True)
    model.cos = source.module.cos
    assert same(whole(model), state)
    assert train(model) == train(source)


CHECKS: dict[str, Callable[[], None]] = {
    check.__name__: check
    for check in (loading_takes_whole_tensors_and_shards, a_meta_model_is_loaded_with_assign)
}
