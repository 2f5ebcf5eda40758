"""Why two runs differ, where the records show it; otherwise where to look.

What differs first says in which part of a step: a first loss depends on the weights, the buffers and the casts only;
a first gradient norm on the reduction, the accumulation and the clipping; a later loss on the optimizer and on what
happens between two steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from fsdp_migrate.verify.compare import Difference, eps, relative
from fsdp_migrate.verify.records import Run

_SAME = 1e-3
"""The tolerance for two numbers that differ only by the order of a sum."""

_STEPS = 4
"""Units of rounding that the sums of a few steps may add up to."""


@dataclass(frozen=True)
class Cause:
    """What makes two runs differ; its name is a word that stays the same, `unknown` if nothing was found."""

    name: str
    title: str
    advice: str


@dataclass(frozen=True)
class _Scene:
    """Both runs and their first difference; `buffers` names a buffer that ends in another dtype."""

    first: Difference
    original: Run
    migrated: Run
    buffers: str

    @property
    def norms(self) -> tuple[float, float]:
        """Both gradient norms of the step; zeros unless these differ."""
        index = self.first.step - 1
        one, other = self.original.grad_norms, self.migrated.grad_norms
        known = self.first.what == "gradient norm" and 0 <= index < min(len(one), len(other))
        return (one[index], other[index]) if known else (0.0, 0.0)

    @property
    def factor(self) -> float:
        """The ratio of the gradient norms, migrated to original; NaN unless they differ."""
        one, other = self.norms
        return other / one if one else math.nan


def find(first: Difference | None, original: Run, migrated: Run, buffers: str) -> list[Cause]:
    """The cause of the first difference; none if there is no difference."""
    if first is None:
        return []
    scene = _Scene(first, original, migrated, buffers)
    for check in _CHECKS:
        if cause := check(scene):
            return [cause]
    return [Cause("unknown", "not known", _where(first))]


def aligned(cause: Cause) -> Cause:
    """The cause where the runs are the same once both begin with the same values."""
    advice = "With --align-init the runs are the same: the programs draw other random numbers, or in another order."
    return Cause("initial-weights", f"{cause.title}, and nothing else", advice)


_TOLD = {
    "number of ranks": (
        "ranks",
        "the programs run on different numbers of ranks",
        "Compare how both start their processes, and what they take the world size from.",
    ),
    "number of optimizer steps": (
        "accumulation",
        "a step is taken after another number of backwards",
        "Compare when both programs step: after the last micro-batch, and with the remainder of an epoch.",
    ),
    "number of backwards": (
        "steps",
        "the programs train for different numbers of steps",
        "Compare the loops: the sampler's rank and world size, drop_last, a limit by time, and an end after an evaluation.",
    ),
    "learning rate": (
        "learning-rate",
        "the learning rate differs",
        "Compare the optimizer's arguments and the scheduler: how often it steps, and what scales a rate.",
    ),
    "first parameters": (
        "initial-weights",
        "the programs begin with different weights",
        "Compare seeds, the order of random calls, and the precision in which weights are made or loaded.",
    ),
    "first parameters of the ranks": (
        "initial-weights",
        "the ranks begin with different weights",
        "sync_module_states=True took the first rank's weights: without it every rank shards its own. "
        "Broadcast them before fully_shard, or load them with broadcast_from_rank0.",
    ),
    "first buffers": (
        "initial-buffers",
        "the programs begin with different buffers",
        "sync_module_states=True took the first rank's buffers as well; buffers that are not saved must be computed again "
        "after a start on the meta device.",
    ),
    "model without an optimizer": (
        "model-copy",
        "a model that no optimizer trains, such as a moving average, is updated in another way",
        "`p.data = x` changes nothing in a sharded parameter: update it in place, with p.copy_(x) or p.lerp_(x, weight) "
        "under torch.no_grad(). Compare which model is copied, and when.",
    ),
}


def _told(s: _Scene) -> Cause | None:
    """What differs first is the cause itself, or steps are taken at other times."""
    for one, other in zip(s.original.ranks, s.migrated.ranks, strict=False):
        if any(a != b for a, b in zip(one.loss_steps, other.loss_steps, strict=False)):
            return Cause(*_TOLD["number of optimizer steps"])
    return Cause(*_TOLD[s.first.what]) if s.first.what in _TOLD else None


def _overflow(s: _Scene) -> Cause | None:
    index = max(s.first.index, 0)
    losses = [
        (one.losses[index], other.losses[index])
        for one, other in zip(s.original.ranks, s.migrated.ranks, strict=False)
        if s.first.what == "loss" and index < min(len(one.losses), len(other.losses))
    ]
    if all(math.isfinite(a) == math.isfinite(b) for a, b in [*losses, s.norms]):
        return None
    return Cause(
        "overflow",
        "only one of the programs has finite numbers there",
        "Compare loss scaling, dtypes, and weights that are made on the meta device and never loaded.",
    )


def _options(s: _Scene) -> Cause | None:
    """A parameter's options at the first step; the first step's losses and gradients do not depend on them."""
    if s.first.step == 1 and s.first.what in ("loss", "gradient norm"):
        return None
    one, other = s.original.options, s.migrated.options
    odd = [name for name in one if name in other and one[name] != other[name]]
    if not odd:
        return None
    a, b = one[odd[0]], other[odd[0]]
    key = next(key for key in [*a, *b] if a.get(key) != b.get(key))
    more = f" (and of {len(odd) - 1} more)" if len(odd) > 1 else ""
    return Cause(
        "optimizer-groups",
        f"{key} of {odd[0]}{more} is {b.get(key)}, the original's is {a.get(key)}",
        "Compare what sorts parameters into the optimizer's groups: p.ndim, p.numel() and names are those of the whole "
        "parameter under FSDP2.",
    )


def _no_gradient(s: _Scene) -> Cause | None:
    if not s.norms[0] or s.norms[1]:
        return None
    lost, before = (sum(rank.lost for rank in run.ranks) for run in (s.migrated, s.original))
    if lost > before:
        return Cause(
            "optimizer-before-sharding",
            "the optimizer was built before the model was sharded, and trains nothing",
            "fully_shard replaces every parameter: build the optimizer after the last fully_shard, from model.parameters().",
        )
    one, other = _reductions(s.original), _reductions(s.migrated)
    if other >= one:
        return None
    return Cause(
        "no-sync-not-reset",
        f"gradients are reduced {other} times, {one} times in the original",
        "set_requires_gradient_sync(False) stays in force: call set_requires_gradient_sync(is_last) before every micro-batch, "
        "or use no_sync of fsdp_migrate.runtime, which resets it.",
    )


def _local_clip(s: _Scene) -> Cause | None:
    """Each rank scaled its own part to the norm that the whole should have."""
    index, goal = s.first.step - 1, s.norms[0]
    squares = [rank.squares[index] for rank in s.migrated.ranks if index < len(rank.squares)]
    if len(squares) < 2 or not goal or not all(_near(math.sqrt(q), goal) for q in squares):
        return None
    return Cause(
        "local-clip",
        "the gradients are clipped by the norm of each rank's own part",
        "Clip with torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm), which takes the norm of the whole. "
        "A norm of .to_local() or of ._local_tensor is one rank's.",
    )


def _not_clipped(s: _Scene) -> Cause | None:
    """The original's norms have an upper bound, which the migrated ones exceed."""
    norms = s.original.grad_norms
    highest = max(norms, default=0.0)
    capped = [norm for norm in norms if _near(norm, highest)]
    if len(capped) < 2 or not _near(s.norms[0], highest) or not s.factor > 1 + _SAME:
        return None
    return Cause(
        "not-clipped",
        f"no gradient norm of the original is above {highest:.4g}, the migrated program's are",
        "Compare the calls of clip_grad_norm_: the bound, the norm type, and that it runs after the last backward.",
    )


