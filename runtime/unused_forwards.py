"""A forward in low precision whose result no backward uses: under FSDP1 the next backward left no gradients.

FSDP1 reduced when the gradients of the first forward since the last backward were complete, and in low precision each forward
has its own (``_runtime_utils.py``, ``_register_post_backward_hook``). With ``use_orig_params=False`` it then raised.
"""

from typing import Any

import torch

from .changed import say
from .notes import Notes
from .torch_private import apply_to_tensors, is_recomputed, parameter_groups


class FirstForward:
    """The first forward of a unit since its last backward, and whether a backward came to it."""

    is_used = False

    def __init__(self, output: Any) -> None:
        apply_to_tensors(self._follow, output)

    def _follow(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.requires_grad:
            tensor.register_hook(self._use)  # type: ignore[no-untyped-call]
        return tensor

    def _use(self, _: torch.Tensor) -> None:
        self.is_used = True


def follow(unit: Any, notes: Notes, output: Any) -> None:
    """At the end of a forward."""
    if notes.first_forward is None and torch.is_grad_enabled() and _is_cast(unit):
        if not is_recomputed(unit):
            notes.first_forward = FirstForward(output)


def _is_cast(unit: Any) -> bool:
    """Whether parameters of a unit itself compute in another type than they have."""
    groups = parameter_groups(unit)
    return any(each.param_dtype is not None for group in groups for each in group.fsdp_params)


def tell_of_unused(notes: Notes, group: Any) -> None:
    """Says so before gradients are reduced that FSDP1 would have lost."""
    first = notes.first_forward
    notes.first_forward = None
    if first is not None and not first.is_used and group.reduce_grads:
        say(
            "FSDP213",
            "a forward in low precision had no backward, such as an evaluation without torch.no_grad(). Under FSDP1 the next "
            "backward then left no gradients, and the optimizer changed nothing; now it trains",
        )
