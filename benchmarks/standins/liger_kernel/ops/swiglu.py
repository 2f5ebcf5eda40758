"""A gated activation."""

from __future__ import annotations

import torch


class LigerSiLUMulFunction:
    """As the kernel's function is called."""

    @staticmethod
    def apply(gate: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(gate) * value
