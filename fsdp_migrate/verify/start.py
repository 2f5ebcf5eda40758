"""The first values of two runs against each other, and a file of them for the other program."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fsdp_migrate.verify.compare import Difference
from fsdp_migrate.verify.parameters import beyond, whole
from fsdp_migrate.verify.records import Run


@dataclass(frozen=True)
class Start:
    """What a program's models held when they were first called.

    Attributes:
        parameters: by name, put together from the ranks' parts.
        buffers, random: for each rank, by name; the state of its random numbers.
        torn: the parameters of which two ranks should hold the same and do not, with the ranks.
        problem: why nothing is known; empty otherwise.
    """

    parameters: dict[str, Any] = field(default_factory=dict)
    buffers: list[dict[str, Any]] = field(default_factory=list)
    random: list[Any] = field(default_factory=list)
    torn: dict[str, tuple[int, int]] = field(default_factory=dict)
    problem: str = ""

    def save(self, path: Path) -> Path | None:
        """Write what another program can take over; None if there is nothing."""
        if self.problem:
            return None
        import torch

        values = {name: getattr(self, name) for name in ("parameters", "buffers", "random")}
        torch.save(values, path)
        return path


def read(run: Run) -> Start:
    """The first values of a run."""
    import torch

    files = []
    for rank in run.ranks:
        if rank.start is None:
            return Start(problem=rank.start_problem or f"rank {rank.rank} wrote none")
        files.append(torch.load(rank.start, weights_only=True))
    parameters, problem = whole([file["parameters"] for file in files])
    if problem:
        return Start(problem=problem)
    torn: dict[str, tuple[int, int]] = {}
    seen: dict[tuple[str, tuple[int, ...]], tuple[int, str]] = {}
    for rank, file in zip(run.ranks, files, strict=True):
        for name, place, sums in file["sums"]:
            # As text, in which NaN is equal to itself.
            first, others = seen.setdefault((name, tuple(place)), (rank.rank, repr(sums)))
            if others != repr(sums):
                torn.setdefault(name, (first, rank.rank))
    buffers = [file["buffers"] for file in files]
    return Start(parameters, buffers, [file["random"] for file in files], torn)


def differences(
    original: Start, migrated: Start, aligned: set[str], tolerance: float
) -> Iterator[Difference]:
    """Where the migrated program starts from other values, without those that were taken over.

    Those are reported where they are drawn from another distribution, or where its ranks alone disagree: chance
    explains neither.
    """
    if original.problem or migrated.problem:
        return
    ranks = max(len(original.buffers), 1)
    # Every rank may have drawn the same numbers for its shard: few are independent.
    odd = [
        (name, text)
        for name, value in original.parameters.items()
        if (text := _odd(value, migrated.parameters.get(name), name in aligned, tolerance, ranks))
    ]
    if odd:
        yield Difference(0, -1, -1, "first parameters", _first(odd))
    torn = [
        (name, f"rank {first} and rank {other} do not hold the same")
        for name, (first, other) in migrated.torn.items()
        if name not in original.torn
    ]
    if torn:
        yield Difference(0, -1, -1, "first parameters of the ranks", _first(torn))
    for rank, (one, other) in enumerate(zip(original.buffers, migrated.buffers, strict=False)):
        odd = [
            (name, text)
            for name, value in one.items()
            if (text := _odd(*_alike(value, other.get(name)), name in aligned, tolerance, 1))
        ]
        if odd:
            yield Difference(0, -1, rank, "first buffers", _first(odd))


def notes(original: Start, migrated: Start, aligned: list[str]) -> list[str]:
    """Notes about the first values, for the reader."""
    found = [
        f"first values of the {name} program are not known: {start.problem}"
        for name, start in (("original", original), ("migrated", migrated))
        if start.problem
    ]
    if aligned:
        count = f"{len(aligned)} first value" + ("s" if len(aligned) > 1 else "")
        found.append(f"the migrated program took over {count}: {aligned[0]}, …")
    return found


def _first(odd: list[tuple[str, str]]) -> str:
    name, text = odd[0]
    others = f" (and {len(odd) - 1} more)" if len(odd) > 1 else ""
    return f"{name}: {text}{others}"


def _alike(one: Any, other: Any) -> tuple[Any, Any]:
    """Two buffers in the narrower dtype: FSDP1 casts buffers in the first call, other programs before it."""
    if other is None or not (one.is_floating_point() and other.is_floating_point()):
        return one, other
    narrow = min(one.dtype, other.dtype, key=lambda dtype: int(dtype.itemsize))
    return one.to(narrow), other.to(narrow)


def _odd(one: Any, other: Any, aligned: bool, tolerance: float, copies: int) -> str:
    if other is None:
        return ""  # another name: the comparison of the last values says it
    if one.shape != other.shape:
        return f"shape {list(one.shape)} against {list(other.shape)}"
    if aligned:
        return _other_distribution(one, other, one.numel() // copies)
    most = beyond(one, other, tolerance)
    return "" if most is None else f"by up to {most:.3g}"


def _other_distribution(one: Any, other: Any, independent: int) -> str:
    """How two draws, of so many independent elements, differ in mean or spread beyond chance."""
    if one.numel() < 2 or not one.is_floating_point():
        return ""
    one, other = one.double(), other.double()
    spreads, means = (
        (float(one.std()), float(other.std())),
        (float(one.mean()), float(other.mean())),
    )
    if spreads[1] == 0 < spreads[0]:
        return f"every element is {means[1]:.3g}, the original's are drawn at random"
    chance = 6 / math.sqrt(max(independent, 1))
    if chance < 1 and not abs(spreads[0] - spreads[1]) <= chance * max(spreads):
        return f"a standard deviation of {spreads[1]:.3g}, the original's is {spreads[0]:.3g}"
    if not abs(means[0] - means[1]) <= chance * max(spreads):
        return f"a mean of {means[1]:.3g}, the original's is {means[0]:.3g}"
    return ""
