"""Where two results differ."""

from typing import Any

import torch


class Tree(list[tuple[str, str, bool]]):
    """Each module of a model: its name, its class, and whether it is a unit."""


def without_wrappers(result: Any) -> Any:
    """A result as it would be if a unit were the module that FSDP1 wrapped."""
    if isinstance(result, Tree):
        folded: dict[str, tuple[str, str, bool]] = {}
        for name, cls, unit in result:
            clean = _clean(f"{name}.")[:-1]
            folded[clean] = clean, cls, unit or (clean in folded and folded[clean][2])
        return list(folded.values())
    if isinstance(result, dict):
        return {without_wrappers(key): without_wrappers(each) for key, each in result.items()}
    if type(result) in (list, tuple, set):
        return type(result)(map(without_wrappers, result))
    return _clean(result) if isinstance(result, str) else result


def _clean(name: str) -> str:
    return name.replace("_fsdp_wrapped_module.", "")


def differences(theirs: Any, ours: Any, tolerance: float, where: str = "result") -> list[str]:
    """What keeps ``ours`` from being ``theirs``, a line for each place; empty if nothing does."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        if list(theirs) != list(ours):
            return [f"{where}: keys {list(theirs)} != {list(ours)}"]
        pairs = [(f"{where}[{key!r}]", theirs[key], ours[key]) for key in theirs]
    elif isinstance(theirs, list | tuple) and isinstance(ours, list | tuple):
        if len(theirs) != len(ours):
            return [f"{where}: {theirs} != {ours}"]
        pairs = [(f"{where}[{i}]", *pair) for i, pair in enumerate(zip(theirs, ours, strict=True))]
    elif isinstance(theirs, torch.Tensor) and isinstance(ours, torch.Tensor):
        return _of_tensors(theirs, ours, tolerance, where)
    else:
        same = type(theirs) is type(ours) and (theirs == ours or _near(theirs, ours, tolerance))
        return [] if same else [f"{where}: {theirs!r} != {ours!r}"]
    return [line for name, a, b in pairs for line in differences(a, b, tolerance, name)]


def _of_tensors(
    theirs: torch.Tensor, ours: torch.Tensor, tolerance: float, where: str
) -> list[str]:
    for what in ("dtype", "shape", "requires_grad"):
        a, b = getattr(theirs, what), getattr(ours, what)
        if a != b:
            return [f"{where}: {what} {a} != {b}"]
    if type(theirs) is not type(ours):
        return [f"{where}: {type(theirs).__name__} != {type(ours).__name__}"]
    theirs, ours = theirs.detach(), ours.detach()
    if torch.equal(theirs, ours):
        return []
    apart = (theirs.double() - ours.double()).abs().max().item()
    largest = theirs.double().abs().max().item()
    if apart <= tolerance * largest:
        return []
    return [f"{where}: {apart:.1e} apart, the largest is {largest:.1e}"]


def _near(theirs: Any, ours: Any, tolerance: float) -> bool:
    return isinstance(theirs, float) and abs(theirs - ours) <= tolerance * abs(theirs)
