"""The comparison of two runs: the differences that matter, in order."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from fsdp_migrate.verify.records import Rank, Run

NORM_TOLERANCE = 1e-12
"""Norms are fp64 sums of the same squares in another order: they agree up to their last digits."""

TOLERANCE = 1e-6
"""Of losses and norms in float32: some units of rounding."""

_EPS = {"torch.bfloat16": 2.0**-7, "torch.float16": 2.0**-10, "torch.float64": 2.0**-52}


def eps(dtype: str) -> float:
    """The relative distance of two neighbours in a dtype; float32's if the dtype is not known."""
    return _EPS.get(dtype, 2.0**-23)


def floor(dtype: str) -> float:
    """The tolerance of numbers in a dtype, where none is asked for: one unit, if that is more than usual."""
    return max(TOLERANCE, eps(dtype))


_GRADIENT = "the gradient of "
PRECISION = "precision"
"""What differs where parameters are computed with another dtype."""

AFTER = 5
FILES = 7
"""The order of what is compared when the programs have ended, and of files; 5 are the last parameters, 6 the last buffers."""


@dataclass(frozen=True, order=True)
class Difference:
    """One place where the runs differ.

    Attributes:
        step: the optimizer step, counted from 1; 0 is the start.
        order: within a step: what a program computes first comes first; from `AFTER` on what is left when it has ended.
        rank: -1 for what all ranks share.
        index: of a loss, which one of the rank's it is, counted from 0.
        parameter: what it began with, where that is known.
        more: how many others differ there.
        late: a loss after the last step.
    """

    step: int
    order: int
    rank: int
    what: str
    text: str
    index: int = -1
    parameter: str = ""
    more: int = 0
    late: bool = False

    @property
    def ended(self) -> bool:
        """Whether it is at no step: the step would be one more than the programs have."""
        return self.late or self.order >= AFTER

    def __str__(self) -> str:
        if self.what.startswith("last "):
            return f"{self.what} differ: {self.text}"
        if self.order >= AFTER:
            return f"{self.what}: {self.text}"
        where = "the start"
        if self.step:
            where = f"step {self.step}"
        if self.late:
            where = "a backward after the last step"
        if self.rank >= 0:
            where += f" on rank {self.rank}"
        return f"{self.what} differs first at {where}: {self.text}{self._parameters()}"

    def _parameters(self) -> str:
        """Which parameters differ there, if that is known."""
        if not self.parameter:
            return ""
        if not self.more:
            return f"; {self.parameter} differs"
        if self.parameter.startswith(_GRADIENT):
            name = self.parameter.removeprefix(_GRADIENT)
            return f"; the gradients of {self.more + 1} parameters differ, the last in the order of the model is {name}"
        return f"; {self.more + 1} parameters differ, the first in the order of the model is {self.parameter}"


@dataclass(frozen=True)
class Comparison:
    """What two runs have in common: at most one difference a kind and rank, the first."""

    differences: list[Difference]
    bitwise: bool
    max_abs_loss: float
    max_rel_grad_norm: float


def compare(original: Run, migrated: Run, tolerance: float | None = None) -> Comparison:
    """Compare two runs of one program; a tolerance of 0 asks for the same bits, None for what the dtypes can tell."""
    if tolerance is None:
        losses, norms = map(floor, original.dtypes)
    else:
        losses = norms = tolerance
    ranks = list(zip(original.ranks, migrated.ranks, strict=False))
    differences = [*_norms(original, migrated, max(norms, NORM_TOLERANCE))]
    if len(original.ranks) != len(migrated.ranks):
        text = f"{len(original.ranks)} against {len(migrated.ranks)}"
        differences.append(Difference(0, 0, -1, "number of ranks", text))
    for one, other in ranks:
        differences += _precisions(one, other)
        differences += _counts(one, other)
        differences += _losses(one, other, losses)
        differences += _rates(one, other, max(tolerance or 0.0, NORM_TOLERANCE))
    pairs = [pair for a, b in ranks for pair in zip(a.losses, b.losses, strict=False)]
    both = list(zip(original.grad_norms, migrated.grad_norms, strict=False))
    differences.sort()
    if differences:
        differences[0] = begun(differences[0], original, migrated, max(losses, norms))
    return Comparison(
        differences=differences,
        bitwise=all(close(a, b, 0) for a, b in pairs)
        and [len(r.losses) for r in original.ranks] == [len(r.losses) for r in migrated.ranks],
        max_abs_loss=largest(distance(a, b) for a, b in pairs),
        max_rel_grad_norm=largest(relative(a, b) for a, b in both),
    )


