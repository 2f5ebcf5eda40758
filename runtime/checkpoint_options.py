"""FSDP1's state-dict types and their configurations, with FSDP1's spelling and defaults.

FSDP2 has no state-dict mode: what these say is passed to
``torch.distributed.checkpoint.state_dict`` at each call, or to :func:`state_dict_type`. The names
are those of ``torch/distributed/fsdp/api.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import auto

from .options import NamedOption, equals_torchs


class StateDictType(NamedOption):
    """How a state dict represents parameters.

    - ``FULL_STATE_DICT``: whole tensors: ``StateDictOptions(full_state_dict=True)``.
    - ``SHARDED_STATE_DICT``: each rank its own part, as DTensors: ``get_model_state_dict`` without
      options.
    - ``LOCAL_STATE_DICT``: FSDP1's flat parameters. FSDP2 has none; save again as another type with
    FSDP1 first.
    """

    FULL_STATE_DICT = auto()
    LOCAL_STATE_DICT = auto()
    SHARDED_STATE_DICT = auto()


class OptimStateKeyType(NamedOption):
    """What the states of an optimizer's state dict are keyed by: names, or numbers in order."""

    PARAM_NAME = auto()
    PARAM_ID = auto()


@equals_torchs
@dataclass
class StateDictConfig:
    """``offload_to_cpu``: put the values on the CPU."""

    offload_to_cpu: bool = False


@equals_torchs
@dataclass
class FullStateDictConfig(StateDictConfig):
    """``rank0_only``: an empty dict on every rank but 0.

    Both flags together are ``StateDictOptions(full_state_dict=True, cpu_offload=True)``.
    """

    rank0_only: bool = False


@equals_torchs
@dataclass
class LocalStateDictConfig(StateDictConfig):
    """Goes with ``LOCAL_STATE_DICT``, which FSDP2 does not have."""


@equals_torchs
@dataclass
class ShardedStateDictConfig(StateDictConfig):
    """``_use_dtensor``: DTensor rather than ShardedTensor values; FSDP2 has DTensors only."""

    _use_dtensor: bool = False


@equals_torchs
@dataclass
class OptimStateDictConfig:
    """``offload_to_cpu``: put the values on the CPU. True by default, unlike for models."""

    offload_to_cpu: bool = True


@equals_torchs
@dataclass
class FullOptimStateDictConfig(OptimStateDictConfig):
    """``rank0_only``: an empty dict on every rank but 0."""

    rank0_only: bool = False


@equals_torchs
@dataclass
class LocalOptimStateDictConfig(OptimStateDictConfig):
    """Goes with ``LOCAL_STATE_DICT``, which FSDP2 does not have."""

    offload_to_cpu: bool = False


@equals_torchs
@dataclass
class ShardedOptimStateDictConfig(OptimStateDictConfig):
    """``_use_dtensor``: DTensor rather than ShardedTensor values; FSDP2 has DTensors only."""

    _use_dtensor: bool = False


@equals_torchs
@dataclass
class StateDictSettings:
    """A state-dict type with the configurations for model and optimizer."""

    state_dict_type: StateDictType
    state_dict_config: StateDictConfig
    optim_state_dict_config: OptimStateDictConfig
