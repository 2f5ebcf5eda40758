"""Gradients of several backwards, with and without `no_sync`."""

import contextlib
from typing import Any

import torch

from ..registry import each, holds
from . import common
from .process_groups import two_by_two


def accumulate(model: Any, synced: str, inputs: list[torch.Tensor]) -> None:
    """A backward for each letter: ``s`` with a reduction, ``n`` inside of `no_sync`."""
    for letter, x in zip(synced, inputs, strict=True):
        with contextlib.nullcontext() if letter == "s" else model.no_sync():
            (model(x).pow(2).mean() / len(synced)).backward()


def accumulated(api: Any, synced: str) -> Any:
    """Gradients of several backwards, which are those of one over all of the batches."""
    inputs = common.batches(len(synced))
    reference = common.in_blocks(api)
    reference(torch.cat(inputs)).pow(2).mean().backward()
    model = common.in_blocks(api)
    with common.counted_collectives() as collectives:
        accumulate(model, synced, inputs)
    expected, found = common.gradients(api, reference), common.gradients(api, model)
    assert common.close(expected, found)
    return found, dict(sorted(collectives.items()))


def as_of_one_backward(api: Any, model: Any, x: torch.Tensor) -> Any:
    """A model's gradients, which are those of one backward alone."""
    alone = common.in_blocks(api)
    alone(x).pow(2).mean().backward()
    found = common.gradients(api, model)
    assert common.close(found, common.gradients(api, alone))
    return found


PATTERNS: dict[str, tuple[Any, ...]] = {
    "no_sync_before_the_last": (
        "Backwards inside of `no_sync` and one after it add up to the gradient of all batches.", "nnns"
    ),
    "without_no_sync": ("Without `no_sync` gradients add up too.", "ssss"),
    "interleaved": (
        "Backwards inside and outside of `no_sync` can alternate, whichever comes first.",
        "nnssns", "ssnnss",
    ),
}  # fmt: skip


@each(PATTERNS)
def patterns(api: Any, *patterns: str) -> Any:
    return [accumulated(api, pattern) for pattern in patterns]


OPTIONS: dict[str, tuple[Any, ...]] = {
    "with_shard_grad_op": (
        "`no_sync` works with SHARD_GRAD_OP.",
        lambda api: {"sharding_strategy": api.ShardingStrategy.SHARD_GRAD_OP},
    ),
    "without_prefetch": (
        "`no_sync` works without backward prefetch.", lambda api: {"backward_prefetch": None}
    ),
    "with_offload": (
        "`no_sync` works with parameters on the CPU.",
        lambda api: {"cpu_offload": api.CPUOffload(offload_params=True)},
    ),
    "with_flat_parameters": (
        "`no_sync` works without `use_orig_params`.", lambda api: {"use_orig_params": False}
    ),
}  # fmt: skip


@each(OPTIONS)
def with_options(api: Any, options: Any) -> Any:
    model = common.in_blocks(api, **options(api))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with common.counted_collectives() as collectives:
        accumulate(model, "nns", common.batches(3))
    optimizer.step()
    return common.full(api, model), dict(sorted(collectives.items()))


@holds(tolerance=1e-6)
def with_no_shard(api: Any) -> Any:
    """`no_sync` works with NO_SHARD."""
    return with_options(api, lambda api: {"sharding_strategy": api.ShardingStrategy.NO_SHARD})


@holds(ranks=4)
def hybrid(api: Any) -> Any:
    """`no_sync` works with HYBRID_SHARD."""
    model = two_by_two(api, sharding_strategy=api.ShardingStrategy.HYBRID_SHARD)
    accumulate(model, "nns", common.batches(3))
    return common.gradients(api, model)


@holds()
def around_backward_only(api: Any) -> Any:
    """What counts is whether backward runs inside of `no_sync`; forward may run outside."""
    model, (first, second) = common.in_blocks(api), common.batches(2)
    loss = model(first).pow(2).mean()
    with model.no_sync():
        loss.backward()
    model(second).pow(2).mean().backward()
    return common.gradients(api, model)


@holds()
def around_forward_only(api: Any) -> Any:
    """`no_sync` around forward alone does nothing."""
    model, (x,) = common.in_blocks(api), common.batches(1)
    with model.no_sync():
        loss = model(x).pow(2).mean()
    loss.backward()
    return as_of_one_backward(api, model, x)


@holds()
def two_periods(api: Any) -> Any:
    """Training that accumulates over two batches a step, twice."""
    model = common.in_blocks(api)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for period in range(2):
        optimizer.zero_grad()
        accumulate(model, "ns", common.batches(4)[2 * period : 2 * period + 2])
        optimizer.step()
    return common.full(api, model)


def clear(model: Any, optimizer: Any) -> None:
    for parameter in model.parameters():
        parameter.grad = None


