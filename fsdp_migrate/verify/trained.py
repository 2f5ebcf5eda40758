"""What a program has trained, as a part of the verdict: its last parameters and buffers.

Two programs that train the same may still leave a parameter far apart: where a gradient is nothing but rounding, Adam
makes a step of the learning rate of it. Then the gradient's norms differ in their last digits, and the parameter by the
learning rates at most. A moving average is apart by no more than what it averages. Any other distance is a difference, also of
a parameter that no loss depends on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from fsdp_migrate.verify.compare import NORM_TOLERANCE, Comparison, Difference, close, floor
from fsdp_migrate.verify.records import Run
from fsdp_migrate.verify.values import Values

PARAMETERS = "last parameters"
BUFFERS = "last buffers"

UNTRAINED = "untrained model"
"""The recorder's name for a sharded model that no optimizer has, such as a moving average."""


def differences(
    comparison: Comparison,
    runs: tuple[Run, Run],
    ends: tuple[Values, Values],
    parameters: dict[str, float],
    buffers: dict[str, float],
    tolerance: float,
) -> Iterator[Difference]:
    """The last parameters, and the last buffers, if some of them are apart by more than rounding explains.

    Buffers come from activations, which no record shows: where a loss is rounded otherwise, they are not judged.

    Args:
        comparison: of the losses and gradient norms.
        ends: the last values of both.
        parameters: how far each is apart.
        buffers: the same, by name and rank.
        tolerance: relative to the largest element; 0 asks for the same bits.
    """
    step = 1 + max(run.steps for run in runs)
    rounded = _rounded(comparison, *runs)
    moved = 2 * sum(max(rates, default=0.0) for rates in runs[0].ranks[0].learning_rates)
    odd = []
    for name, distance in parameters.items():
        value = ends[0].parameters[name]
        scale = _largest(value)
        limit = scale * max(tolerance, floor(str(value.dtype)))
        if name in rounded:
            limit += moved * max(1.0, scale)
        if name.startswith(UNTRAINED):
            limit = max(limit, _of_trained(name, parameters))
        if not tolerance:
            limit = 0.0
        if not distance <= limit:  # NaN is apart, too
            odd.append((name, distance))
    yield from _first(step, 5, PARAMETERS, odd)
    if not tolerance or comparison.bitwise:
        yield from _first(step, 6, BUFFERS, [*buffers.items()])


def _of_trained(name: str, parameters: dict[str, float]) -> float:
    """How far the trained parameters are apart that one of another model can be an average of: those of the same name."""
    own = name.partition(".")[2]
    return max(
        (
            distance
            for trained, distance in parameters.items()
            if f".{trained}".endswith(f".{own}") and not trained.startswith(UNTRAINED)
        ),
        default=0.0,
    )


def _first(step: int, order: int, what: str, odd: list[tuple[str, float]]) -> Iterator[Difference]:
    if odd:
        name, distance = odd[0]
        others = ""
        if len(odd) > 1:
            others = f" (and {len(odd) - 1} more)"
        text = f"{name} by up to {distance:.3g}{others}"
        yield Difference(step, order, -1, what, text, parameter=name)


def _rounded(comparison: Comparison, original: Run, migrated: Run) -> set[str]:
    """The parameters whose gradients were not the same at some step, or may have been where no norm of theirs is known."""
    found: set[str] = set()
    alike = comparison.bitwise and comparison.max_rel_grad_norm <= NORM_TOLERANCE
    if alike:
        return found
    for step in range(1, min(original.steps, migrated.steps) + 1):
        one = original.squares("gradients", step)
        other = migrated.squares("gradients", step)
        if not one and not other:  # the records name the first steps' only
            return {name for rank in original.ranks for names in rank.names for name in names}
        names = one.keys() | other.keys()
        found |= {n for n in names if not close(one.get(n, 0.0), other.get(n, 0.0), NORM_TOLERANCE)}
    return found


def _largest(value: Any) -> float:
    """The largest element that is a number."""
    numbers = value[value.isfinite()]
    if numbers.numel():
        return float(numbers.double().abs().max())
    return 0.0


def unused(name: str, original: Run, migrated: Run) -> bool:
    """Whether a parameter had no gradient but zeros in the original, and none at all in the migrated program."""
    before, after = [
        {run.squares("gradients", step).get(name) for step in range(1, run.steps + 1)}
        for run in (original, migrated)
    ]
    return 0.0 in before <= {0.0, None} and after <= {None}


def unproved(original: Run) -> str:
    """Why equal losses prove nothing: they are no numbers, at least once the model is trained. Empty if they do."""
    losses = [
        (step, loss)
        for rank in original.ranks
        for step, loss in zip(rank.loss_steps, rank.losses, strict=True)
    ]
    finite = [step for step, loss in losses if math.isfinite(loss)]
    norms = any(map(math.isfinite, original.grad_norms))
    if not finite:
        return "every loss is NaN or infinite"
    if original.steps and not norms and max(finite) == 1:
        return "after the first step every loss is NaN or infinite, and so is each gradient norm"
    return ""


def not_numbers(original: Run) -> str:
    """How many losses are NaN or infinite, and where the first is; empty if all are numbers."""
    lost = [
        step
        for rank in original.ranks
        for step, loss in zip(rank.loss_steps, rank.losses, strict=True)
        if not math.isfinite(loss)
    ]
    if not lost:
        return ""
    count = sum(len(rank.losses) for rank in original.ranks)
    return (
        f"{len(lost)} of {count} losses, which are NaN or infinite, the first at step {min(lost)}"
    )
