"""The last parameters of two runs, put together from the ranks' parts, against each other."""

from __future__ import annotations

import math
from typing import Any

from fsdp_migrate.verify.records import Run


def max_difference(original: Run, migrated: Run) -> tuple[float | None, str]:
    """The largest difference of two elements; None, with the reason, where it cannot be told."""
    wholes: list[dict[str, Any]] = []
    for name, run in (("original", original), ("migrated", migrated)):
        whole, problem = _whole(run)
        if problem:
            return None, f"last parameters of the {name} program: {problem}"
        wholes.append(whole)
    one, other = wholes
    odd = sorted(one.keys() ^ other.keys())
    if odd:
        return None, f"last parameters: only one program has {odd[0]} ({len(odd)} such names)"
    largest = 0.0
    for name, value in one.items():
        if value.shape != other[name].shape:
            return None, f"last parameters: {name} has another shape"
        apart = _apart(value, other[name])
        if math.isnan(apart) or apart > largest:
            largest = apart
        if math.isnan(largest):
            break
    return largest, ""


def _whole(run: Run) -> tuple[dict[str, Any], str]:
    """Every parameter of a run by its name, or what is missing."""
    import torch

    whole: dict[str, Any] = {}
    missing: dict[str, int] = {}
    for rank in run.ranks:
        if rank.parameters is None:
            told = [problem for problem in rank.problems if "parameters" in problem]
            return {}, told[0] if told else f"rank {rank.rank} wrote none"
        for part in torch.load(rank.parameters, weights_only=True):
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


def _apart(one: Any, other: Any) -> float:
    one, other = one.double(), other.double()
    same = (one == other) | (one.isnan() & other.isnan())
    differences = (one - other).abs().masked_fill(same, 0.0)
    return float(differences.max()) if differences.numel() else 0.0
