"""What a training loop does with a model, beside FSDP1: accumulation, evaluation, checkpointing, adapters, scaling."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor import DTensor

from fsdp_migrate import runtime

from .checks import check, same_on_all_ranks
from .models import Attention, Block, Transformer
from .summon import blocks, member, ours, same, theirs
from .train import TORCH, clean, fsdp1_on_cpu, full_fsdp1, full_fsdp2

Step = Callable[["Loop"], Any]
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


@dataclass
class Loop:
    """A model in training, and what is called by another name in the two versions."""

    model: nn.Module
    no_sync: Callable[[nn.Module], Any]
    scaler: Callable[..., Any]
    full: Callable[[nn.Module], Any]

    def __post_init__(self) -> None:
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(trained, lr=0.05, momentum=0.9)
        self.generator = torch.Generator().manual_seed(5 + dist.get_rank())

    def loss(self) -> torch.Tensor:
        return self.model(*Transformer.batch(self.generator)).float().square().mean()

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


def under_fsdp1(run: Step, scaler: Any = ShardedGradScaler, **options: Any) -> Any:
    """What a loop returns, and the parameters that it leaves, under FSDP1."""
    with fsdp1_on_cpu():
        loop = Loop(theirs(**options), FSDP.no_sync, scaler, full_fsdp1)
        found = run(loop), plain_names(full_fsdp1(loop.model)[0])
    del loop
    return found


def under_fsdp2(run: Step, **options: Any) -> Any:
    """Likewise on the bridge."""
    bridge = runtime.FullyShardedDataParallel
    loop = Loop(ours(**options), bridge.no_sync, runtime.ShardedGradScaler, full_fsdp2)
    return run(loop), plain_names(full_fsdp2(loop.model)[0])


def plain_names(parameters: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {n.replace("_checkpoint_wrapped_module.", ""): p for n, p in parameters.items()}


def accumulate(loop: Loop, sync: bool = False) -> list[torch.Tensor]:
    losses = []
    for index in range(9):
        last = index % 3 == 2
        with contextlib.nullcontext() if sync or last else loop.no_sync(loop.model):
            losses.append(loss := loop.loss())
            loss.backward()
        if last:
            loop.step()
    return [loss.detach() for loss in losses]


@check(2)
def accumulation_that_reduces_every_time() -> None:
    run = lambda loop: accumulate(loop, sync=True)  # noqa: E731
    for strategy in ("FULL_SHARD", "SHARD_GRAD_OP"):
        options = {"auto_wrap_policy": blocks, "sharding_strategy": member(strategy)}
        same(under_fsdp1(run, **options), under_fsdp2(run, **options))
    # Without shards FSDP1 reduces what was reduced before once more: a mean of means, and other rounding.
    options = {"auto_wrap_policy": blocks, "sharding_strategy": member("NO_SHARD")}
    theirs_, ours_ = under_fsdp1(run, **options), under_fsdp2(run, **options)
    for expected, found in zip(theirs_[0], ours_[0], strict=True):
        torch.testing.assert_close(expected, found, rtol=1e-5, atol=1e-6)


def epochs(loop: Loop) -> list[torch.Tensor]:
    """Five batches an epoch, two a step: one is left over."""
    losses = []
    for _ in range(3):
        loop.optimizer.zero_grad()
        for index in range(5):
            last = index % 2 == 1
            with contextlib.nullcontext() if last else loop.no_sync(loop.model):
                losses.append(loss := loop.loss())
                loss.backward()
            if last:
                loop.step()
    return [loss.detach() for loss in losses]


@check(2)
def what_an_epoch_leaves_over_is_dropped() -> None:
    for strategy in ("FULL_SHARD", "SHARD_GRAD_OP"):
        options = {"auto_wrap_policy": blocks, "sharding_strategy": member(strategy)}
        expected = under_fsdp1(epochs, **options)
        same(expected, under_fsdp2(epochs, **options))


@check(2)
def accumulation_is_in_the_dtype_of_the_parameters() -> None:
    """Gradients that are not reduced yet add up in it, whichever they are reduced in."""
    for own, reduced in ((BF16, FP32), (None, BF16)):
        precision = lambda api, own=own, reduced=reduced: api.MixedPrecision(own, reduced)  # noqa: E731
        options = {"auto_wrap_policy": blocks, "mixed_precision": precision}
        same(under_fsdp1(accumulate, **options), under_fsdp2(accumulate, **options))


def evaluate_between(loop: Loop) -> list[torch.Tensor]:
    losses = []
    for _ in range(4):
        loss = loop.loss()
        loss.backward()
        loop.step()
        loop.model.eval()
        with torch.no_grad():
            losses += [loss.detach(), loop.loss(), loop.loss()]
        loop.model.train()
    return losses


@check(2)
def evaluation_between_steps() -> None:
    for strategy in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"):
        options = {"auto_wrap_policy": blocks, "sharding_strategy": member(strategy)}
        same(under_fsdp1(evaluate_between, **options), under_fsdp2(evaluate_between, **options))


def in_one_region(loop: Loop) -> list[torch.Tensor]:
    """Forwards with gradients and without, and steps, in one region of autocast, which keeps casts of leaves."""
    losses = []
    with torch.autocast("cpu", dtype=BF16):
        for _ in range(3):
            with torch.no_grad():
                losses.append(loop.loss())
            losses.append(loss := loop.loss() + loop.loss())
            loss.backward()
            loop.step()
    return [loss.detach() for loss in losses]


@check(2)
def forwards_in_one_region_of_autocast() -> None:
    for options in ({}, {"auto_wrap_policy": blocks}):
        same(under_fsdp1(in_one_region, **options), under_fsdp2(in_one_region, **options))


def checkpointed_before() -> nn.Module:
    model = Transformer()
    apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, Block))
    return model


def checkpoint_after(loop: Loop) -> list[torch.Tensor]:
    apply_activation_checkpointing(loop.model, check_fn=lambda m: isinstance(m, Block))
    return accumulate(loop)


@check(2)
def activation_checkpointing_before_and_after() -> None:
    results = [
        run(step, auto_wrap_policy=blocks, model=lambda api, model=model: model)
        for step, model in (
            (accumulate, Transformer),
            (accumulate, checkpointed_before),
            (checkpoint_after, Transformer),
        )
        for run in (under_fsdp1, under_fsdp2)
    ]
    for result in results[1:]:
        same(results[0], result)


class Adapter(nn.Module):
    """A frozen layer with a trained one of low rank beside it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


