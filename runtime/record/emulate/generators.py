"""Random numbers: one generator, the CPU's.

Seeds for CUDA alone are not taken over. A program that seeds its devices by rank and its CPU not
counts on equal numbers on the CPU, and would lose them.
"""

from __future__ import annotations

from typing import Any

import torch

from .device import mapped
from .standin import stand_in


def install() -> None:
    """Replace `torch.Generator` and what `torch.cuda` says of random numbers."""
    real = torch.Generator
    torch.Generator = stand_in(real, lambda device="cpu": real(mapped(device)))  # type: ignore[misc, assignment]
    fork: Any = torch.random.fork_rng
    torch.random.fork_rng = lambda devices=None, enabled=True, *args, **kwargs: fork((), enabled)
    cuda: Any = torch.cuda
    for name in ("manual_seed", "manual_seed_all", "seed", "seed_all"):
        setattr(cuda, name, _nothing)
    cuda.initial_seed = torch.initial_seed
    cuda.get_rng_state = lambda device="cuda": torch.get_rng_state()
    cuda.get_rng_state_all = lambda: [torch.get_rng_state()]
    cuda.set_rng_state = lambda state, device="cuda": torch.set_rng_state(state)
    cuda.set_rng_state_all = lambda states: torch.set_rng_state(next(iter(states)))


def _nothing(*args: Any) -> None: ...
