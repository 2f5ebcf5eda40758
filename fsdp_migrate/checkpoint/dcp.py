"""The folders of torch.distributed.checkpoint: `.metadata`, and `*.distcp` files of tensors that torch.save wrote."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fsdp_migrate.checkpoint.admitted import BytesMetadata, Metadata, TensorMetadata
from fsdp_migrate.checkpoint.errors import Unreadable
from fsdp_migrate.checkpoint.pickles import read_bytes
from fsdp_migrate.checkpoint.records import Record
from fsdp_migrate.checkpoint.tensors import Deferred, Joined, Lazy, covers
from fsdp_migrate.checkpoint.torchfile import View, read_torch

METADATA = ".metadata"
SUFFIX = ".distcp"


def is_part(file: Path) -> bool:
    """Whether a file of that name is a part of a DCP checkpoint."""
    return not file.is_dir() and (file.name == METADATA or file.suffix == SUFFIX)


def is_dcp(folder: Path) -> bool:
    """Whether it holds a part at least of a DCP checkpoint."""
    return any(is_part(file) for file in folder.iterdir())


def read_dcp(folder: Path, trust: bool = False) -> tuple[Any, list[Path]]:
    """The tree that was saved, its tensors still on disk, and the files that it lies in.

    Raises:
        Unreadable: a file is missing or cut off, the metadata is damaged, or a pickle asks for more than it may.
    """
    index = folder / METADATA
    if not index.is_file():
        raise Unreadable(
            f"has {SUFFIX} files but no {METADATA}: the save was cut off, or not copied whole"
        )
    try:
        metadata = read_bytes(index.read_bytes(), trust)
        return _read(folder, metadata, trust)
    except Unreadable as error:
        raise Unreadable(str(error), error.path or index) from None
    except (TypeError, ValueError, AttributeError, IndexError, KeyError):
        raise Unreadable("is damaged, or of a form that is not known", index) from None


def _read(folder: Path, metadata: Any, trust: bool) -> tuple[Any, list[Path]]:
    if not isinstance(metadata, Metadata):
        raise Unreadable("is no metadata of torch.distributed.checkpoint")
    places: dict[tuple[str, tuple[int, ...] | None], Record] = {}
    for key, info in metadata["storage_data"].items():
        offset = key.get("offset")
        places[key["fqn"], None if offset is None else tuple(offset)] = info
    files = _files(folder, places)
    flat: dict[str, Any] = {}
    for name, entry in metadata["state_dict_metadata"].items():
        if isinstance(entry, TensorMetadata):
            flat[name] = _tensor(folder, name, entry, places, trust)
        elif isinstance(entry, BytesMetadata):
            flat[name] = _item(folder, _place(places, name, None), trust)
        else:
            raise Unreadable(f"has an entry {name} of an unknown kind")
    return _nested(flat, metadata.get("planner_data")), files


def _files(folder: Path, places: Mapping[Any, Record]) -> list[Path]:
    """The files, each long enough for what the index places in it."""
    ends: dict[str, int] = {}
    for info in places.values():
        name = info["relative_path"]
        if info.get("transform_descriptors"):
            raise Unreadable("says that the items are compressed or encrypted: not supported")
        if min(info["offset"], info["length"]) < 0:
            raise Unreadable(f"places an item before the start of {name}")
        ends[name] = max(ends.get(name, 0), info["offset"] + info["length"])
    files = []
    for name, end in sorted(ends.items()):
        file = folder / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise Unreadable(f"places an item outside of the folder: {name}")
        if not file.is_file():
            raise Unreadable(f"needs the file {name}, which is missing")
        if (have := os.stat(file).st_size) < end:
            raise Unreadable(f"is cut off: {end - have} bytes are missing", file)
        files.append(file)
    return files


def _place(places: Mapping[Any, Record], name: str, offsets: tuple[int, ...] | None) -> Record:
    if (found := places.get((name, offsets))) is None:
        raise Unreadable(f"does not say where {name} lies")
    return found


def _item(folder: Path, info: Record, trust: bool) -> Any:
    file = folder / info["relative_path"]
    try:
        with View(file, info["offset"], info["length"]) as view:
            return read_torch(view, trust)
    except Unreadable as error:
        raise Unreadable(str(error), error.path or file) from None


def _tensor(
    folder: Path, name: str, entry: Record, places: Mapping[Any, Record], trust: bool
) -> Lazy:
    properties, shape = entry["properties"], tuple(entry["size"])
    dtype = properties.attributes[0]
    parts = []
    for chunk in entry["chunks"]:
        offsets, sizes = tuple(chunk["offsets"]), tuple(chunk["sizes"])
        info = _place(places, name, offsets)
        parts.append((offsets, Deferred(dtype, sizes, partial(_item, folder, info, trust))))
    if not covers(shape, [(offsets, part.shape) for offsets, part in parts]):
        raise Unreadable(f"does not have all of {name}: the shards of a rank are missing")
    filled = tuple((offsets, part) for offsets, part in parts if part.numel)
    return Joined(dtype, shape, filled)


def _nested(flat: Mapping[str, Any], paths: Any) -> Any:
    """The tree that was flattened: its planner notes each entry's keys and indices."""
    if not isinstance(paths, Mapping) or not all(name in paths for name in flat):
        return dict(flat)
    tree: dict[Any, Any] = {}
    for name, value in flat.items():
        *way, last = paths[name]
        inner = tree
        for key in way:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return _with_lists(tree)


def _with_lists(tree: Any) -> Any:
    """Indices, noted as the keys of a mapping, make a list."""
    if not isinstance(tree, dict):
        return tree
    values = {key: _with_lists(value) for key, value in tree.items()}
    if values and all(isinstance(key, int) for key in values):
        return [values[key] for key in sorted(values)]
    return values
