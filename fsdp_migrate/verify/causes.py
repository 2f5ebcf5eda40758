"""Why two runs differ, where the records show it; otherwise where to look.

What differs first says in which part of a step: a first loss depends on the weights, the buffers and the casts only;
a first gradient norm on the reduction, the accumulation and the clipping; a later loss on the optimizer and on what
happens between two steps.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from fsdp_migrate.findings import Finding
from fsdp_migrate.verify import clipping, trained
from fsdp_migrate.verify.compare import FILES, PRECISION, Difference, eps, largest, relative
from fsdp_migrate.verify.outputs import Printed
from fsdp_migrate.verify.records import Run
from fsdp_migrate.verify.where.lines import GOES_ON, MEET, Line

_near = partial(math.isclose, rel_tol=1e-3)
"""Whether two numbers differ only by the order of a sum."""

_STEPS = 4
"""Units of rounding that the sums of a few steps may add up to."""

BY_HAND = "you: FSDP"
"""What a note says of findings that the migration left to people."""

_NOTE = re.compile(
    r"(\d+ findings? needs? you: FSDP\d+ at \S+(?: and \S+)*): (.*?)( And \d+ more, .*)?"
)
"""Its beginning, what the finding says, and the number of others."""

TRAINED_DIFFERENTLY = "they train differently"

_SYMPTOMS = ("by-hand", "learning-rate", "rounding", "unknown")
"""Causes that say what came of a difference, and not which."""


@dataclass(frozen=True)
class Cause:
    """What makes two runs differ; its name is a word that stays the same, `unknown` if nothing was found."""

    name: str
    title: str
    advice: str


def find(first: Difference | None, original: Run, migrated: Run, buffers: str) -> Cause | None:
    """The cause of the first difference, if there is one; `buffers` names one that ends in another dtype."""
    if first is None:
        return None
    for name, facts in _shown(first, original, migrated, buffers):
        title, advice = _CAUSES[name]
        return Cause(_NAMES.get(name, name), title.format(**facts), advice)
    return Cause("unknown", "not known", _where(first))


def behind_findings(
    cause: Cause | None, notes: Sequence[str], saving: Sequence[str] = ()
) -> Cause | None:
    """The cause, or what the migration left to people, which comes first where the records show no other.

    `saving` are the findings on what the program saves.
    """
    if cause is not None and cause.name == "file-layout" and saving:
        advice = f"In the files, {cause.title}. {cause.advice}"
        return Cause("by-hand", saving[0].rstrip("."), advice)
    left = next((note for note in notes if BY_HAND in note), "")
    if cause is None or cause.name not in ("rounding", "unknown") or not left:
        return cause
    then = f"If the runs still differ: {cause.title}."
    if cause.name == "unknown":
        then = "If the runs still differ, the records show no cause."
    advice = f"Do what the findings say, then compare again. {then} {cause.advice}"
    return Cause("by-hand", left.rstrip("."), advice)


def at_line(cause: Cause | None, lines: Sequence[Line]) -> Cause | None:
    """The cause; where the records show only what came of it, the first line that differs, or the finding on that line."""
    if cause is None or cause.name not in _SYMPTOMS or not lines:
        return cause
    first = lines[0]
    if first.needs_user:
        same = [line.place for line in lines if line.message == first.message and line.needs_user]
        title = f"{first.rules[0]} at {' and '.join(same)}: {first.message}".rstrip(": .")
        return Cause("by-hand", title, "Do what it says, then compare again.")
    if cause.name in ("by-hand", "rounding"):
        return cause
    way = next((pair for pair in first.pairs if pair.name == GOES_ON), None)
    if way is not None and way.migrated == MEET:
        title = f"after {first.place} the original runs {way.original}, and the migrated program does not"
        return Cause("line", title, "Make the migrated program do so whenever the original does.")
    advice = "Its values in both programs are above. Make the migrated program compute the original's there."
    return Cause("line", f"{first.place} is the first line that does something else", advice)


def of_printed(lines: Sequence[Printed], *, is_equal: bool) -> list[Printed]:
    """Lines that the programs print differently: where they train differently, that explains what nothing else does."""
    if is_equal:
        return [*lines]
    return [replace(line, cause=line.cause or TRAINED_DIFFERENTLY) for line in lines]


def note_of(findings: Sequence[Finding]) -> str:
    """A note of what the migration left to people: how many findings, and the first of them in words."""
    first = findings[0]
    same = [each for each in findings if (each.code, each.message) == (first.code, first.message)]
    places = " and ".join(dict.fromkeys([f"{each.path}:{each.line}" for each in same]))
    told = f"{first.code} at {places}: {first.message}"
    if len(findings) == 1:
        return f"1 finding needs you: {told}"
    rest = ""
    if more := len(findings) - len(same):
        rest = f" And {more} more, which `fsdp-migrate check` lists."
    return f"{len(findings)} findings need you: {told}{rest}"


def untold(note: str, known: Sequence[str]) -> str:
    """A note without what other texts of the report say; empty if they say all of it."""
    found = _NOTE.fullmatch(note)
    if found is None:
        return note
    begin, message, others = found.groups(default="")
    if not any(message.rstrip(".") in text for text in known):
        return note
    places = begin.partition(" you: ")[2]
    if any(note.rstrip(".") in text or (places in text and not others) for text in known):
        return ""
    return f"{begin}.{others}"


Shown = Iterator[tuple[str, dict[str, Any]]]
"""Keys of `_CAUSES`, each with what its title needs; the most specific first."""


def _shown(first: Difference, original: Run, migrated: Run, buffers: str) -> Shown:
    ranks = [*zip(original.ranks, migrated.ranks, strict=False)]
    pairs = [zip(one.loss_steps, other.loss_steps, strict=False) for one, other in ranks]
    if any(one != other for one, other in chain.from_iterable(pairs)):
        yield "number of optimizer steps", {}
    if first.what in _CAUSES:
        yield first.what, {}
    if first.what in ("loss", "gradient norm", trained.PARAMETERS):
        yield from _of_optimizers(original, migrated)
    if first.what == trained.PARAMETERS and trained.unused(first.parameter, original, migrated):
        yield "unused-parameters", {"name": first.parameter}
    if first.what == "gradient norm" and original.grad_norms[first.step - 1]:
        yield from _of_norms(first.step - 1, original, migrated)
    if first.order == FILES and "sharded tensor" in first.text:
        yield "file-layout", {}
    if buffers:
        yield "buffer-dtype", {"buffers": buffers}
    dtypes = {rank.dtype for run in (original, migrated) for rank in run.ranks}
    if first.what in ("loss", "gradient norm") and len(dtypes) == 1:
        dtype = dtypes.pop()
        numbers = [(original.grad_norms, migrated.grad_norms)]
        numbers += [(one.losses, other.losses) for one, other in ranks]
        both = chain.from_iterable(zip(*pair, strict=False) for pair in numbers)
        units = largest(relative(a, b) for a, b in both) / eps(dtype)
        if units <= _STEPS:
            yield "rounding", {"dtype": dtype.removeprefix("torch."), "units": units}


def _of_optimizers(original: Run, migrated: Run) -> Shown:
    """What parameters show that an optimizer has and the model does not."""
    gathered = _most("gathered", migrated) - _most("gathered", original)
    if gathered > 0:
        yield "optimizer-of-gathered-parameters", {"count": gathered}
    lost = _most("lost", migrated) - _most("lost", original)
    if lost > gathered:
        yield "optimizer-before-sharding", {"count": lost - gathered}


def _of_norms(index: int, original: Run, migrated: Run) -> Shown:
    """What gradient norms show that differ at a step."""
    before = original.grad_norms[index]
    now = migrated.grad_norms[index]
    ranks = len(original.ranks)
    one = _reductions(original)
    other = _reductions(migrated)
    counted = not (original.stopped or migrated.stopped)
    if counted and not now and other < one:
        yield "no-sync-not-reset", {"before": one, "now": other}
    parts = [math.sqrt(rank.squares[index]) for rank in migrated.ranks if index < len(rank.squares)]
    if len(parts) > 1 and all(_near(part, before) for part in parts):
        yield "local-clip", {}
    if alone := clipping.by_one(index, original, migrated):
        yield "clipping by one", alone
    factor = now / before
    if ranks > 1 and (_near(factor, ranks) or _near(factor, 1 / ranks)):
        yield "averaging", {"factor": factor, "ranks": ranks}


_CAUSES = {
    "number of ranks": (
        "the programs run on different numbers of ranks",
        "Compare how both start their processes, and what they take the world size from.",
    ),
    "number of optimizer steps": (
        "a step is taken after another number of backwards",
        "Compare when both programs step: after the last micro-batch, and with the remainder of an epoch.",
    ),
    "number of backwards": (
        "the programs train for different numbers of steps",
        "Compare the loops: the sampler's rank and world size, drop_last, a limit by time, and an end after an evaluation.",
    ),
    "learning rate": (
        "the learning rate differs",
        "Compare the optimizer's arguments and the scheduler: how often it steps, and what scales a rate.",
    ),
    "first parameters": (
        "the programs begin with different weights",
        "Compare seeds, the order of random calls, and the precision in which weights are made or loaded. With --align-init "
        "the migrated program takes over the original's, so that what follows can be compared.",
    ),
    "first parameters of the ranks": (
        "the ranks begin with different weights",
        "sync_module_states=True took the first rank's weights: without it every rank shards its own. "
        "Broadcast them before fully_shard, or load them with broadcast_from_rank0.",
    ),
    "first buffers": (
        "the programs begin with different buffers",
        "sync_module_states=True took the first rank's buffers as well; buffers that are not saved must be computed again "
        "after a start on the meta device.",
    ),
    PRECISION: (
        "parameters are computed with, or their gradients reduced in, another dtype",
        "Pass the MixedPrecisionPolicy to fully_shard of every block, too: none takes over its parent's. FSDP1 reduced in "
        "param_dtype where reduce_dtype was not given.",
    ),
    "clipping": (
        "the programs clip gradients with other limits",
        "Call torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm) where the original clips, with the same limit.",
    ),
    "clipping by one": (
        "the {name} clips gradients to a norm of {limit}, and the {other} does not clip",
        "Clip in both programs at the same place, with the same limit.",
    ),
    "unused-parameters": (
        "no loss depends on {name}, and the optimizer treats it differently",
        "FSDP1 gave such a parameter a gradient of zeros, so that weight decay and momentum moved it; fully_shard gives it "
        "none. To train as before, keep like_fsdp1, or set p.grad = torch.zeros_like(p) before the step.",
    ),
    "optimizer-of-gathered-parameters": (
        "the optimizer holds {count} gathered parameters, and trains nothing of them",
        "After a forward without gradients the root's parameters are still gathered, and model.parameters() returns them so. "
        "Create the optimizer before that forward, or call model.reshard() first.",
    ),
    "optimizer-before-sharding": (
        "{count} parameters of the optimizer were collected before the model was sharded, and are not the model's any more",
        "fully_shard replaces every parameter: collect them, and create the optimizer, after the last fully_shard.",
    ),
    "no-sync-not-reset": (
        "gradients are reduced {now} times, {before} times in the original",
        "set_requires_gradient_sync(False) remains in effect. Call set_requires_gradient_sync(is_last) before every "
        "micro-batch, or use no_sync of fsdp_migrate.runtime, which resets it.",
    ),
    "local-clip": (
        "each rank clips its gradients by its local norm",
        "Clip with torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm), which uses the global norm. "
        "A norm of .to_local() or of ._local_tensor is the norm of one rank's shard.",
    ),
    "averaging": (
        "the gradients are {factor:.4g} times the original's, on {ranks} ranks",
        "FSDP1 and fully_shard both divide by the number of data-parallel ranks. Look for set_gradient_divide_factor, "
        "a changed mesh, and a loss or gradient that is scaled by the world size.",
    ),
    "buffer-dtype": (
        "a buffer is kept in another precision: {buffers}",
        "FSDP2 does not cast buffers. Do what MixedPrecision(buffer_dtype=...) did yourself: "
        "buffer.data = buffer.to(dtype) for each, before the first forward. FSDP1 kept BatchNorm in float32.",
    ),
    "file-layout": (
        "one program saves plain tensors, the other DTensors, so each file holds only one rank's shards",
        "torch.load(..., weights_only=True) of DTensors fails unless torch.distributed.tensor was imported. "
        "Save what get_model_state_dict or get_optimizer_state_dict returns with "
        "StateDictOptions(full_state_dict=True, cpu_offload=True), or use torch.distributed.checkpoint.",
    ),
    "rounding": (
        "the model computes in {dtype}, and no difference is larger than {units:.2g} of its rounding units",
        "The order of additions may differ. Accept it with a larger --tolerance; if it grows with every step, look further.",
    ),
}
"""The title, and what to do, by what differs first or by the name of the cause."""

_NAMES = {
    "number of ranks": "ranks",
    "number of optimizer steps": "accumulation",
    "number of backwards": "steps",
    "learning rate": "learning-rate",
    "first parameters": "initial-weights",
    "first parameters of the ranks": "initial-weights",
    "first buffers": "initial-buffers",
    "clipping by one": "clipping",
}


def _where(first: Difference) -> str:
    """Where to look for a cause that is not known."""
    if first.what == "loss" and first.index == 0:
        return (
            "The first loss differs, although the compared first values are equal. Look at what the first forward does, "
            "at casts of inputs and at random numbers."
        )
    if first.what == "gradient norm":
        return (
            "Losses up to that step are equal. Look at the backward of that step, at what accumulates and reduces gradients "
            "(set_requires_gradient_sync, reduce_dtype, ignored parameters), at loss scaling and at clipping."
        )
    if first.what == "loss":
        return (
            "Gradients up to that step are equal. Look at the optimizer's update and its parameter groups (which parameters "
            "p.ndim and p.numel() select), at what happens between the steps "
            "(an evaluation, a checkpoint), at the data and at random numbers."
        )
    return (
        "All losses and gradient norms are equal. Look at what runs after the training or next to it, such as a moving "
        "average: `p.data = x` has no effect on a sharded parameter, use p.copy_(x)."
    )


def _most(what: str, run: Run) -> int:
    """Parameters of a kind on the rank that has most."""
    return max((getattr(rank, what) for rank in run.ranks), default=0)


def _reductions(run: Run) -> int:
    kinds = ("reduce_scatter", "all_reduce")
    return sum(rank.collectives.get(kind, 0) for rank in run.ranks for kind in kinds)
