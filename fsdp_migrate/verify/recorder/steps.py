"""What this process trains, a line a step, so that others can follow while it runs."""

import json
import os
from typing import Any

import torch

from .census import Census

_NAMED = 200
"""Steps of which the norm of each parameter is written."""


class Steps:
    """The losses, gradients and learning rates of a process.

    A step is written when the next one begins: a device has computed it by then, and recording waits for nothing.
    """

    def __init__(self, folder: str) -> None:
        self.rank = -1
        self.world = 0
        self.count = 0
        self._folder = folder
        self._losses: list[torch.Tensor] = []
        self._limits: list[str] = []
        self._clipped = False
        self._waiting: list[dict[str, Any]] = []
        self._names: list[str] = []
        self._dtypes = ["", ""]

    def loss(self, loss: torch.Tensor) -> None:
        """A backward begins with this loss."""
        self._losses.append(loss.clone())
        self._dtypes[0] = str(loss.dtype)

    def clip(self, limit: str, acted: bool) -> None:
        """Gradients were clipped with this limit, which changed some of them or none."""
        self._limits.append(limit)
        self._clipped = self._clipped or acted

    def step(self, rates: list[float], now: float) -> None:
        """An optimizer step begins, with these learning rates."""
        self.write()
        self.count += 1
        line = {"losses": self._losses, "square": float("nan"), "rates": rates, "time": now}
        if self._limits:
            line |= {"limits": self._limits, "clipped": self._clipped}
        self._waiting = [line]
        self._losses = []
        self._limits = []
        self._clipped = False

    def norms(self, parameters: list[torch.Tensor], census: Census) -> None:
        """The squares of the gradients that this process holds, and of the parameters, by name, in fp64.

        Each is divided by the number of processes that hold the same numbers, so that the sum over all processes is
        the square of the norm, whatever the layout. The reader of the records adds up: a collective here would hang
        where ranks take different numbers of steps.
        """
        names = []
        gradients = []
        values = []
        counts = []
        for parameter in parameters:
            if parameter.grad is None:
                continue
            self._dtypes[1] = str(parameter.grad.dtype)
            whole = _local(parameter.grad)
            parts = census.pieces(parameter)
            fits = all(part.span is None or part.span[1] <= whole.numel() for part in parts)
            pieces = [(part.name, _piece(whole, part.span), part.read) for part in parts]
            if not fits or not pieces:
                pieces = [("", whole, parameter.detach)]
            for name, gradient, read in pieces:
                names.append(name)
                gradients.append(gradient)
                values.append(_local(read()))
                counts.append(census.replicas(parameter))
        squares = _squares(gradients, counts)
        self._waiting[-1]["square"] = squares.sum()
        if names and self.count <= _NAMED:
            found = {"names": names, "gradients": squares, "values": _squares(values, counts)}
            self._waiting[-1] |= found

    def write(self, end: bool = False) -> None:
        """Write the steps that are over; at the `end` also the backwards after the last one."""
        lines = self._waiting
        self._waiting = []
        if end and self._losses:
            lines.append({"losses": self._losses})
            self._losses = []
        if not lines:
            return
        with open(f"{self._folder}/process-{os.getpid()}.steps", "a", encoding="utf-8") as file:
            for line in lines:
                if line.get("names") == self._names:
                    del line["names"]
                self._names = line.get("names", self._names)
                line |= {"rank": self.rank, "world": self.world, "dtypes": self._dtypes}
                file.write(json.dumps({key: _plain(value) for key, value in line.items()}) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value


def _squares(tensors: list[torch.Tensor], counts: list[int]) -> torch.Tensor:
    """The sum of the squares of each, divided by its count; on the first one's device."""
    norms = norms_of(tensors)
    return norms.square() / torch.tensor(counts, device=norms.device)


def norms_of(tensors: list[torch.Tensor]) -> torch.Tensor:
    """The norms of what this process holds of these tensors, in fp64, on the first one's device."""
    tensors = [_local(tensor) for tensor in tensors]
    if not tensors:
        return torch.zeros(0, dtype=torch.float64)
    norms: list[Any] = [None] * len(tensors)
    for device in {tensor.device for tensor in tensors}:
        places = [place for place, tensor in enumerate(tensors) if tensor.device == device]
        found = torch._foreach_norm([tensors[place] for place in places], 2, dtype=torch.float64)
        for place, norm in zip(places, found, strict=True):
            norms[place] = norm.to(tensors[0].device)
    return torch.stack(norms)


def _piece(whole: torch.Tensor, span: tuple[int, int] | None) -> torch.Tensor:
    if span is None:
        return whole
    return whole[slice(*span)]


def _local(tensor: Any) -> torch.Tensor:
    # A DTensor's own detach takes long.
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor).detach()
    if local.is_sparse:
        local = local.coalesce().values()
    if local.is_complex():
        return torch.view_as_real(local)
    return local
