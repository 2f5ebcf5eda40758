"""The last values of the parameters: each process writes what it holds, the reader adds up."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from .layouts import Part

LIMIT = 1 << 30
"""Bytes a process writes at most; a larger model is compared without its last parameters."""


def write(parts: Iterable[Part], path: str) -> str:
    """Write the parts to `path`; returns why not, or nothing."""
    parts = list(parts)
    values = [part.read() for part in parts]
    if sum(value.numel() * value.element_size() for value in values) > LIMIT:
        return f"the parameters of one rank are larger than {LIMIT >> 20} MiB"
    torch.save(
        [
            {
                "name": part.name,
                "shape": list(part.shape),
                "offsets": list(part.offsets),
                "flat": part.flat,
                "value": value.cpu().clone(),
            }
            for part, value in zip(parts, values, strict=True)
        ],
        path,
    )
    return ""
