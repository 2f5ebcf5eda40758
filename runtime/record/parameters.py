"""The values of parameters and buffers: each process writes what it holds, the reader adds up."""

from __future__ import annotations

from typing import Any

import torch

from .census import Census
from .layouts import Part

LIMIT = 1 << 30
"""Bytes a process writes at most; a larger model is compared without its values."""


def write(census: Census, path: str, kept: Census | None = None, **more: Any) -> str:
    """Write the present values, and `more`, to `path`; returns why that is not possible, or nothing."""
    if not census.complete:
        return "not every parameter's name or place is known"
    parts, buffers = list(census.first.values()), census.buffers()
    beside = list(kept.first.values()) if kept is not None else []
    values = [part.read() for part in [*parts, *beside]]
    size = sum(value.numel() * value.element_size() for value in [*values, *buffers.values()])
    if size > LIMIT:
        return f"the parameters of one rank are larger than {LIMIT >> 20} MiB"
    told = [_told(part, value) for part, value in zip([*parts, *beside], values, strict=True)]
    torch.save(
        {
            "parameters": told[: len(parts)],
            "kept": told[len(parts) :],
            "buffers": {name: _copy(buffer) for name, buffer in buffers.items()},
            **more,
        },
        path,
    )
    return ""


def _told(part: Part, value: torch.Tensor) -> dict[str, Any]:
    return {
        "name": part.name,
        "shape": list(part.shape),
        "offsets": list(part.offsets),
        "flat": part.flat,
        "value": _copy(value),
    }


def _copy(value: torch.Tensor) -> torch.Tensor:
    return value.detach().cpu().clone()
