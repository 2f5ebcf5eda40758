"""The values of two runs' models against each other: when these were first called, and after the last step.

Each rank has written its parts (`fsdp_migrate/verify/recorder/values.py`); here they are put together.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fsdp_migrate.verify.compare import Difference, floor
from fsdp_migrate.verify.records import Run


@dataclass(frozen=True)
class Values:
    """What a program's models hold at one time.

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

        names = ("parameters", "buffers", "random")
        torch.save({name: getattr(self, name) for name in names}, path)
        return path


def first(run: Run) -> Values:
    """The values of a run when its model was first called."""
    return _read([(rank.start, rank.start_problem) for rank in run.ranks])


def last(run: Run) -> Values:
    """The values of a run after the last step."""
    return _read([(rank.parameters, rank.end_problem) for rank in run.ranks])


def _read(ranks: list[tuple[Path | None, str]]) -> Values:
    import torch

    files = []
    for rank, (path, problem) in enumerate(ranks):
        if path is None:
            return Values(problem=problem or f"rank {rank} wrote none")
        files.append(torch.load(path, weights_only=True))
    parameters, broken = whole(part for file in files for part in file["parameters"])
    if broken:
        return Values(problem=broken)
    torn: dict[str, tuple[int, int]] = {}
    seen: dict[tuple[str, tuple[int, ...]], tuple[int, str]] = {}
    for rank, file in enumerate(files):
        for name, place, sums in file.get("sums", ()):
            # As text, in which NaN is equal to itself.
            before, others = seen.setdefault((name, tuple(place)), (rank, repr(sums)))
            if others != repr(sums):
                torn.setdefault(name, (before, rank))
    buffers = [file["buffers"] for file in files]
    random = [file.get("random") for file in files]
    return Values(parameters, buffers, random, torn)