def adapted() -> nn.Module:
    model = Transformer().requires_grad_(False)
    for module in list(model.modules()):
        if isinstance(module, Attention):
            module.qkv, module.proj = Adapter(module.qkv), Adapter(module.proj)
    return model


@check(2)
def adapters_beside_frozen_weights() -> None:
    policies = (blocks, lambda api: api.ModuleWrapPolicy({Block, Adapter}))
    for policy in policies:
        options = {"auto_wrap_policy": policy, "model": lambda api: adapted}
        expected = under_fsdp1(accumulate, **options)
        same(expected, under_fsdp2(accumulate, **options))
        assert len(set(map(float, expected[0]))) == 9, "nothing is trained"


def local_gradient(model: nn.Module) -> torch.Tensor:
    """This rank's part of one gradient."""
    gradients = (p.grad for p in model.parameters() if p.grad is not None)
    local = (g.to_local() if isinstance(g, DTensor) else g for g in gradients)
    return next(part for part in local if part.numel() > 0)


def scaled(loop: Loop) -> list[Any]:
    """Five steps. In the second one shard on the first rank has an infinite gradient, and all ranks must skip it."""
    scaler = loop.scaler("cpu", init_scale=2.0**10, growth_interval=2)
    found = []
    for index in range(5):
        scaler.scale(loop.loss()).backward()
        if index == 1 and dist.get_rank() == 0:
            local_gradient(loop.model).fill_(float("inf"))
        scaler.unscale_(loop.optimizer)
        scaler.step(loop.optimizer)
        scaler.update()
        loop.optimizer.zero_grad()
        found.append(scaler.get_scale())
    return found


@check(2)
def scalers_scale_skip_and_grow_in_the_same_steps() -> None:
    options = {
        "auto_wrap_policy": blocks,
        "mixed_precision": lambda api: api.MixedPrecision(FP16, FP16),
    }
    for precision in (options, {"auto_wrap_policy": blocks}):
        expected = under_fsdp1(scaled, **precision)
        same(expected, under_fsdp2(scaled, **precision))
        assert expected[0][1] < expected[0][0], "no step was skipped"
        assert expected[0][-1] > expected[0][1], "the scale never grew"
        # What the check is worth: a scaler that sees its own rank's gradients only.
        alone = under_fsdp1(scaled, scaler=torch.amp.GradScaler, **precision)
        assert not same_on_all_ranks(torch.tensor(alone[0]))


def ignoring(wrap: Callable[..., nn.Module], api: Any, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    model = Transformer()
    return wrap(
        model, ignored_modules=[model.blocks[0].mlp], auto_wrap_policy=blocks(api), **options
    )


def clipped(loop: Loop, clip: Callable[..., torch.Tensor], norm_type: float) -> list[torch.Tensor]:
    """The norms of some steps; ignored parameters are reduced by the program, as they have to be."""
    ignored = [p for n, p in loop.model.named_parameters() if clean(n).startswith("blocks.0.mlp.")]
    assert len(ignored) == 4
    norms = []
    for _ in range(3):
        loop.loss().backward()
        for parameter in ignored:
            dist.all_reduce(parameter.grad)
        norms.append(clip(loop.model, 0.01, norm_type))
        loop.step()
    return norms


@check(2)
def clipping_beside_ignored_parameters() -> None:
    for norm_type in (1.0, 2.0, float("inf")):
        with fsdp1_on_cpu():
            model = ignoring(FSDP, TORCH, device_id=torch.device("cpu"), use_orig_params=True)
            loop = Loop(model, FSDP.no_sync, ShardedGradScaler, full_fsdp1)
            expected = clipped(loop, FSDP.clip_grad_norm_, norm_type), full_fsdp1(model)[0]
        bridge = runtime.FullyShardedDataParallel
        model = ignoring(bridge, runtime)
        loop = Loop(model, bridge.no_sync, runtime.ShardedGradScaler, full_fsdp2)
        found = clipped(loop, bridge.clip_grad_norm_, norm_type), full_fsdp2(model)[0]
        assert all(type(norm) is torch.Tensor and norm > 0.01 for norm in found[0])
        torch.testing.assert_close(expected[0], found[0], rtol=1e-6, atol=0)
        torch.testing.assert_close(expected[1], found[1], rtol=1e-6, atol=1e-7)


@check(2)
def a_branch_that_clips_is_one_call_for_every_model() -> None:
    for sharded in (True, False):
        torch.manual_seed(0)
        model: nn.Module = Transformer()
        alone = copy.deepcopy(model)
        if sharded:
            model = runtime.FullyShardedDataParallel(model)
        batch = Transformer.batch(torch.Generator().manual_seed(0))
        for one in (model, alone):
            one(*batch).square().mean().backward()
        norm = runtime.clip_grad_norm_(model.parameters(), 0.01)
        expected = torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.01)
        assert type(norm) is torch.Tensor
        torch.testing.assert_close(norm, expected, rtol=1e-6, atol=0)
