"""Runs ranks whose operands are nowhere aligned: ``python -m misaligned MODULE ARGUMENTS...``, in ``tests/``.

What a layer multiplies is copied to 1 to 15 elements behind an aligned address, another number at each call. On a processor
whose matrix library minds that, FSDP1 and the bridge differ unless it is told not to (``verify/reproducible.py``).
"""

import runpy
import sys
from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode

LAYERS = {nn.functional.linear, nn.functional.conv2d, torch.matmul, torch.bmm}


class Misaligned(TorchFunctionMode):
    """Moves the operands of layers. The offsets go on from run to run, so that no two runs have the same ones."""

    def __init__(self) -> None:
        super().__init__()
        self.random = Random(0)

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in LAYERS:
            args = tuple(map(self.moved, args))
        return function(*args, **(kwargs or {}))

    def moved(self, operand: Any) -> Any:
        """The same numbers elsewhere; gradients go to where they went before."""
        dense = isinstance(operand, torch.Tensor) and not isinstance(operand, DTensor)
        if not dense or not operand.is_floating_point():
            return operand
        count, offset = operand.numel(), self.random.randint(1, 15)
        room = torch.empty(count + offset, dtype=operand.dtype)  # torch aligns it to 64 bytes
        return room[offset:].view(operand.shape).copy_(operand)


def differ() -> bool:
    """Whether products of the same numbers differ by where these are."""
    move, multiply = Misaligned().moved, nn.functional.linear
    sizes = [(m, k, n) for m in (1, 5) for k in (5, 16) for n in (4, 10)]
    operands = [(torch.randn(m, k), torch.randn(n, k)) for m, k, n in sizes]
    return any(
        not torch.equal(multiply(x, weight), multiply(move(x), move(weight)))
        for x, weight in 20 * operands
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["differ"]:
        sys.exit(print(differ()))
    sys.argv = sys.argv[1:]
    with Misaligned():
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
