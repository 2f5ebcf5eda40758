"""What of torch's classes is changed: once, when a program first wraps a model or keeps one like FSDP1's.

With ``torch_private`` and the other ``torch_`` modules the only place that knows private names of torch.
"""

from functools import cache
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from .changed import of_collective, of_norm
from .gather import assign_data
from .gradients import require_reduced
from .older_optimizers import before_param_group, follow_all
from .quirks import record_of_parameter
from .refusals import PartOfShardedTensor
from .writeback import note_data


@cache
def install() -> None:
    """Makes ``p.data = x`` write to shards, follows optimizers, and warns where torch clips by another norm than under FSDP1.

    Importing the runtime changes nothing.
    """
    own, add = torch.Tensor.data, Optimizer.add_param_group
    total_norm = clip_grad._get_total_norm

    def set_data(tensor: DTensor, value: torch.Tensor) -> None:
        # torch replaces the metadata of the outer tensor and leaves its shard as it is, without an error.
        if not _assign(tensor, value):
            own.__set__(tensor, value)  # type: ignore[attr-defined]

    def add_param_group(self: Optimizer, param_group: dict[str, Any]) -> None:
        if isinstance(param_group, dict):
            before_param_group(self, param_group)
        add(self, param_group)

    def get_total_norm(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        of_norm(tensors)
        return total_norm(tensors, *args, **kwargs)

    DTensor.data = property(own.__get__, set_data)  # type: ignore[assignment,attr-defined]
    Optimizer.add_param_group = add_param_group  # type: ignore[method-assign]
    clip_grad._get_total_norm = get_total_norm
    for name in _OF_SHARDED_TENSORS:
        if not hasattr(DTensor, name):
            setattr(DTensor, name, _refusing(name))
    FSDPModule.__init_subclass__ = classmethod(_init_subclass)  # type: ignore[assignment,arg-type]
    follow_all()
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)
    handlers = getattr(DTensor._op_dispatcher, "_custom_op_handlers", {})
    for name in _COLLECTIVES.split():
        operator = getattr(torch.ops.c10d, name, None)
        if operator is not None:
            handlers.setdefault(operator.default, of_collective)


_COLLECTIVES = (
    "allreduce_ allreduce_coalesced_ broadcast_ reduce_ send recv_ gather_ scatter_ alltoall_ alltoall_base_ "
    "allgather_ _allgather_base_ allgather_into_tensor_coalesced_ reduce_scatter_ _reduce_scatter_base_ "
    "reduce_scatter_tensor_coalesced_"
)


# Methods of FSDP1's ShardedTensors, which sharded state dicts held.
_OF_SHARDED_TENSORS = ("local_shards", "local_tensor", "metadata", "sharding_spec")


def _refusing(name: str) -> property:
    """What a DTensor has by that name: an error, and no attribute for ``hasattr``."""

    def refuse(tensor: DTensor) -> None:
        raise PartOfShardedTensor(name)

    return property(refuse)


def _init_subclass(cls: type[FSDPModule], **kwargs: Any) -> None:
    """The class that ``fully_shard`` makes of a unit's is none that the model's own has to know: FSDP1 made none."""
    if cls.__bases__[0] is not FSDPModule:
        super(FSDPModule, cls).__init_subclass__(**kwargs)


def _assign(tensor: DTensor, value: torch.Tensor) -> bool:
    """``tensor.data = value``, unless that is switched off for the model."""
    record = record_of_parameter(tensor)
    if record is not None:
        if "data_writes" in record.switched_off:
            return False
        record.add("data_writes", "p.data = x")
    assign_data(tensor, value)
    note_data(tensor)
    return True


# The groups of an optimizer that steps now, by its id, which do so one parameter at a time for that step.
_one_by_one: dict[int, list[dict[str, Any]]] = {}


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for group in optimizer.param_groups:
        require_reduced(group["params"])
        if _is_mixed(group):
            group["foreach"] = False
            _one_by_one.setdefault(id(optimizer), []).append(group)


def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Gives groups back what they had, which a state dict saves."""
    for group in _one_by_one.pop(id(optimizer), ()):
        group["foreach"] = None


def _is_mixed(group: dict[str, Any]) -> bool:
    """Whether ``foreach``, CUDA's default, would refuse a group: ignored parameters are plain tensors beside DTensors."""
    if group.get("foreach", False) is not None or group.get("fused"):
        return False
    return len({isinstance(p, DTensor) for p in group["params"]}) > 1
