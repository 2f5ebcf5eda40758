"""Safetensors files: eight bytes of length, a header in JSON, the tensors' bytes."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import torch

from fsdp_migrate.checkpoint.errors import Unreadable
from fsdp_migrate.checkpoint.tensors import Lazy, Storage, Stored

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
    "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
}  # fmt: skip
_LONGEST_HEADER = 100_000_000
"""The format's own limit."""


def is_safetensors(head: bytes) -> bool:
    """Whether a file begins as one: a length, and the brace of the header."""
    return head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= _LONGEST_HEADER


def read_safetensors(path: Path) -> dict[str, Lazy]:
    """The tensors by name, still on disk.

    Raises:
        Unreadable: the header is damaged, or tensors lie outside of the file.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        text = file.read(length)
        size = os.fstat(file.fileno()).st_size - 8 - length
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        return {name: _tensor(path, 8 + length, size, entry) for name, entry in header.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise Unreadable("is damaged: its safetensors header cannot be read") from None


def _tensor(path: Path, base: int, size: int, entry: dict[str, list[int]]) -> Lazy:
    if entry["dtype"] not in _DTYPES:  # type: ignore[comparison-overlap]
        raise Unreadable(f"holds a tensor of type {entry['dtype']}: not supported")
    dtype = _DTYPES[entry["dtype"]]  # type: ignore[index]
    shape = tuple(entry["shape"])
    start, end = entry["data_offsets"]
    if not 0 <= start <= end <= size or end - start != math.prod(shape) * dtype.itemsize:
        raise Unreadable("is damaged or cut off: tensors lie outside of the file")
    stride = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    return Stored(Storage(path, end - start, base + start), dtype, shape, stride, 0)
