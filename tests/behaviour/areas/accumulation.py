"""Gradients of several backwards, with and without `no_sync`."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn

from ..registry import cannot, holds
from .common import (
    batches,
    close,
    counted_collectives,
    enter,
    error,
    full,
    gradients,
    in_blocks,
    train,
)
from .initialization import two_by_two


def accumulate(model: Any, synced: str, inputs: list[torch.Tensor]) -> None:
    """A backward for each letter: ``s`` with a reduction, ``n`` inside of `no_sync`."""
    for letter, x in zip(synced, inputs, strict=True):
        with contextlib.nullcontext() if letter == "s" else model.no_sync():
            (model(x).pow(2).mean() / len(synced)).backward()


def accumulated(api: Any, synced: str, **options: Any) -> Any:
    """Gradients of several backwards, which are those of one over all of the batches."""
    inputs = batches(len(synced))
    reference = in_blocks(api, **options)
    reference(torch.cat(inputs)).pow(2).mean().backward()
    model = in_blocks(api, **options)
    with counted_collectives() as collectives:
        accumulate(model, synced, inputs)
    expected, found = gradients(api, reference), gradients(api, model)
    assert close(expected, found)
    return found, dict(sorted(collectives.items()))


@holds()
def no_sync_before_the_last(api: Any) -> Any:
    """Backwards inside of `no_sync` and one after it add up to the gradient of all batches."""
    return accumulated(api, "nnns")


@holds()
def without_no_sync(api: Any) -> Any:
    """Without `no_sync` gradients add up too."""
    return accumulated(api, "ssss")


@holds()
def interleaved(api: Any) -> Any:
    """Backwards inside and outside of `no_sync` can alternate, whichever comes first."""
    return accumulated(api, "nnssns"), accumulated(api, "ssnnss")


@holds()
def with_shard_grad_op(api: Any) -> Any:
    """`no_sync` works with SHARD_GRAD_OP."""
    return accumulated(api, "nns", sharding_strategy=api.ShardingStrategy.SHARD_GRAD_OP)


@holds(tolerance=1e-6)
def with_no_shard(api: Any) -> Any:
    """`no_sync` works with NO_SHARD."""
    return accumulated(api, "nns", sharding_strategy=api.ShardingStrategy.NO_SHARD)


@holds()
def without_prefetch(api: Any) -> Any:
    """`no_sync` works without backward prefetch."""
    return accumulated(api, "nns", backward_prefetch=None)


@holds()
def with_offload(api: Any) -> Any:
    """`no_sync` works with parameters on the CPU."""
    offload = api.CPUOffload(offload_params=True)
    model = in_blocks(api, cpu_offload=offload)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accumulate(model, "nns", batches(3))
    optimizer.step()
    return full(api, model)


@holds()
def with_flat_parameters(api: Any) -> Any:
    """`no_sync` works without `use_orig_params`."""
    model = in_blocks(api, use_orig_params=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accumulate(model, "nns", batches(3))
    optimizer.step()
    return full(api, model)


@holds(ranks=4)
def hybrid(api: Any) -> Any:
    """`no_sync` works with HYBRID_SHARD."""
    model = two_by_two(api, sharding_strategy=api.ShardingStrategy.HYBRID_SHARD)
    accumulate(model, "nns", batches(3))
    return gradients(api, model)


@holds()
def around_backward_only(api: Any) -> Any:
    """What counts is whether backward runs inside of `no_sync`; forward may run outside."""
    model, (first, second) = in_blocks(api), batches(2)
    loss = model(first).pow(2).mean()
    with model.no_sync():
        loss.backward()
    model(second).pow(2).mean().backward()
    return gradients(api, model)


@holds()
def around_forward_only(api: Any) -> Any:
    """`no_sync` around forward alone does nothing."""
    model, (x,) = in_blocks(api), batches(1)
    with model.no_sync():
        loss = model(x).pow(2).mean()
    loss.backward()
    plain = in_blocks(api)
    plain(x).pow(2).mean().backward()
    assert close(gradients(api, model), gradients(api, plain))
    return gradients(api, model)


@holds()
def two_periods(api: Any) -> Any:
    """Training that accumulates over two batches a step, twice."""
    model = in_blocks(api)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for period in range(2):
        optimizer.zero_grad()
        accumulate(model, "ns", batches(4)[2 * period : 2 * period + 2])
        optimizer.step()
    return full(api, model)


@holds()
def left_over_gradients_are_dropped(api: Any) -> Any:
    """`zero_grad` of the optimizer drops what was accumulated inside of `no_sync`."""
    model = in_blocks(api)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first, second = batches(2)
    accumulate(model, "n", [first])
    optimizer.zero_grad()
    model(second).pow(2).mean().backward()
    clean = in_blocks(api)
    clean(second).pow(2).mean().backward()
    assert close(gradients(api, model), gradients(api, clean))
    return gradients(api, model)


@holds()
def left_over_gradients_are_dropped_by_the_model(api: Any) -> Any:
    """`zero_grad` of the model drops what was accumulated inside of `no_sync`."""
    model, (first, second) = in_blocks(api), batches(2)
    accumulate(model, "n", [first])
    model.zero_grad()
    model(second).pow(2).mean().backward()
    clean = in_blocks(api)
    clean(second).pow(2).mean().backward()
    assert close(gradients(api, model), gradients(api, clean))
    return gradients(api, model)


@holds()
def left_over_gradients_set_to_none(api: Any) -> Any:
    """Setting each `grad` to None drops what was accumulated inside of `no_sync`."""
    model, (first, second) = in_blocks(api), batches(2)
    accumulate(model, "n", [first])
    for parameter in model.parameters():
        parameter.grad = None
    model(second).pow(2).mean().backward()
    return gradients(api, model)


@holds()
def gradients_set_to_zero(api: Any) -> Any:
    """`zero_grad(set_to_none=False)` leaves zeros, to which the next backward adds."""
    model = in_blocks(api)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    results = []
    for x in batches(3):
        model(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        results.append(gradients(api, model))
    assert all(g is not None and not g.any() for g in results[0].values())
    return results, full(api, model)


@holds()
def only_the_root(api: Any) -> Any:
    """`no_sync` of a unit inside of another one is an error."""
    model = in_blocks(api)
    model(*batches(1))
    text = error(lambda: enter(model.blocks[0].no_sync()))
    assert "not supported" in text
    return text


@holds()
def no_sync_in_no_sync(api: Any) -> Any:
    """Inside of itself `no_sync` lasts until the outer one is left."""
    model, inputs = in_blocks(api), batches(3)
    with model.no_sync():
        with model.no_sync():
            model(inputs[0]).pow(2).mean().backward()
        model(inputs[1]).pow(2).mean().backward()
    model(inputs[2]).pow(2).mean().backward()
    return gradients(api, model)


@holds()
def an_error_inside(api: Any) -> Any:
    """After an error inside of `no_sync`, gradients are reduced again."""
    model, (x,) = in_blocks(api), batches(1)

    def fail() -> None:
        with model.no_sync():
            raise KeyError("mine")

    text = error(fail)
    model(x).pow(2).mean().backward()
    plain = in_blocks(api)
    plain(x).pow(2).mean().backward()
    assert close(gradients(api, model), gradients(api, plain))
    return text, gradients(api, model)


@holds()
def in_low_precision(api: Any) -> Any:
    """Gradients that are computed and reduced in bfloat16 add up in it."""
    precision = api.MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    model = in_blocks(api, mixed_precision=precision)
    accumulate(model, "nns", batches(3))
    return gradients(api, model)


@holds()
def no_sync_with_units_that_are_not_used(api: Any) -> Any:
    """A unit that only some of the backwards use keeps what these gave it."""

    class Choosing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.always, self.sometimes = nn.Linear(4, 4), nn.Linear(4, 4)
            self.use = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.always(x)
            return self.sometimes(x) if self.use else x

    model = api.FSDP(Choosing(), auto_wrap_policy=api.wrap.always_wrap_policy, use_orig_params=True)
    first, second = batches(2)
    accumulate(model, "s", [first])
    model.module.use = False
    accumulate(model, "s", [second])
    found = gradients(api, model)
    assert found["sometimes.weight"] is not None
    return found


@holds()
def training_goes_on(api: Any) -> Any:
    """After accumulation a model trains as before."""
    model = in_blocks(api)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accumulate(model, "nns", batches(3))
    optimizer.step()
    return train(model, optimizer), full(api, model)


@cannot("FSDP2 keeps gradients that are not reduced yet apart from the parameters")
def gradients_inside_of_no_sync(api: Any) -> Any:
    """Inside of `no_sync` each parameter's gradient is this rank's whole one."""
    model = in_blocks(api)
    accumulate(model, "n", batches(1))
    return [p.grad.abs().sum().item() for p in model.parameters() if p.grad is not None]
