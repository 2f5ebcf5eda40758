"""The last values of two runs against each other: parameters, put together from the ranks' parts, and buffers."""

from __future__ import annotations

import math
from typing import Any

from fsdp_migrate.verify.compare import Difference
from fsdp_migrate.verify.records import Run


def differences(original: Run, migrated: Run) -> tuple[dict[str, float], str]:
    """How far each parameter is apart, in the model's order; nothing, with the reason, if that is not known."""
    wholes: list[dict[str, Any]] = []
    for name, run in (("original", original), ("migrated", migrated)):
        values, problem = _last(run)
        if problem:
            return {}, f"last parameters of the {name} program: {problem}"
        wholes.append(values)
    one, other = wholes
    odd = sorted(one.keys() ^ other.keys())
    if odd:
        return {}, f"last parameters: only one program has {odd[0]} ({len(odd)} such names)"
    distances = {}
    for name, value in one.items():
        if value.shape != other[name].shape:
            return {}, f"last parameters: {name} has another shape"
        distances[name] = apart(value, other[name])
    return distances, ""


def kept_difference(
    original: Run, migrated: Run, tolerance: float, trained: float
) -> tuple[Difference | None, str]:
    """The first difference in the last parameters of models that no optimizer trains, and a note.

    A moving average has all its values from what is trained: it is no difference of its own where it is no farther
    apart than that.
    """
    (one, lacks), (other, lack) = (_last(run, "kept") for run in (original, migrated))
    if problem := lacks or lack:
        return None, f"last parameters of models without an optimizer: {problem}"
    for name, value in one.items():
        found = other.get(name)
        if found is not None and found.shape == value.shape:
            if (most := beyond(value, found, tolerance, trained)) is not None:
                text = f"{name} by up to {most:.3g}"
                return Difference(original.steps, 5, -1, "model without an optimizer", text), ""
    odd = sorted(one.keys() ^ other.keys())
    return None, f"only one program keeps {odd[0]} ({len(odd)} such names)" if odd else ""


def buffers_difference(original: Run, migrated: Run) -> tuple[float, str, str]:
    """The largest difference of two elements of the last buffers, the buffer's name and rank, and other dtypes.

    Buffers that only one program has are left out: FSDP2 needs none of FSDP1's, and may keep its own.
    """
    import torch

    most, place, dtypes = 0.0, "", ""
    for one, other in zip(original.ranks, migrated.ranks, strict=False):
        paths = [rank.parameters for rank in (one, other) if rank.parameters is not None]
        if len(paths) < 2:
            continue
        files = [torch.load(path, weights_only=True)["buffers"] for path in paths]
        for name, value in files[0].items():
            found = files[1].get(name)
            if found is None:
                continue
            if found.dtype != value.dtype and not dtypes:
                dtypes = f"{name} is {found.dtype}, {value.dtype} in the original"
            distance = apart(value, found) if value.shape == found.shape else math.inf
            if not math.isnan(most) and not distance <= most:
                most, place = distance, f"{name} on rank {one.rank}"
    return most, place, dtypes


def _last(run: Run, which: str = "parameters") -> tuple[dict[str, Any], str]:
    """Every parameter of a run by its name, and what is missing."""
    import torch

    parts = []
    for rank in run.ranks:
        if rank.parameters is None:
            told = [problem for problem in rank.problems if "parameters" in problem]
            return {}, told[0] if told else f"rank {rank.rank} wrote none"
        parts.append(torch.load(rank.parameters, weights_only=True)[which])
    return whole(parts)


def whole(ranks: list[list[dict[str, Any]]]) -> tuple[dict[str, Any], str]:
    """Every parameter by its name, put together from the ranks' parts, and what is missing."""
    import torch

    whole: dict[str, Any] = {}
    missing: dict[str, int] = {}
    for part in (part for parts in ranks for part in parts):
        name, value = part["name"], part["value"]
        if name not in whole:
            whole[name] = torch.empty(part["shape"], dtype=value.dtype)
            missing[name] = whole[name].numel()
        _place(whole[name], part["offsets"], part["flat"], value)
        missing[name] -= value.numel()
    broken = [name for name, count in missing.items() if count]
    return whole, f"the ranks' parts of {broken[0]} do not make a whole" if broken else ""


def _place(whole: Any, offsets: list[int], flat: bool, value: Any) -> None:
    target = whole.view(-1) if flat else whole
    lengths = value.shape
    for dimension, (start, length) in enumerate(zip(offsets, lengths, strict=True)):
        target = target.narrow(dimension, start, length)
    target.copy_(value)


def apart(one: Any, other: Any) -> float:
    """The largest difference of two elements of tensors of one shape; NaN is equal to NaN."""
    one, other = one.double(), other.double()
    same = (one == other) | (one.isnan() & other.isnan())
    differences = (one - other).abs().masked_fill(same, 0.0)
    return float(differences.max()) if differences.numel() else 0.0


def beyond(one: Any, other: Any, tolerance: float, trained: float = 0.0) -> float | None:
    """How far two tensors are apart, if that is more than `trained` and the tolerance, relative to the largest element."""
    most = apart(one, other)
    scale = float(one.double().abs().max()) if one.numel() else 0.0
    return None if most <= max(tolerance * scale, trained if tolerance else 0.0) else most
