"""Behaviours of FSDP1: small functions that run on every rank, once on torch's FSDP1 and once on the bridge.

Each gets ``api``: ``torch.distributed.fsdp``, or ``fsdp_migrate.runtime`` under the same names. It
asserts what its docstring says, and returns plain data that must be the same for both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Run = Callable[[Any], Any]


@dataclass(frozen=True)
class Behaviour:
    """One behaviour.

    Attributes:
        name: the function's name, with its module's.
        run: the function.
        ranks: how many ranks it takes.
        tolerance: how far numbers may be apart, relative to the largest of a tensor.
        cannot: why FSDP2 cannot have it; empty where it holds.
        refusal: what the error says with which the bridge refuses what cannot hold, as a rule is
            the code of a rule; empty where the results differ instead.
    """

    name: str
    run: Run
    ranks: int
    tolerance: float
    cannot: str
    refusal: str

    @property
    def area(self) -> str:
        return self.name.partition(".")[0].replace("_", " ").capitalize()

    @property
    def sentence(self) -> str:
        return " ".join((self.run.__doc__ or "").split())


BEHAVIOURS: dict[str, Behaviour] = {}


def holds(ranks: int = 2, tolerance: float = 0.0) -> Callable[[Run], Run]:
    """Registers what the bridge must do as FSDP1 does it: bit for bit, or within ``tolerance``."""
    return lambda run: _register(run, ranks, tolerance)


def cannot(reason: str, refusal: str = "") -> Callable[[Run], Run]:
    """Registers what FSDP2 cannot have, and what the error says with which the bridge refuses it."""
    return lambda run: _register(run, 2, 0.0, reason, refusal)


def _register(run: Run, ranks: int, tolerance: float, reason: str = "", refusal: str = "") -> Run:
    name = f"{run.__module__.rpartition('.')[2]}.{run.__name__}"
    if name in BEHAVIOURS or not run.__doc__:
        raise ValueError(f"{name} needs a name of its own and a docstring")
    BEHAVIOURS[name] = Behaviour(name, run, ranks, tolerance, reason, refusal)
    return run