def whole(parts: Iterable[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """Every parameter by its name, put together from the ranks' parts, and what is missing."""
    import torch

    found: dict[str, Any] = {}
    missing: dict[str, int] = {}
    for part in parts:
        name = part["name"]
        value = part["value"]
        if name not in found:
            found[name] = torch.empty(part["shape"], dtype=value.dtype)
            missing[name] = found[name].numel()
        if part["flat"]:
            target = found[name].view(-1)
        else:
            target = found[name]
        for dimension, start in enumerate(part["offsets"]):
            target = target.narrow(dimension, start, value.shape[dimension])
        target.copy_(value)
        missing[name] -= value.numel()
    broken = [name for name, count in missing.items() if count]
    if broken:
        return found, f"the ranks' parts of {broken[0]} do not make a whole"
    return found, ""


def first_differences(
    original: Values, migrated: Values, aligned: set[str], tolerance: float
) -> Iterator[Difference]:
    """Where the migrated program starts from other values; those that were `aligned`, taken over, are not compared."""
    if original.problem or migrated.problem:
        return

    def differing(ones: dict[str, Any], others: dict[str, Any]) -> Iterator[tuple[str, str]]:
        for name, one in ones.items():
            if name in others and name not in aligned:
                if text := _odd(one, others[name], tolerance):
                    yield name, text

    torn = [
        (name, f"rank {one} and rank {other} do not hold the same")
        for name, (one, other) in migrated.torn.items()
        if name not in original.torn
    ]
    odd = differing(original.parameters, migrated.parameters)
    yield from _at_start("first parameters", -1, odd)
    yield from _at_start("first parameters of the ranks", -1, torn)
    for rank, (one, other) in enumerate(zip(original.buffers, migrated.buffers, strict=False)):
        yield from _at_start("first buffers", rank, differing(one, other))


def _at_start(what: str, rank: int, odd: Iterable[tuple[str, str]]) -> Iterator[Difference]:
    found = [f"{name}: {text}" for name, text in odd]
    if found:
        others = ""
        if len(found) > 1:
            others = f" (and {len(found) - 1} more)"
        yield Difference(0, -1, rank, what, found[0] + others)


def _odd(one: Any, other: Any, tolerance: float) -> str:
    if one.shape != other.shape:
        return f"shape {list(one.shape)} against {list(other.shape)}"
    most = beyond(*_narrowed(one, other), tolerance)
    if most is None:
        return ""
    return f"by up to {most:.3g}"


def _narrowed(one: Any, other: Any) -> tuple[Any, Any]:
    """Both in the narrower dtype: FSDP1 casts buffers in the first call, other programs before it."""
    if not (one.is_floating_point() and other.is_floating_point()):
        return one, other
    narrow = min(one.dtype, other.dtype, key=lambda dtype: int(dtype.itemsize))
    return one.to(narrow), other.to(narrow)


def last_differences(original: Values, migrated: Values) -> tuple[dict[str, float], str]:
    """How far each parameter is apart, in the model's order; nothing, with the reason, if that is not known."""
    for name, values in (("original", original), ("migrated", migrated)):
        if values.problem:
            return {}, f"last parameters of the {name} program: {values.problem}"
    one = original.parameters
    other = migrated.parameters
    if odd := sorted(one.keys() ^ other.keys()):
        return {}, f"last parameters: only one program has {odd[0]} ({len(odd)} such names)"
    for name, value in one.items():
        if value.shape != other[name].shape:
            return {}, f"last parameters: {name} has another shape"
    return {name: apart(value, other[name]) for name, value in one.items()}, ""


def buffers_difference(original: Values, migrated: Values) -> tuple[float, str, str]:
    """The largest difference of two elements of the last buffers, the buffer's name and rank, and other dtypes.

    Buffers that only one program has are left out: FSDP2 needs none of FSDP1's, and may keep its own.
    """
    most = 0.0
    place = ""
    dtypes = ""
    for rank, (one, other) in enumerate(zip(original.buffers, migrated.buffers, strict=False)):
        for name in (name for name in one if name in other):
            value = one[name]
            found = other[name]
            if found.dtype != value.dtype and not dtypes:
                dtypes = f"{name} is {found.dtype}, {value.dtype} in the original"
            if value.shape == found.shape:
                distance = apart(value, found)
            else:
                distance = math.inf
            if not math.isnan(most) and not distance <= most:
                most = distance
                place = f"{name} on rank {rank}"
    return most, place, dtypes


def odd_buffers(original: Values, migrated: Values, tolerance: float) -> dict[str, float]:
    """How far those last buffers are apart that differ by more than the tolerance, by name and rank."""
    found: dict[str, float] = {}
    for rank, (ones, others) in enumerate(zip(original.buffers, migrated.buffers, strict=False)):
        for name in (name for name in ones if name in others):
            one = ones[name]
            other = others[name]
            if one.shape != other.shape:
                found[f"{name} on rank {rank}"] = math.inf
                continue
            if tolerance:
                one, other = _narrowed(one, other)
            if tolerance:
                limit = max(tolerance, floor(str(one.dtype)))
            else:
                limit = 0.0
            if (most := beyond(one, other, limit)) is not None:
                found[f"{name} on rank {rank}"] = most
    return found


def apart(one: Any, other: Any) -> float:
    """The largest difference of two elements of tensors of one shape; NaN is equal to NaN."""
    one = one.double()
    other = other.double()
    same = (one == other) | (one.isnan() & other.isnan())
    differences = (one - other).abs().masked_fill(same, 0.0)
    if differences.numel():
        return float(differences.max())
    return 0.0


def beyond(one: Any, other: Any, tolerance: float, trained: float = 0.0) -> float | None:
    """How far two tensors are apart, if that is more than `trained` and the tolerance, relative to the largest element."""
    most = apart(one, other)
    scale = 0.0
    if one.numel():
        scale = float(one.double().abs().max())
    limit = 0.0
    if tolerance:
        limit = max(tolerance * scale, trained)
    if most <= limit:
        return None
    return most
