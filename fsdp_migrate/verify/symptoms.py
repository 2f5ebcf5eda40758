"""What two runs tell of their first difference, as far as a cause can be read from it."""

from __future__ import annotations

import math

from fsdp_migrate.verify.compare import Difference, relative
from fsdp_migrate.verify.records import Run

_SAME = 1e-3
"""Two numbers that are meant to be the same, though a sum was taken in another order."""


def near(value: float, *goals: float) -> bool:
    """Whether a number is one of those that were expected."""
    return any(abs(value - goal) <= _SAME * abs(goal) for goal in goals)


class Symptoms:
    """Questions to two runs; `there` is where they differ first."""

    def __init__(self, first: Difference, original: Run, migrated: Run) -> None:
        self.first = first
        self.original = original
        self.migrated = migrated
        self.world = len(original.ranks)
        self.all_norms = original.grad_norms, migrated.grad_norms

    def begins_with(self, what: str) -> bool:
        """Whether this is what differs first."""
        return self.first.what == what

    @property
    def from_the_start(self) -> str:
        """`parameters` or `buffers` if these differ before the first step, else nothing."""
        words = self.first.what.split()
        return words[1] if words[0] == "first" else ""

    @property
    def at_once(self) -> bool:
        """Whether the very first loss differs: nothing was trained before it."""
        return self.begins_with("loss") and self.first.index == 0

    @property
    def between_steps(self) -> bool:
        """Whether a loss differs although every step before it had the same losses and gradients."""
        return self.begins_with("loss") and self.first.step > 1

    @property
    def loss_apart(self) -> float:
        """How far the losses there are apart, relative, on the rank where they are farthest."""
        apart = [relative(a, b) for a, b in self._losses()]
        return max((value for value in apart if not math.isnan(value)), default=0.0)

    @property
    def loss_apart_at_most(self) -> float:
        """How far two losses are apart anywhere, relative; infinite where one is no number."""
        pairs = zip(self.original.ranks, self.migrated.ranks, strict=False)
        apart = [relative(a, b) for o, m in pairs for a, b in zip(o.losses, m.losses, strict=False)]
        return max((math.inf if math.isnan(value) else value for value in apart), default=0.0)

    @property
    def loss_factor(self) -> float:
        """By what the migrated losses there are larger; NaN where ranks disagree on it."""
        factors = [b / a for a, b in self._losses() if a]
        if not factors or max(factors) - min(factors) > _SAME * abs(max(factors)):
            return math.nan
        return factors[0]

    @property
    def broken(self) -> bool:
        """Whether only one of the two has a number there."""
        pairs = [*self._losses(), self.norms]
        return any(math.isfinite(a) != math.isfinite(b) for a, b in pairs)

    @property
    def norms(self) -> tuple[float, float]:
        """Both gradient norms of the step."""
        index = self.first.step - 1
        one, other = self.all_norms
        return (one[index], other[index]) if 0 <= index < min(len(one), len(other)) else (0.0, 0.0)

    @property
    def norm_factor(self) -> float:
        """By what the migrated gradient norm is larger."""
        one, other = self.norms
        return other / one if one else math.nan

    @property
    def part_norms(self) -> list[float]:
        """The norm of each migrated rank's own part of the gradient."""
        index = self.first.step - 1
        return [math.sqrt(r.squares[index]) for r in self.migrated.ranks if index < len(r.squares)]

    @property
    def backwards_a_step(self) -> int:
        """How often the original program goes backward in that step."""
        return max((r.loss_steps.count(self.first.step) for r in self.original.ranks), default=0)

    @property
    def reductions(self) -> tuple[int, int]:
        """How many collectives of both could reduce gradients."""
        kinds = ("reduce_scatter", "all_reduce")
        one, other = (
            sum(rank.collectives.get(kind, 0) for rank in run.ranks for kind in kinds)
            for run in (self.original, self.migrated)
        )
        return one, other

    def _losses(self) -> list[tuple[float, float]]:
        """The losses there on all ranks."""
        index = max(self.first.index, 0)
        pairs = zip(self.original.ranks, self.migrated.ranks, strict=False)
        return [
            (one.losses[index], other.losses[index])
            for one, other in pairs
            if index < min(len(one.losses), len(other.losses))
        ]
