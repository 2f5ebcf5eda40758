"""This process's part of the global gradient norm: the squares of the gradients that it holds, in fp64.

Each is divided by the number of processes that hold the same numbers, so that the sum over all processes is the
square of the norm, whatever the layout. The reader of the records adds up: a collective here would hang where ranks
take different numbers of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch


def sum_of_squares(
    parameters: Iterable[torch.Tensor], replicas: Callable[[torch.Tensor], int]
) -> torch.Tensor:
    """The sum as an fp64 scalar on the gradients' device."""
    groups: dict[tuple[torch.device, int], list[torch.Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            gradient = _local(parameter.grad)
            key = (gradient.device, replicas(parameter))
            groups.setdefault(key, []).append(gradient)
    total = torch.zeros((), dtype=torch.float64)
    for (_, count), gradients in groups.items():
        norms = torch._foreach_norm(gradients, 2, dtype=torch.float64)
        total = total.to(norms[0].device) + torch.stack(norms).square().sum() / count
    return total


def _local(gradient: torch.Tensor) -> torch.Tensor:
    gradient = gradient.detach()
    gradient = getattr(gradient, "_local_tensor", gradient)
    if gradient.is_sparse:
        gradient = gradient.coalesce().values()
    return torch.view_as_real(gradient) if gradient.is_complex() else gradient
