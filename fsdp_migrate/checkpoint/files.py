"""Files of tensors: the zip archives of `torch.save`, and safetensors.

A file is mapped into memory, and tensors are views of the map, whose bytes are read when they are used.
"""

from __future__ import annotations

import functools
import io
import json
import math
import mmap
import os
import struct
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch

from fsdp_migrate.checkpoint.errors import Unreadable
from fsdp_migrate.checkpoint.pickles import checked, read_pickle, view

_LEGACY = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"
"""The number that begins a file of `torch.save` before torch 1.6, which had no FSDP."""

_LOCAL_HEADER = struct.Struct("<26xHH")
_LONGEST_HEADER = 100_000_000
"""Of safetensors, by the format's own limit."""


def mapped(path: Path) -> memoryview:
    """The bytes of a file; an empty one cannot be mapped."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")


def format_of(head: bytes) -> str | None:
    """The format that the first bytes tell, None if none."""
    if head.startswith(b"PK\x03\x04"):
        return "torch zip"
    length = int.from_bytes(head[:8], "little")
    return "safetensors" if head[8:9] == b"{" and 2 <= length <= _LONGEST_HEADER else None


def read_file(data: memoryview, trust: bool = False) -> tuple[str, Any]:
    """The format of a file, and what was saved in it; raises Unreadable where it is damaged, or of another format."""
    head = bytes(data[:16])
    if _LEGACY in head:
        raise Unreadable("has the format of torch before 1.6: load it, and save it again")
    if (found := format_of(head)) is None:
        raise Unreadable("is no checkpoint: torch.save did not write it, and it is not safetensors")
    if found == "safetensors":
        return found, _read_safetensors(data)
    return found, checked(_read_zip(data, trust))


class _Window(io.RawIOBase):
    """Bytes of a map as a file."""

    def __init__(self, data: memoryview) -> None:
        super().__init__()
        self._data, self._at = data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = (0, self._at, len(self._data))[whence] + offset
        if self._at < 0:
            raise OSError("a position before the file's start")
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        piece = self._data[self._at : self._at + len(buffer)]
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


def _storage(data: memoryview) -> torch.UntypedStorage:
    if not data:
        return torch.empty(0).untyped_storage()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the map must not be written to
        return torch.frombuffer(data, dtype=torch.uint8).untyped_storage()


def _read_zip(data: memoryview, trust: bool) -> Any:
    """The archive that torch.save writes: a pickle, and each storage as a record of its own."""
    try:
        entries = {info.filename: info for info in zipfile.ZipFile(_Window(data)).infolist()}
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error):
        raise Unreadable("is damaged or cut off: a zip archive without its end") from None
    pickled = [n for n in entries if n.endswith("/data.pkl") and n.count("/") == 1]
    if len(pickled) != 1:
        raise Unreadable("is a zip archive that torch.save did not write")
    folder = pickled[0].removesuffix("data.pkl")
    if any(name.startswith(f"{folder}code/") for name in entries):
        raise Unreadable("is a TorchScript program, not a state dict")

    record = functools.partial(_record, data, entries)
    order = f"{folder}byteorder"
    if order in entries and bytes(record(order)) != sys.byteorder.encode():
        raise Unreadable("was written on a machine of the other byte order")
    storages: dict[str, torch.UntypedStorage] = {}

    def find(key: str, nbytes: int) -> torch.UntypedStorage:
        if key not in storages:
            storages[key] = _storage(record(f"{folder}data/{key}", nbytes))
        return storages[key]

    return read_pickle(bytes(record(pickled[0])), find, trust)


def _record(
    data: memoryview, entries: dict[str, zipfile.ZipInfo], name: str, least: int = 0
) -> memoryview:
    """Its bytes, where they lie in the file: nothing is decompressed or extracted."""
    info = entries.get(name)
    if info is None:
        raise Unreadable(f"is damaged: its record {name} is missing")
    header = data[info.header_offset :][: _LOCAL_HEADER.size]
    if len(header) < _LOCAL_HEADER.size:
        raise Unreadable("is damaged: an entry lies outside of the file")
    start = info.header_offset + len(header) + sum(_LOCAL_HEADER.unpack(header))
    content = data[start : start + info.file_size]
    is_whole = len(content) == info.file_size >= least
    if info.compress_type != zipfile.ZIP_STORED or not is_whole:
        raise Unreadable(f"is damaged: its record {name} is not as torch.save writes it")
    return content


_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
    "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
}  # fmt: skip


def _read_safetensors(data: memoryview) -> dict[str, torch.Tensor]:
    """Eight bytes of length, a header in JSON, the tensors' bytes."""
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(bytes(data[8 : 8 + length]))
        header.pop("__metadata__", None)
        return {name: _safetensor(data[8 + length :], entry) for name, entry in header.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise Unreadable("is damaged: its safetensors header cannot be read") from None


def _safetensor(data: memoryview, entry: dict[str, Any]) -> torch.Tensor:
    if entry["dtype"] not in _DTYPES:
        raise Unreadable(f"holds a tensor of type {entry['dtype']}: not supported")
    dtype, shape = _DTYPES[entry["dtype"]], tuple(entry["shape"])
    start, end = entry["data_offsets"]
    if not 0 <= start <= end <= len(data) or end - start != math.prod(shape) * dtype.itemsize:
        raise Unreadable("is damaged or cut off: tensors lie outside of the file")
    stride = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    return view(_storage(data[start:end]), dtype, 0, shape, stride)
