"""Reading back what was written, with torch's own readers, and comparing it with what was read."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata

from fsdp_migrate.checkpoint.errors import Refused
from fsdp_migrate.checkpoint.fingerprints import Fingerprints
from fsdp_migrate.checkpoint.tensors import Lazy
from fsdp_migrate.checkpoint.torchfile import View, read_torch
from fsdp_migrate.checkpoint.trees import leaves, shown
from fsdp_migrate.checkpoint.write import flatten


class NotTheSame(Refused):
    """What was read back is not what was written."""

    def __init__(self, place: str, what: str) -> None:
        super().__init__(
            f"what was written was read back, and {place} {what}: it is removed again. "
            "The disk may be damaged, or the source was changed meanwhile"
        )


def check_full(tree: Any, file: Path, prints: Fingerprints, trust: bool) -> None:
    """Names, shapes and dtypes as `torch.load` sees them, then the bytes of one tensor after the other.

    Raises:
        NotTheSame: with the first difference.
    """
    wanted = dict(leaves(tree))
    with _reading(file):
        seen = dict(leaves(torch.load(file, map_location="meta", weights_only=not trust)))
        with View(file) as view:
            found = dict(leaves(read_torch(view, trust)))
    if not wanted.keys() == seen.keys() == found.keys():
        place = next(iter(wanted.keys() ^ seen.keys() or wanted.keys() ^ found.keys()))
        raise NotTheSame(shown(place), "is there once only")
    for place, value in wanted.items():
        name, meta, read = shown(place), seen[place], found[place]
        if not isinstance(value, Lazy):
            _same_value(name, value, meta)
            continue
        if not isinstance(meta, torch.Tensor) or not isinstance(read, Lazy):
            raise NotTheSame(name, "is no tensor")
        _same_form(name, value, meta)
        if not prints.same(value, read.load()):
            raise NotTheSame(name, "has other values")


def check_dcp(tree: Any, folder: Path, prints: Fingerprints, trust: bool) -> None:
    """The same of a DCP folder: the index as DCP's reader sees it, and each item as `torch.load` reads it.

    Raises:
        NotTheSame: with the first difference.
    """
    flat = flatten(tree)
    with _reading(folder):
        index = FileSystemReader(folder).read_metadata()
        places = index.storage_data
    if index.planner_data != flat.paths or index.state_dict_metadata.keys() != flat.entries.keys():
        names = index.state_dict_metadata.keys() ^ flat.entries.keys()
        raise NotTheSame(min(names, default="the index"), "is there once only")
    for name, value in flat.entries.items():
        entry = index.state_dict_metadata[name]
        zeros = [0] * len(value.shape) if isinstance(value, Lazy) else None
        with _reading(folder):
            info = places[MetadataIndex(name, zeros)]
            with View(folder / info.relative_path, info.offset, info.length) as view:
                found = torch.load(cast(IO[bytes], view), weights_only=not trust)
        if not isinstance(value, Lazy):
            _same_value(name, value, found)
            continue
        if not isinstance(entry, TensorStorageMetadata) or not isinstance(found, torch.Tensor):
            raise NotTheSame(name, "is no tensor")
        _same_form(name, value, found)
        _same_form(
            name, value, torch.empty(entry.size, dtype=entry.properties.dtype, device="meta")
        )
        if not prints.same(value, found):
            raise NotTheSame(name, "has other values")
        del found  # before the next one is loaded


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Whatever torch's readers say of a damaged file becomes a difference."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise NotTheSame(path.name, f"cannot be read ({type(error).__name__}: {reason})") from None


def _same_form(name: str, wanted: Lazy, found: torch.Tensor) -> None:
    if tuple(found.shape) != wanted.shape or found.dtype != wanted.dtype:
        raise NotTheSame(name, f"is {found.dtype} {tuple(found.shape)}")


def _same_value(name: str, wanted: Any, found: Any) -> None:
    # The second is for NaN, which equals nothing.
    if wanted != found and repr(wanted) != repr(found):
        raise NotTheSame(name, "has another value")
