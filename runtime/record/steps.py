"""What this process trains, a line a step, so that others can follow while it runs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
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
        self.rank, self.world = -1, 0
        self.count = 0
        self._folder = folder
        self._losses: list[torch.Tensor] = []
        self._waiting: list[dict[str, Any]] = []
        self._names: list[str] = []
        self._dtypes = ["", ""]

    def loss(self, loss: torch.Tensor) -> None:
        """A backward begins with this loss."""
        self._losses.append(loss.clone())
        self._dtypes[0] = str(loss.dtype)

    def step(
        self, parameters: list[torch.Tensor], rates: list[float], time: float, census: Census
    ) -> None:
        """An optimizer step begins: its gradients, and the parameters' values before it."""
        self.write()
        self.count += 1
        line = {"losses": self._losses, "square": float("nan"), "rates": rates, "time": time}
        self._losses = []
        self._waiting.append(line)
        named = self.count <= _NAMED
        line |= self._norms([p for p in parameters if p.grad is not None], census, named)

    def _norms(
        self, parameters: Iterable[torch.Tensor], census: Census, named: bool
    ) -> dict[str, Any]:
        """The squares of the gradients that this process holds, and of the parameters, by name, in fp64.

        Each is divided by the number of processes that hold the same numbers, so that the sum over all processes is
        the square of the norm, whatever the layout. The reader of the records adds up: a collective here would hang
        where ranks take different numbers of steps.
        """
        names, gradients, values, counts = [], [], [], []
        for parameter in parameters:
            self._dtypes[1] = str(parameter.grad.dtype)  # type: ignore[union-attr]
            whole = _local(parameter.grad)
            parts = census.pieces(parameter)
            fits = all(part.span is None or part.span[1] <= whole.numel() for part in parts)
            pieces = [(p.name, whole[slice(*p.span)] if p.span else whole, p.read) for p in parts]
            for name, gradient, read in (
                pieces if fits and pieces else [("", whole, parameter.detach)]
            ):
                names.append(name)
                gradients.append(gradient)
                values.append(_local(read()))
                counts.append(census.replicas(parameter))
        if not names:
            return {"square": torch.zeros((), dtype=torch.float64)}
        squares = _squares(gradients, counts)
        found: dict[str, Any] = {"square": squares.sum()}
        if named:
            found |= {"names": names, "gradients": squares, "values": _squares(values, counts)}
        return found

    def write(self) -> None:
        """Write the steps that are over."""
        if self._waiting:
            self._write(self._waiting)
            self._waiting = []

    def end(self) -> None:
        """Write all that there is, also the backwards after the last step."""
        rest = [{"losses": self._losses}] if self._losses else []
        if lines := [*self._waiting, *rest]:
            self._write(lines)

    def _write(self, lines: list[dict[str, Any]]) -> None:
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
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _squares(tensors: list[torch.Tensor], counts: list[int]) -> torch.Tensor:
    """The sum of the squares of each, divided by its count; on the first one's device."""
    norms: list[Any] = [None] * len(tensors)
    for device in {tensor.device for tensor in tensors}:
        places = [place for place, tensor in enumerate(tensors) if tensor.device == device]
        found = torch._foreach_norm([tensors[place] for place in places], 2, dtype=torch.float64)
        for place, norm in zip(places, found, strict=True):
            norms[place] = norm.to(tensors[0].device)
    return torch.stack(norms).square() / torch.tensor(counts, device=tensors[0].device)


def _local(tensor: Any) -> torch.Tensor:
    tensor = tensor.detach()
    tensor = getattr(tensor, "_local_tensor", tensor)
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
