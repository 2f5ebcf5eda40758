"""FSDP1's options for models and state dicts: names, defaults and member order of ``torch/distributed/fsdp/api.py``.

torch's own objects are accepted wherever these are: options are read by their attributes and enum members by their
names, never by their class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum, auto
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = [
    "BackwardPrefetch", "CPUOffload", "FullOptimStateDictConfig", "FullStateDictConfig",
    "LocalOptimStateDictConfig", "LocalStateDictConfig", "MixedPrecision", "OptimStateDictConfig",
    "OptimStateKeyType", "ShardedOptimStateDictConfig", "ShardedStateDictConfig",
    "ShardingStrategy", "StateDictConfig", "StateDictSettings", "StateDictType", "TrainingState",
]  # fmt: skip


class NamedOption(Enum):
    """An enum whose members equal those of torch's enum of the same name, and hash like them.

    torch's members are no instances of it, nor ``in`` it; ``ShardingStrategy(member)`` takes them, and names.
    """

    @classmethod
    def _missing_(cls, value: object) -> NamedOption | None:
        name = getattr(value, "name", value)
        if isinstance(name, str):
            return cls.__members__.get(name)
        return None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Enum):
            return NotImplemented
        return type(self).__name__ == type(other).__name__ and self.name == other.name

    def __hash__(self) -> int:
        return hash(self._name_)


class _Options:
    """Dataclasses that equal torch's of the same name with the same fields."""

    def __eq__(self, other: object) -> bool:
        if type(self).__name__ != type(other).__name__ or not is_dataclass(other):
            return NotImplemented
        return vars(self) == vars(other)


class ShardingStrategy(NamedOption):
    """Which training state is sharded, and when parameters are gathered and freed.

    FSDP1's FULL_SHARD never frees the root's parameters after forward (``_runtime_utils.py``,
    ``_post_forward_reshard``), as ``fully_shard`` where ``reshard_after_forward`` is left out (pytorch#154704).
    SHARD_GRAD_OP is ``reshard_after_forward=False``, NO_SHARD a ``(world size, 1)`` mesh, and the hybrid strategies
    are these two inside a node, replicated across nodes.
    """

    FULL_SHARD = auto()
    SHARD_GRAD_OP = auto()
    NO_SHARD = auto()
    HYBRID_SHARD = auto()
    _HYBRID_SHARD_ZERO2 = auto()

    @property
    def is_hybrid(self) -> bool:
        return self in (ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2)

    @property
    def keeps_unsharded(self) -> bool:
        """Whether a unit's parameters stay gathered from its forward to its backward."""
        return self in (ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy._HYBRID_SHARD_ZERO2)


class BackwardPrefetch(NamedOption):
    """When backward gathers the parameters of the unit that comes next; None in place of a member: not before they are
    needed.

    FSDP2 has no BACKWARD_POST: it runs as BACKWARD_PRE, with up to one unit's parameters more at the memory peak.
    """

    BACKWARD_PRE = auto()
    BACKWARD_POST = auto()


@dataclass(eq=False)
class MixedPrecision(_Options):
    """Dtypes for computation and communication; the sharded parameters keep their own dtype.

    ``keep_low_precision_grads`` is not available: FSDP2's gradients have the dtype of the sharded parameters. Modules
    of ``_module_classes_to_ignore`` run in float32, each a unit of its own, when a wrap policy is given.
    """

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    buffer_dtype: torch.dtype | None = None
    keep_low_precision_grads: bool = False
    cast_forward_inputs: bool = False
    cast_root_forward_inputs: bool = True
    _module_classes_to_ignore: Sequence[type[nn.Module]] = (_BatchNorm,)


@dataclass(eq=False)
class CPUOffload(_Options):
    """Where sharded parameters live, with their gradients and so the optimizer; the model must not be moved afterwards."""

    offload_params: bool = False


class StateDictType(NamedOption):
    """How a state dict represents parameters: as whole tensors, as DTensors, or (LOCAL) as FSDP1's flat parameters."""

    FULL_STATE_DICT = auto()
    LOCAL_STATE_DICT = auto()
    SHARDED_STATE_DICT = auto()


class OptimStateKeyType(NamedOption):
    """What the states of an optimizer's state dict are keyed by: names, or numbers in order."""

    PARAM_NAME = auto()
    PARAM_ID = auto()


@dataclass(eq=False)
class StateDictConfig(_Options):
    """``offload_to_cpu``: put the values on the CPU."""

    offload_to_cpu: bool = False


@dataclass(eq=False)
class FullStateDictConfig(StateDictConfig):
    """``rank0_only``: an empty dict on every rank but 0."""

    rank0_only: bool = False


@dataclass(eq=False)
class LocalStateDictConfig(StateDictConfig):
    """For ``LOCAL_STATE_DICT``, which FSDP2 does not have."""


@dataclass(eq=False)
class ShardedStateDictConfig(StateDictConfig):
    """``_use_dtensor``: DTensor rather than ShardedTensor values; FSDP2 has DTensors only."""

    _use_dtensor: bool = False


@dataclass(eq=False)
class OptimStateDictConfig(_Options):
    """``offload_to_cpu``: put the values on the CPU. True by default, unlike for models."""

    offload_to_cpu: bool = True


@dataclass(eq=False)
class FullOptimStateDictConfig(OptimStateDictConfig):
    """``rank0_only``: an empty dict on every rank but 0."""

    rank0_only: bool = False


@dataclass(eq=False)
class LocalOptimStateDictConfig(OptimStateDictConfig):
    offload_to_cpu: bool = False


@dataclass(eq=False)
class ShardedOptimStateDictConfig(OptimStateDictConfig):
    """``_use_dtensor``: DTensor rather than ShardedTensor values; FSDP2 has DTensors only."""

    _use_dtensor: bool = False


@dataclass(eq=False)
class StateDictSettings(_Options):
    """A state-dict type with the configurations for model and optimizer."""

    state_dict_type: StateDictType
    state_dict_config: StateDictConfig
    optim_state_dict_config: OptimStateDictConfig


class TrainingState(NamedOption):
    """What a unit is doing (``torch/distributed/fsdp/_common_utils.py``)."""

    IDLE = auto()
    FORWARD_BACKWARD = auto()
    SUMMON_FULL_PARAMS = auto()


def as_mixed_precision(value: Any) -> MixedPrecision | None:
    """``value``, of this class or torch's, as a :class:`MixedPrecision`; None stays None."""
    if value is None:
        return None
    if not hasattr(value, "param_dtype") or not hasattr(value, "buffer_dtype"):
        raise ValueError(
            f"mixed_precision={value!r} is not a MixedPrecision: pass "
            "MixedPrecision(param_dtype=..., ...) or None"
        )
    # Fields that an older torch does not have keep their defaults.
    names = [field.name for field in fields(MixedPrecision) if hasattr(value, field.name)]
    mixed_precision = MixedPrecision(**{name: getattr(value, name) for name in names})
    if mixed_precision.keep_low_precision_grads:
        raise ValueError(
            "mixed_precision.keep_low_precision_grads=True has no equivalent in FSDP2, whose "
            "gradients have the dtype of the sharded parameters: leave it False"
        )
    return mixed_precision
