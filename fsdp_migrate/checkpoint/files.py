"""Files of tensors: the archives of `torch.save`, and safetensors. They are mapped, not loaded."""

from __future__ import annotations

import json
import math
import struct
import warnings
import zipfile
from pathlib import Path
from typing import IO, Any

import torch
from torch.serialization import (
    add_safe_globals,
    clear_safe_globals,
    get_safe_globals,
    get_unsafe_globals_in_checkpoint,
)

from fsdp_migrate.checkpoint.errors import Unreadable
from fsdp_migrate.checkpoint.pickles import Member, Note, allowed, first_line, not_executed
from fsdp_migrate.checkpoint.shards import STAND_INS
from fsdp_migrate.checkpoint.trees import leaves

_LEGACY = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"
"""The number that begins a file of `torch.save` before torch 1.6, which had no FSDP."""

_LONGEST_HEADER = 100_000_000
"""Of safetensors, by the format's own limit."""


def format_of(head: bytes) -> str | None:
    """The format that the first bytes tell, None if none."""
    if head.startswith(b"PK\x03\x04"):
        return "torch zip"
    length = int.from_bytes(head[:8], "little")
    return "safetensors" if head[8:9] == b"{" and 2 <= length <= _LONGEST_HEADER else None


def read_file(path: Path, trust: bool = False) -> tuple[str, Any]:
    """The format of a file, and what was saved in it; raises Unreadable where it is damaged, or of another format."""
    with path.open("rb") as file:
        head = file.read(16)
    if not head:
        raise Unreadable("is empty")
    if _LEGACY in head:
        raise Unreadable("has the format of torch before 1.6: load it, and save it again")
    if (found := format_of(head)) is None:
        raise Unreadable("is no checkpoint: torch.save did not write it, and it is not safetensors")
    if found == "safetensors":
        return found, _read_safetensors(path)
    _check_archive(path)
    return found, read_saved(path, trust)


def _check_archive(path: Path) -> None:
    """Raises Unreadable where torch.save did not write the archive."""
    try:
        entries = zipfile.ZipFile(path).infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error):
        raise Unreadable("is damaged or cut off: a zip archive without its end") from None
    names = [entry.filename for entry in entries]
    if [name.count("/") for name in names if name.endswith("/data.pkl")] != [1]:
        raise Unreadable("is a zip archive that torch.save did not write")
    if any(name.split("/")[1:2] == ["code"] for name in names):
        raise Unreadable("is a TorchScript program, not a state dict")
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise Unreadable("is damaged: its records are not as torch.save writes them")


def read_saved(file: Path | IO[bytes], trust: bool = False) -> Any:
    """What torch.save wrote, by torch.load, with stand-ins for sharded tensors; of a path the tensors are mapped."""
    before = get_safe_globals()
    clear_safe_globals()  # a DTensor's own class among them
    try:
        names = get_unsafe_globals_in_checkpoint(file)
        stand_ins = [(STAND_INS.get(name) or allowed(name, trust), name) for name in names]
        add_safe_globals([Member, *stand_ins])
        if not isinstance(file, Path):
            file.seek(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = torch.load(
                file, map_location="cpu", mmap=isinstance(file, Path), weights_only=True
            )
        for leaf in (leaf for _, leaf in leaves(tree)):
            kind = leaf if isinstance(leaf, type) else type(leaf)
            if issubclass(kind, Note):
                raise not_executed(f"torch.distributed's {kind.__name__}")
        return tree
    except Unreadable:
        raise
    except Exception as error:
        raise Unreadable(f"is damaged ({first_line(error)})") from None
    finally:
        clear_safe_globals()
        add_safe_globals(before)


_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
    "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
}  # fmt: skip


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """Eight bytes of length, a header in JSON, the tensors' bytes."""
    size = path.stat().st_size
    whole = torch.UntypedStorage.from_file(str(path), False, size)
    start = 8 + int.from_bytes(bytes(whole[:8]), "little")
    try:
        header = json.loads(bytes(whole[8:start]))
        header.pop("__metadata__", None)
        return {name: _safetensor(whole[start:], entry) for name, entry in header.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise Unreadable("is damaged: its safetensors header cannot be read") from None


def _safetensor(data: torch.UntypedStorage, entry: dict[str, Any]) -> torch.Tensor:
    if entry["dtype"] not in _DTYPES:
        raise Unreadable(f"holds a tensor of type {entry['dtype']}: not supported")
    dtype, shape = _DTYPES[entry["dtype"]], tuple(entry["shape"])
    start, end = entry["data_offsets"]
    fits = 0 <= start <= end <= len(data) and min(shape, default=0) >= 0
    if not fits or end - start != math.prod(shape) * dtype.itemsize:
        raise Unreadable("is damaged or cut off: tensors lie outside of the file")
    return torch.empty(0, dtype=dtype).set_(data[start:end]).view(shape)
