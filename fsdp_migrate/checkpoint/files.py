"""Files of tensors: the archives of `torch.save`, which are mapped, not loaded, and safetensors."""

import struct
import warnings
import zipfile
from pathlib import Path
from typing import IO, Any

import torch
from torch import serialization

from fsdp_migrate.checkpoint.errors import Unreadable
from fsdp_migrate.checkpoint.pickles import Member, Note, allowed, first_line, not_executed
from fsdp_migrate.checkpoint.shards import STAND_INS
from fsdp_migrate.checkpoint.trees import leaves


def read_file(path: Path) -> tuple[str, Any]:
    """The format of a file, and what was saved in it; raises Unreadable where it is damaged, or of another format."""
    if path.suffix == ".safetensors":
        return "safetensors", _read_safetensors(path)
    with path.open("rb") as file:
        if file.read(4) != b"PK\x03\x04":
            raise Unreadable(
                "is no checkpoint: neither of torch.save since torch 1.6, nor safetensors"
            )
    try:
        kinds = {entry.compress_type for entry in zipfile.ZipFile(path).infolist()}
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error):
        raise Unreadable("is damaged or cut off: a zip archive without its end") from None
    if kinds != {zipfile.ZIP_STORED}:  # what is small on the disk may be large in memory
        raise Unreadable("is no checkpoint: torch.save compresses nothing, TorchScript does")
    return "torch zip", read_saved(path)


def read_saved(file: Path | IO[bytes]) -> Any:
    """What torch.save wrote, by torch.load, with stand-ins for sharded tensors; of a path the tensors are mapped."""
    before = serialization.get_safe_globals()
    serialization.clear_safe_globals()  # a DTensor's own class among them
    try:
        names = serialization.get_unsafe_globals_in_checkpoint(file)
        stand_ins = [(STAND_INS.get(name) or allowed(name), name) for name in names]
        serialization.add_safe_globals([Member, *stand_ins])
        if not isinstance(file, Path):
            file.seek(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = torch.load(
                file, map_location="cpu", mmap=isinstance(file, Path), weights_only=True
            )
        for leaf in (leaf for _, leaf in leaves(tree)):
            if isinstance(leaf, type):
                kind = leaf
            else:
                kind = type(leaf)
            if issubclass(kind, Note):
                raise not_executed(f"torch.distributed's {kind.__name__}")
        return tree
    except Unreadable:
        raise
    except Exception as error:
        raise Unreadable(f"is damaged, or not of torch.save ({first_line(error)})") from None
    finally:
        serialization.clear_safe_globals()
        serialization.add_safe_globals(before)


def _read_safetensors(path: Path) -> Any:
    """By the package, which a program has that wrote such a file."""
    try:
        from safetensors import SafetensorError  # type: ignore[import-not-found,unused-ignore]
        from safetensors.torch import load_file  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise Unreadable("is of safetensors: install safetensors to read it") from None
    try:
        return load_file(path)
    except SafetensorError as error:
        raise Unreadable(f"is damaged ({first_line(error)})") from None
