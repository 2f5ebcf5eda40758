"""The parameters that an optimizer is given."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from .torch_private import units_of

Model = TypeVar("Model", bound=nn.Module)


def resharded(model: Model) -> Model:
    """``model`` with all units sharded, as an optimizer must find them: ``AdamW(resharded(model).parameters())``.

    A forward without a backward, such as an evaluation, leaves the root gathered, and with
    SHARD_GRAD_OP every unit. ``model.parameters()`` are then whole plain tensors that the next
    backward throws away, and an optimizer of them trains nothing (pytorch#149205). FSDP1 kept the
    parameter objects. The next forward gathers again; a module that is not sharded is left alone.
    """
    for unit in units_of(model):
        unit.reshard()
    return model


def separate_parameters(
    parameters: Iterable[torch.Tensor] | Iterable[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Groups of parameters of which each holds DTensors only, or plain tensors only.

    Optimizers step all parameters of a group at once (``foreach``, the default on CUDA, and
    ``fused``), and torch cannot mix the two kinds in that. A model with ignored parameters has
    both. The options of a group are those of both its parts, in the order in which they came.

    Args:
        parameters: parameters, or groups as a ``torch.optim.Optimizer`` takes them.
    """
    given: list[Any] = list(parameters)
    groups = given if given and isinstance(given[0], dict) else [{"params": given}]
    separated = []
    for group in groups:
        members = group["params"]
        members = [members] if isinstance(members, torch.Tensor) else list(members)
        for kind in (True, False):
            part = [p for p in members if isinstance(p, DTensor) is kind]
            if part:
                separated.append({**group, "params": part})
    return separated