def begun(first: Difference, original: Run, migrated: Run, tolerance: float) -> Difference:
    """The first difference with the parameter that it begins with, by the norms of gradients and weights.

    A backward begins with the last of the model's parameters. A loss after the first depends on the weights that the
    step before has left.
    """
    step = first.step
    what = {"gradient norm": "gradients", "loss": "values"}.get(first.what, "")
    if not what or (step == 1 and what == "values"):
        return first
    one = original.squares(what, step)
    other = migrated.squares(what, step)
    least = max(2 * tolerance, NORM_TOLERANCE)
    odd = [n for n in one if n and n in other and not close(one[n], other[n], least)]
    if not odd or 1 < len(odd) == len(one.keys() & other.keys()):
        return first  # where all differ, no name tells anything
    if what == "gradients":
        name = odd[-1]
        more = _GRADIENT
    else:
        name = odd[0]
        more = ""
    return replace(first, parameter=f"{more}{name}", more=len(odd) - 1)


def distance(a: float, b: float) -> float:
    """How far two numbers are apart; two NaN, or the same infinity, are not apart at all."""
    if close(a, b, 0):
        return 0.0
    return abs(a - b)


def relative(a: float, b: float) -> float:
    """The distance relative to the larger of the two."""
    apart = distance(a, b)
    larger = max(abs(a), abs(b))
    if 0 < apart < math.inf:
        return apart / larger
    return apart


def close(a: float, b: float, tolerance: float) -> bool:
    """Whether two numbers agree within a relative tolerance; NaN agrees with NaN."""
    return math.isclose(a, b, rel_tol=tolerance) or (math.isnan(a) and math.isnan(b))


def largest(differences: Iterable[float]) -> float:
    """The largest of some differences; NaN if one is NaN, 0 if there are none."""
    found = list(differences)
    if any(map(math.isnan, found)):
        return math.nan
    return max(found, default=0.0)


def farthest(ones: Iterable[float], others: Iterable[float]) -> float | None:
    """The largest distance of two numbers in the same place; None if no place has both."""
    apart = [distance(a, b) for a, b in zip(ones, others, strict=False)]
    if apart:
        return largest(apart)
    return None


def _precisions(one: Rank, other: Rank) -> Iterator[Difference]:
    """Parameters that are computed with, or reduced in, another dtype: losses would differ by its rounding only."""
    odd = []
    for name, (compute, reduce) in one.precisions.items():
        now = other.precisions.get(name, [compute, reduce])
        if compute != now[0]:
            odd.append(f"{name} is used in {compute} against {now[0]}")
        elif reduce != now[1]:
            odd.append(f"the gradient of {name} is reduced in {reduce} against {now[1]}")
    if odd:
        others = ""
        if len(odd) > 1:
            others = f" (and {len(odd) - 1} more)"
        yield Difference(0, -1, one.rank, PRECISION, odd[0] + others)


def _losses(one: Rank, other: Rank, tolerance: float) -> Iterator[Difference]:
    for index, a, b in _apart(one.losses, other.losses, tolerance):
        step = one.loss_steps[index]
        nth = index - one.loss_steps.index(step) + 1
        text = ""
        if one.loss_steps.count(step) > 1:
            text = f" (backward {nth} of the step)"
        late = step > len(one.squares) and step > len(other.squares)
        yield Difference(step, 1, one.rank, "loss", _against(a, b) + text, index, late=late)


def _rates(one: Rank, other: Rank, tolerance: float) -> Iterator[Difference]:
    # A migrated program may have more parameter groups (DTensors and plain tensors apart): the
    # rates count, not the groups.
    for step, (a, b) in enumerate(zip(one.learning_rates, other.learning_rates, strict=False), 1):
        rates = sorted(set(a))
        others = sorted(set(b))
        if len(rates) != len(others) or any(_apart(rates, others, tolerance)):
            one_text = ", ".join(f"{rate:.6g}" for rate in rates)
            other_text = ", ".join(f"{rate:.6g}" for rate in others)
            text = f"{one_text} against {other_text}"
            yield Difference(step, 2, one.rank, "learning rate", text)
            return


def _norms(original: Run, migrated: Run, tolerance: float) -> Iterator[Difference]:
    for index, a, b in _apart(original.grad_norms, migrated.grad_norms, tolerance):
        yield Difference(index + 1, 3, -1, "gradient norm", _against(a, b))


def _apart(
    ones: list[float], others: list[float], tolerance: float
) -> Iterator[tuple[int, float, float]]:
    """The first place where two lists differ, if any, and what they have there."""
    for index, (a, b) in enumerate(zip(ones, others, strict=False)):
        if not close(a, b, tolerance):
            yield index, a, b
            return


def _counts(one: Rank, other: Rank) -> Iterator[Difference]:
    steps = len(one.squares)
    others = len(other.squares)
    if steps != others:
        text = f"{steps} against {others}"
        yield Difference(min(steps, others) + 1, 4, one.rank, "number of optimizer steps", text)
    backwards = len(one.losses)
    others = len(other.losses)
    if backwards != others:
        if backwards > others:
            longer = one
        else:
            longer = other
        step = longer.loss_steps[min(backwards, others)]
        text = f"{backwards} against {others}"
        yield Difference(step, 0, one.rank, "number of backwards", text)


def _against(a: float, b: float) -> str:
    short = f"{a:.8g}"
    if short != f"{b:.8g}":
        return f"{short} against {b:.8g}"
    return f"{a:.17g} against {b:.17g}"
