"""From the shape of the first difference to its likeliest cause among the known traps of a migration.

What differs first says in which part of a step to look: a first loss depends on the weights, the
buffers and the input casts only; a first gradient norm with equal losses on the reduction, the
accumulation and the clipping; a later loss, with all before it equal, on the optimizer and on what
happens between two steps. Each trap is a question to the two runs, `Symptoms`, and one to the
programs' words: a program that never clips has not clipped by the wrong norm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fsdp_migrate.verify.compare import Difference
from fsdp_migrate.verify.records import Run
from fsdp_migrate.verify.sources import Sources
from fsdp_migrate.verify.symptoms import Symptoms, near

_BFLOAT16 = 2.0**-7
"""The distance of two neighbours in bfloat16, relative: a cast moves a loss by less."""

_SUMMED = 1e-5
"""What the order of a sum in float32 makes of a loss after a few steps."""

_GROWN = 1e-3
"""What rounding may grow to in a longer run; a fault soon shows more."""


@dataclass(frozen=True)
class Cause:
    """What probably makes two runs differ.

    Attributes:
        name: a word for it that stays the same, as in `initial-weights`.
        title: what went wrong, in one line.
        advice: where to look and what to write.
    """

    name: str
    title: str
    advice: str


@dataclass(frozen=True)
class _Trap:
    cause: Cause
    shape: Callable[[Symptoms], bool]
    """Whether the runs look like it."""
    told: Callable[[Sources], bool]
    """Whether the programs' text speaks for it: of two traps with one shape it decides."""


def likeliest(
    first: Difference | None, original: Run, migrated: Run, sources: Sources
) -> list[Cause]:
    """The causes that fit the first difference, the likeliest first; none if there is no difference."""
    if first is None:
        return []
    symptoms = Symptoms(first, original, migrated)
    fitting = [trap for trap in _TRAPS if trap.shape(symptoms)]
    # Sorting is stable: among equals the table's order counts, from sharp shapes to vague ones.
    return [t.cause for t in sorted(fitting, key=lambda trap: not trap.told(sources))]


def _always(_: Sources) -> bool:
    return True


def _never(_: Sources) -> bool:
    return False


def _clipped_apart(s: Symptoms) -> bool:
    """Each rank brought its own part to the norm that the whole should have."""
    goal = s.norms[0]
    parts = s.part_norms
    return s.world > 1 and goal > 0 and bool(parts) and all(near(p, goal) for p in parts)


def _not_clipped(s: Symptoms) -> bool:
    """The original's norms stop at one number, the migrated ones go beyond it."""
    norms, _ = s.all_norms
    highest = max(norms, default=0.0)
    capped = [norm for norm in norms if near(norm, highest)]
    return len(capped) > 1 and near(s.norms[0], highest) and s.norm_factor > 1.001


def _few_losses_apart(s: Symptoms) -> bool:
    return s.at_once and 0 < s.loss_apart < _BFLOAT16


