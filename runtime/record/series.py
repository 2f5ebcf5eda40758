"""Numbers that come as tensors and are read late, so that recording does not wait for the device."""

from __future__ import annotations

import torch

_KEEP = 256
"""How many tensors are kept before they are read together."""


class Series:
    """A list of floats that takes scalar tensors."""

    def __init__(self) -> None:
        self._numbers: list[float] = []
        self._tensors: list[torch.Tensor] = []

    def append(self, value: torch.Tensor) -> None:
        """Add a tensor of one element; the program may change or free it afterwards."""
        value = value.detach()
        if value.device.type == "cpu":
            self._numbers.append(float(value.item()))
            return
        self._tensors.append(value.clone())
        if len(self._tensors) >= _KEEP:
            self._read()

    def numbers(self) -> list[float]:
        """All numbers so far, in order."""
        self._read()
        return list(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers) + len(self._tensors)

    def _read(self) -> None:
        self._numbers.extend(float(tensor.item()) for tensor in self._tensors)
        self._tensors.clear()
