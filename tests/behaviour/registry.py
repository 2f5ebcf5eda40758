"""Behaviours of FSDP1: small functions that run on every rank, on torch's FSDP1, on the bridge, and in place.

Each gets ``api``: ``torch.distributed.fsdp``, ``fsdp_migrate.runtime`` under the same names, or these
names with a constructor that shards in place. It asserts what its docstring says, and returns plain
data that must be the same for all; in place the names of the wrappers are left out.
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
        in_place: why it does not hold for a model that is sharded in place, although it does on the
            bridge; empty where it does, or both cannot have it.
        since: the release of torch since which FSDP1 does so itself; empty for every one that is supported.
    """

    name: str
    run: Run
    ranks: int
    tolerance: float
    cannot: str
    refusal: str
    in_place: str
    since: str = ""

    @property
    def area(self) -> str:
        return self.name.partition(".")[0].replace("_", " ").capitalize()

    @property
    def sentence(self) -> str:
        return " ".join((self.run.__doc__ or "").split())


BEHAVIOURS: dict[str, Behaviour] = {}


def holds(
    ranks: int = 2, tolerance: float = 0.0, in_place: str = "", since: str = ""
) -> Callable[[Run], Run]:
    """Registers what both forms must do as FSDP1 does it: bit for bit, or within ``tolerance``.

    ``in_place`` says why the bridge alone does, ``since`` which release of FSDP1 was the first that did.
    """
    return lambda run: _register(run, ranks, tolerance, in_place=in_place, since=since)


def cannot(reason: str, refusal: str = "", ranks: int = 2) -> Callable[[Run], Run]:
    """Registers what FSDP2 cannot have, and what the error says with which the bridge refuses it."""
    return lambda run: _register(run, ranks, 0.0, reason, refusal)


def _register(
    run: Run,
    ranks: int,
    tolerance: float,
    reason: str = "",
    refusal: str = "",
    in_place: str = "",
    since: str = "",
) -> Run:
    name = f"{run.__module__.rpartition('.')[2]}.{run.__name__}"
    if name in BEHAVIOURS or not run.__doc__:
        raise ValueError(f"{name} needs a name of its own and a docstring")
    BEHAVIOURS[name] = Behaviour(name, run, ranks, tolerance, reason, refusal, in_place, since)
    return run