_TRAPS = (
    _Trap(
        Cause(
            "ranks",
            "the programs run on different numbers of ranks",
            "Compare how both start their processes, and what they take the world size from.",
        ),
        lambda s: s.begins_with("number of ranks"),
        _always,
    ),
    _Trap(
        Cause(
            "accumulation",
            "a step is taken after another number of backwards",
            "Compare when both programs step: after the last micro-batch, and with the remainder of an epoch.",
        ),
        lambda s: s.begins_with("number of optimizer steps"),
        _always,
    ),
    _Trap(
        Cause(
            "steps",
            "the programs train for different numbers of steps",
            "Compare the loops: the sampler's rank and world size, drop_last, a limit by time, and an end after an evaluation.",
        ),
        lambda s: s.begins_with("number of backwards"),
        _always,
    ),
    _Trap(
        Cause(
            "learning-rate",
            "the learning rate differs",
            "Compare the optimizer's arguments and the scheduler: how often it steps, and what scales a rate.",
        ),
        lambda s: s.begins_with("learning rate"),
        _always,
    ),
    _Trap(
        Cause(
            "overflow",
            "one program leaves the range of its numbers",
            "In float16 the loss must be scaled (torch.amp.GradScaler knows sharded gradients). "
            "Compare param_dtype and reduce_dtype, and whether weights were loaded after a start on the meta device.",
        ),
        lambda s: s.broken,
        _always,
    ),
    _Trap(
        Cause(
            "no-sync-not-reset",
            "gradient synchronisation was switched off and not on again",
            "set_requires_gradient_sync(False) stays until it is set to True: call it with `is_last` before every micro-batch, "
            "or use no_sync of fsdp_migrate.runtime, which resets it.",
        ),
        lambda s: (
            s.begins_with("gradient norm") and s.norms[1] == 0 and s.reductions[1] < s.reductions[0]
        ),
        _always,
    ),
    _Trap(
        Cause(
            "optimizer-before-sharding",
            "the optimizer was built before the model was sharded, and trains nothing",
            "fully_shard replaces every parameter: build the optimizer after the last fully_shard, from model.parameters().",
        ),
        lambda s: s.begins_with("gradient norm") and s.norms[1] == 0,
        _always,
    ),
    _Trap(
        Cause(
            "local-clip",
            "the gradients are clipped by the norm of each rank's own part",
            "Clip with torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm), which takes the norm of the whole. "
            "A norm of .to_local() or of ._local_tensor is one rank's.",
        ),
        lambda s: s.begins_with("gradient norm") and _clipped_apart(s),
        lambda p: p.uses("clip_grad"),
    ),
    _Trap(
        Cause(
            "not-clipped",
            "the gradients are no longer clipped, or with another bound",
            "Compare the calls of clip_grad_norm_: the bound, the norm type, and that it runs after the last backward.",
        ),
        lambda s: s.begins_with("gradient norm") and _not_clipped(s),
        lambda p: p.uses("clip_grad"),
    ),
    _Trap(
        Cause(
            "averaging",
            "gradients are not averaged over the ranks as before",
            "FSDP1 and fully_shard both divide by the number of data-parallel ranks. Look for set_gradient_divide_factor, "
            "a changed mesh, and a loss or gradient that is scaled by the world size.",
        ),
        lambda s: (
            s.begins_with("gradient norm")
            and s.world > 1
            and near(s.norm_factor, s.world, 1 / s.world)
        ),
        _always,
    ),
    _Trap(
        Cause(
            "accumulation",
            "the gradients of a step's micro-batches are put together in another way",
            "Gradients must be synchronised in the last backward of a step, and only there: "
            "set_requires_gradient_sync(is_last). Compare the division of the loss and the place of zero_grad.",
        ),
        lambda s: (
            (s.begins_with("gradient norm") and s.backwards_a_step > 1)
            or (s.at_once and s.backwards_a_step > 1 and near(s.loss_factor, s.backwards_a_step))
        ),
        _always,
    ),
    _Trap(
        Cause(
            "reduce-dtype",
            "gradients are reduced or kept in another precision",
            "Compare reduce_dtype, and what keep_low_precision_grads and no_sync made of it: "
            "FSDP2 accumulates in reduce_dtype.",
        ),
        lambda s: s.begins_with("gradient norm") and abs(s.norm_factor - 1) < _BFLOAT16,
        lambda p: p.uses("reduce_dtype", "MixedPrecision"),
    ),
    _Trap(
        Cause(
            "averaging",
            "the gradients of some units are not reduced as before",
            "Compare the units, the mesh of each and its divide factor; parameters that a unit ignores are reduced by nobody.",
        ),
        lambda s: s.begins_with("gradient norm"),
        _never,
    ),
    _Trap(
        Cause(
            "initial-weights",
            "the programs begin with different weights",
            "sync_module_states=True took the first rank's weights: without it every rank shards its own. "
            "Broadcast them before fully_shard, or load them with broadcast_from_rank0. "
            "Compare seeds and the order of random calls as well.",
        ),
        lambda s: s.from_the_start == "parameters" or (s.at_once and s.loss_apart >= _BFLOAT16),
        _always,
    ),
    _Trap(
        Cause(
            "initial-buffers",
            "the programs begin with different buffers",
            "sync_module_states=True took the first rank's buffers as well; buffers that are not saved must be computed again "
            "after a start on the meta device.",
        ),
        lambda s: s.from_the_start == "buffers",
        _always,
    ),
    _Trap(
        Cause(
            "buffer-dtype",
            "buffers are kept in another precision",
            "FSDP2 leaves buffers alone: what MixedPrecision(buffer_dtype=...) did must be done by hand, "
            "buffer.data = buffer.to(dtype) for each, before the first forward.",
        ),
        _few_losses_apart,
        lambda p: p.lost("buffer_dtype"),
    ),
    _Trap(
        Cause(
            "batch-norm-dtype",
            "BatchNorm runs in low precision",
            "With a wrap policy and mixed precision, FSDP1 kept BatchNorm in float32. Make each BatchNorm a unit of its own: "
            "MixedPrecisionPolicy(param_dtype=torch.float32, output_dtype=<the others' param_dtype>).",
        ),
        _few_losses_apart,
        lambda p: p.uses("BatchNorm") and not p.lost("buffer_dtype"),
    ),
    _Trap(
        Cause(
            "input-dtype",
            "the forward computes in another precision",
            "Compare param_dtype and the casts of inputs: FSDP1 cast them at the root only, fully_shard at every unit "
            "unless cast_forward_inputs=False. Buffers and layers without parameters count, too.",
        ),
        _few_losses_apart,
        lambda p: p.uses("MixedPrecision", "autocast") and not p.uses("BatchNorm", "buffer_dtype"),
    ),
    _Trap(
        Cause(
            "initial-weights",
            "the programs begin with slightly different weights",
            "Compare seeds, the order of random calls, and the precision in which weights are made or loaded.",
        ),
        _few_losses_apart,
        lambda p: p.lost("sync_module_states"),
    ),
    _Trap(
        Cause(
            "rounding",
            "probably nothing: sums are taken in another order",
            "A difference of this size is float32 rounding. A larger --tolerance accepts it; "
            "if it grows with every step, look further.",
        ),
        lambda s: (
            s.begins_with("loss")
            and not s.at_once
            and s.loss_apart < _SUMMED
            and s.loss_apart_at_most < _GROWN
        ),
        _always,
    ),
    _Trap(
        Cause(
            "evaluation",
            "something between two steps changes the model: an evaluation leaves its units unsharded",
            "After a forward without a backward the root stays unsharded, and an optimizer or a checkpoint then sees other "
            "parameters: call model.reshard() after an evaluation. Compare what is loaded there, too.",
        ),
        lambda s: s.between_steps or (s.begins_with("gradient norm") and 0 < s.norm_factor < 1),
        lambda p: p.uses(".eval()", "no_grad", "inference_mode"),
    ),
    _Trap(
        Cause(
            "optimizer-update",
            "equal gradients lead to another update",
            "Compare the optimizer's groups (p.ndim and p.numel() are those of the whole parameter now), weight decay, "
            "the state that was loaded, and unused parameters: FSDP1 gave them a gradient of zero, FSDP2 gives none.",
        ),
        lambda s: s.between_steps,
        _always,
    ),
    _Trap(
        Cause(
            "data",
            "the same weights see other data, or other random numbers",
            "Compare samplers, seeds and dropout: a random number that only one program draws moves all that follow.",
        ),
        lambda s: s.begins_with("loss") and not s.at_once,
        _never,
    ),
    _Trap(
        Cause(
            "model-copy",
            "a model that no optimizer trains, such as a moving average, is updated in another way",
            "`p.data = x` changes nothing in a sharded parameter: update it in place, with p.copy_(x) or p.lerp_(x, weight) "
            "under torch.no_grad(). Compare which model is copied, and when.",
        ),
        lambda s: s.begins_with("model without an optimizer"),
        _always,
    ),
)
