"""Programs on models that are sharded in place, literally as a migrated file has it, beside FSDP1 and the bridge."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import (
    FullStateDictConfig,
    MixedPrecisionPolicy,
    StateDictType,
    fully_shard,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from fsdp_migrate import runtime
from fsdp_migrate.runtime import like_fsdp1

from .checks import check
from .models import Block, ConvNet, Transformer
from .train import fsdp1_on_cpu

Program = Callable[[Callable[[nn.Module], Any], Any], Any]


def wrapped(constructor: Any) -> Callable[[nn.Module], Any]:
    policy = ModuleWrapPolicy({Block})
    return lambda model: constructor(model, auto_wrap_policy=policy, use_orig_params=True)


def sharded(model: nn.Module) -> nn.Module:
    with like_fsdp1(model):
        for module in reversed(list(model.modules())):
            if isinstance(module, Block):
                fully_shard(module)
        fully_shard(model)
    return model


FORMS = {"bridge": wrapped(runtime.FullyShardedDataParallel), "in place": sharded}


def same(program: Program) -> None:
    """Runs a program on FSDP1, on the bridge and in place; all numbers that it gives are the same."""
    with fsdp1_on_cpu():
        theirs = program(wrapped(FSDP1), FSDP1)
    for form, shard in FORMS.items():
        ours = program(shard, runtime.FullyShardedDataParallel)
        assert ours == pytest.approx(theirs, rel=1e-6), form


def sums(module: nn.Module) -> list[float]:
    """The sum of each parameter, over all ranks."""
    found = [runtime.local_shard(p).detach().double().sum() for p in module.parameters()]
    for each in found:
        dist.all_reduce(each)
    return [each.item() for each in found]


def model() -> nn.Module:
    torch.manual_seed(1)
    return Transformer()


def step(module: Any, optimizer: Any, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed + dist.get_rank())
    module(*Transformer.batch(generator)).float().pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


@check(2)
def an_average_that_is_evaluated_and_then_updated_in_place() -> None:
    def program(shard: Any, fsdp: Any) -> Any:
        module = shard(model())
        average = shard(model())
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for seed in (10, 20):
            step(module, optimizer, seed)
            with torch.no_grad():
                average(*Transformer.batch(torch.Generator().manual_seed(3)))
                for p, q in zip(average.parameters(), module.parameters(), strict=True):
                    p.mul_(0.5).add_(q, alpha=0.5)
                    p.data = p.data * 0.5 + q.data * 0.5
        return sums(average)

    same(program)


@check(2)
def a_state_dict_of_rank_0_is_sent_by_hand_and_loaded_on_every_rank() -> None:
    def program(shard: Any, fsdp: Any) -> Any:
        module = shard(model())
        step(module, torch.optim.SGD(module.parameters(), lr=0.1), 10)
        config = FullStateDictConfig(rank0_only=True)
        with fsdp.state_dict_type(module, StateDictType.FULL_STATE_DICT, config):
            state = module.state_dict()
        assert bool(state) == (dist.get_rank() == 0)
        buffer = io.BytesIO()
        torch.save(state, buffer)
        sent = [buffer.getvalue()]
        dist.broadcast_object_list(sent, src=0)
        again = shard(model())
        again.load_state_dict(torch.load(io.BytesIO(sent[0])))
        return sums(again)

    same(program)


@check(2)
def gradients_are_counted_in_a_plain_tensor() -> None:
    """Which FSDP507 says of both forms: parameters are DTensors, which newer releases mix with no plain tensor.

    It raises, or it counts right: never another number.
    """

    def count(module: nn.Module) -> torch.Tensor:
        module(*Transformer.batch(torch.Generator())).float().pow(2).mean().backward()
        bad = torch.zeros((), dtype=torch.long)
        for p in module.parameters():
            bad += (~torch.isfinite(p.grad)).sum()  # type: ignore[arg-type]
        return bad

    for shard in FORMS.values():
        try:
            counted = int(count(shard(model())))
        except (AssertionError, RuntimeError):  # torch's own
            continue
        assert counted == 0


@check(2)
def a_batch_norm_in_low_precision_is_refused() -> None:
    policy = MixedPrecisionPolicy(torch.bfloat16)

    def shard(net: ConvNet) -> None:
        with like_fsdp1(net):
            fully_shard(net.head, mp_policy=replace(policy, cast_forward_inputs=False))
            fully_shard(net, mp_policy=policy)

    with pytest.raises(ValueError, match="FSDP213"):
        shard(ConvNet())


@check(2)
def an_optimizer_of_before_goes_on_and_copies_do_not() -> None:
    net = model()
    before = list(net.parameters())
    before[0].no_weight_decay = True  # type: ignore[attr-defined]
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    kept = copy.copy(before)
    sharded(net)
    after = list(net.parameters())
    assert optimizer.param_groups[0]["params"] == after
    assert after[0].no_weight_decay  # type: ignore[attr-defined]
    with pytest.raises(runtime.StaleParameter):
        kept[0].norm()