LEFT_OVER: dict[str, tuple[Any, ...]] = {
    "left_over_gradients_are_dropped": (
        "`zero_grad` of the optimizer drops what was accumulated inside of `no_sync`.",
        lambda model, optimizer: optimizer.zero_grad(),
    ),
    "left_over_gradients_are_dropped_by_the_model": (
        "`zero_grad` of the model drops what was accumulated inside of `no_sync`.",
        lambda model, optimizer: model.zero_grad(),
    ),
    "left_over_gradients_set_to_none": (
        "Setting each `grad` to None drops what was accumulated inside of `no_sync`.", clear,
    ),
}  # fmt: skip


@each(LEFT_OVER)
def left_over(api: Any, drop: Any) -> Any:
    model, (first, second) = common.in_blocks(api), common.batches(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accumulate(model, "n", [first])
    drop(model, optimizer)
    model(second).pow(2).mean().backward()
    return as_of_one_backward(api, model, second)


@holds()
def gradients_set_to_zero(api: Any) -> Any:
    """`zero_grad(set_to_none=False)` leaves zeros, to which the next backward adds."""
    model = common.in_blocks(api)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    results = []
    for x in common.batches(3):
        model(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        results.append(common.gradients(api, model))
    assert all(g is not None and not g.any() for g in results[0].values())
    return results, common.full(api, model)


@holds()
def only_the_root(api: Any) -> Any:
    """`no_sync` of a unit inside of another one is an error."""
    model = common.in_blocks(api)
    model(*common.batches(1))
    text = common.error(lambda: common.enter(model.blocks[0].no_sync()))
    assert "not supported" in text
    return text


@holds()
def no_sync_in_no_sync(api: Any) -> Any:
    """Inside of itself `no_sync` lasts until the outer one is left."""
    model, inputs = common.in_blocks(api), common.batches(3)
    with model.no_sync():
        with model.no_sync():
            model(inputs[0]).pow(2).mean().backward()
        model(inputs[1]).pow(2).mean().backward()
    model(inputs[2]).pow(2).mean().backward()
    return common.gradients(api, model)


@holds()
def an_error_inside(api: Any) -> Any:
    """After an error inside of `no_sync`, gradients are reduced again."""
    model, (x,) = common.in_blocks(api), common.batches(1)

    def fail() -> None:
        with model.no_sync():
            raise KeyError("mine")

    text = common.error(fail)
    model(x).pow(2).mean().backward()
    return text, as_of_one_backward(api, model, x)


@holds()
def in_low_precision(api: Any) -> Any:
    """Gradients that are computed and reduced in bfloat16 add up in it."""
    precision = api.MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    model = common.in_blocks(api, mixed_precision=precision)
    accumulate(model, "nns", common.batches(3))
    return common.gradients(api, model)


@holds()
def no_sync_with_units_that_are_not_used(api: Any) -> Any:
    """A unit that only some of the backwards use keeps what these gave it."""

    use = [True]
    choosing = common.layers(
        lambda m, x: m.sometimes(m.always(x)) if use[0] else m.always(x),
        always=(4, 4),
        sometimes=(4, 4),
    )
    model = api.FSDP(choosing, auto_wrap_policy=api.wrap.always_wrap_policy, use_orig_params=True)
    first, second = common.batches(2)
    accumulate(model, "s", [first])
    use[0] = False
    accumulate(model, "s", [second])
    found = common.gradients(api, model)
    assert found["sometimes.weight"] is not None
    return found


@holds()
def training_goes_on(api: Any) -> Any:
    """After accumulation a model trains as before."""
    model = common.in_blocks(api)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accumulate(model, "nns", common.batches(3))
    optimizer.step()
    return common.train(model, optimizer), common.full(api, model)


@each(
    {
        "gradients_inside_of_no_sync": (
            "Inside of `no_sync` each parameter's gradient is this rank's whole one.",
            lambda model: [p.grad.abs().sum().item() for p in model.parameters()],
        ),
        "norms_inside_of_no_sync": (
            "Norms of what is accumulated so far are those of this rank.",
            lambda model: torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]),
        ),
        "changes_inside_of_no_sync": (
            "What is done to a gradient there is part of the sum.",
            lambda model: [p.grad.mul_(0.5) for p in model.parameters()],
        ),
    },
    cannot="FSDP2 keeps gradients that are not reduced yet apart from the parameters",
    refusal="FSDP311",
)
def read_inside_of_no_sync(api: Any, read: Any) -> Any:
    model = common.in_blocks(api, sharding_strategy=api.ShardingStrategy.NO_SHARD)
    accumulate(model, "n", common.batches(1))
    return read(model)


@holds()
def what_is_known_of_gradients_inside_of_no_sync(api: Any) -> Any:
    """Which parameters have a gradient there can be asked, and it can be printed and set to zero."""
    model = common.in_blocks(api)
    accumulate(model, "n", common.batches(1))
    held = [p.grad for p in model.parameters() if p.grad is not None]
    assert held
    assert all(map(str, held))
    found = [(held[0].dtype, held[0].device, held[0].requires_grad)]
    for gradient in held:
        gradient.zero_()
    accumulate(model, "s", common.batches(1))
    return found, common.gradients(api, model)