def _averaging(s: _Scene) -> Cause | None:
    ranks = len(s.original.ranks)
    if ranks < 2 or not (_near(s.factor, ranks) or _near(s.factor, 1 / ranks)):
        return None
    return Cause(
        "averaging",
        f"the gradients are {s.factor:.4g} times the original's, on {ranks} ranks",
        "FSDP1 and fully_shard both divide by the number of data-parallel ranks. Look for set_gradient_divide_factor, "
        "a changed mesh, and a loss or gradient that is scaled by the world size.",
    )


def _buffers(s: _Scene) -> Cause | None:
    if not s.buffers:
        return None
    return Cause(
        "buffer-dtype",
        f"a buffer is kept in another precision: {s.buffers}",
        "FSDP2 leaves buffers alone: what MixedPrecision(buffer_dtype=...) did must be done by hand, "
        "buffer.data = buffer.to(dtype) for each, before the first forward; FSDP1 kept BatchNorm in float32.",
    )


def _rounding(s: _Scene) -> Cause | None:
    """Nowhere are the runs farther apart than sums of a few roundings."""
    dtypes = {rank.dtype for run in (s.original, s.migrated) for rank in run.ranks}
    if s.first.what not in ("loss", "gradient norm") or len(dtypes) != 1:
        return None
    dtype = dtypes.pop()
    pairs = [*zip(s.original.grad_norms, s.migrated.grad_norms, strict=False)]
    for one, other in zip(s.original.ranks, s.migrated.ranks, strict=False):
        pairs += zip(one.losses, other.losses, strict=False)
    largest = max((relative(a, b) for a, b in pairs), default=0.0)
    if not largest <= _STEPS * eps(dtype):
        return None
    name = dtype.removeprefix("torch.")
    return Cause(
        "rounding",
        f"the model computes in {name}, and no difference is larger than {largest / eps(dtype):.2g} of its units of rounding",
        "Sums may be taken in another order. A larger --tolerance accepts it; if it grows with every step, look further.",
    )


_CHECKS: tuple[Callable[[_Scene], Cause | None], ...] = (
    _told,
    _overflow,
    _options,
    _no_gradient,
    _local_clip,
    _averaging,
    _not_clipped,
    _buffers,
    _rounding,
)
"""The most specific first."""


def _where(first: Difference) -> str:
    """Where to look for a cause that is not known."""
    if first.what == "loss" and first.index == 0:
        return (
            "The first loss differs, first values that are compared are equal: look at what the first forward does, "
            "at casts of inputs and at random numbers."
        )
    if first.what == "gradient norm":
        return (
            "Losses up to there are equal: look at the backward of that step, at what accumulates and reduces gradients "
            "(set_requires_gradient_sync, reduce_dtype, ignored parameters), and at clipping."
        )
    if first.what == "loss":
        return (
            "Gradients up to there are equal: look at the optimizer's update, at what happens between the steps "
            "(an evaluation, a checkpoint), at the data and at random numbers."
        )
    return "All losses and gradient norms are equal: look at what is done after the training, or beside it."


def _near(value: float, goal: float) -> bool:
    return abs(value - goal) <= _SAME * abs(goal)


def _reductions(run: Run) -> int:
    kinds = ("reduce_scatter", "all_reduce")
    return sum(rank.collectives.get(kind, 0) for rank in run.ranks for kind in kinds)
