"""Behaviours of FSDP1: small functions that run on every rank, on torch's FSDP1, on the bridge, and in place.

Each gets ``api``: ``torch.distributed.fsdp``, ``fsdp_migrate.runtime`` under the same names, or these
names with a constructor that shards in place. It asserts what its docstring says, and returns plain
data that must be the same for all; in place the names of the wrappers are left out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Run = Callable[[Any], Any]


@dataclass(frozen=True)
class Behaviour:
    """One behaviour.

    Attributes:
        name: the function's name, or its row's, with its module's.
        sentence: what FSDP1 does.
        run: the function, which asserts it.
        ranks: how many ranks it takes.
        tolerance: how far numbers may be apart, relative to the largest of a tensor.
        cannot: why FSDP2 cannot have it; empty where it holds.
        refusal: what the error says with which the bridge refuses what cannot hold, as a rule is
            the code of a rule; empty where the results differ instead.
        in_place: why it does not hold for a model that is sharded in place, although it does on the
            bridge; empty where it does, or both cannot have it.
        since: the release of torch since which FSDP1 does so itself; empty for every one that is supported.
        torch: whether it holds in torch's form, too: `fully_shard` without what keeps FSDP1's quirks.
    """

    name: str
    sentence: str
    run: Run
    ranks: int = 2
    tolerance: float = 0.0
    cannot: str = ""
    refusal: str = ""
    in_place: str = ""
    since: str = ""
    torch: bool = False

    @property
    def area(self) -> str:
        return self.name.partition(".")[0].replace("_", " ").capitalize()


BEHAVIOURS: dict[str, Behaviour] = {}


def holds(**how: Any) -> Callable[[Run], Run]:
    """Registers what both forms must do as FSDP1 does it, bit for bit where there is no tolerance; fields of Behaviour."""
    return lambda run: _register(run, run.__name__, run.__doc__ or "", **how)


def cannot(reason: str, refusal: str = "", ranks: int = 2) -> Callable[[Run], Run]:
    """Registers what FSDP2 cannot have, and what the error says with which the bridge refuses it."""
    return holds(cannot=reason, refusal=refusal, ranks=ranks)


def each(rows: Mapping[str, tuple[Any, ...]], **how: Any) -> Callable[[Callable[..., Any]], Any]:
    """Registers a function once for each row, its name with its sentence and what follows ``api`` in the call."""

    def register(run: Callable[..., Any]) -> Callable[..., Any]:
        for name, (sentence, *given) in rows.items():
            _register(run, name, sentence, given, **how)
        return run

    return register


def _register(
    run: Callable[..., Any], name: str, sentence: str, given: Sequence[Any] = (), **how: Any
) -> Callable[..., Any]:
    name = f"{run.__module__.rpartition('.')[2]}.{name}"
    if name in BEHAVIOURS or not sentence:
        raise ValueError(f"{name} needs a name of its own and a sentence")
    BEHAVIOURS[name] = Behaviour(
        name, " ".join(sentence.split()), lambda api: run(api, *given), **how
    )
    return run
