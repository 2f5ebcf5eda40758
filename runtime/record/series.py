"""Numbers that come as tensors and are read late, so that recording does not wait for the device."""

from __future__ import annotations

import torch


class Series:
    """A list of floats that takes scalar tensors."""

    def __init__(self) -> None:
        self._values: list[float | torch.Tensor] = []

    def append(self, value: torch.Tensor) -> None:
        """Add a tensor of one element; the program may change or free it afterwards."""
        value = value.detach()
        self._values.append(value.item() if value.device.type == "cpu" else value.clone())

    def numbers(self) -> list[float]:
        """All numbers so far, in order."""
        return [float(value) for value in self._values]

    def __len__(self) -> int:
        return len(self._values)
