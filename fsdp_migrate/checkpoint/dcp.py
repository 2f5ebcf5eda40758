"""The folders of torch.distributed.checkpoint: `.metadata`, and `*.distcp` files of what torch.save wrote.

Its own reader unpickles them, which executes whatever they ask for, and loads everything at once.
"""

import functools
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint._nested_dict import unflatten_state_dict

from fsdp_migrate.checkpoint.errors import Unreadable
from fsdp_migrate.checkpoint.files import read_saved
from fsdp_migrate.checkpoint.parts import Part, Parts, covers, in_parts
from fsdp_migrate.checkpoint.pickles import Note, is_a, read_pickle

METADATA = ".metadata"
SUFFIX = ".distcp"


def is_part(file: Path) -> bool:
    """Whether a file of that name is a part of a DCP checkpoint."""
    return not file.is_dir() and (file.name == METADATA or file.suffix == SUFFIX)


def is_dcp(folder: Path) -> bool:
    """Whether it holds at least a part of a DCP checkpoint."""
    return any(map(is_part, folder.iterdir()))


def read_dcp(folder: Path) -> tuple[Any, list[Path]]:
    """The tree that was saved, and the files that it lies in; raises Unreadable where they do not have all of it."""
    index = folder / METADATA
    if not index.is_file():
        raise Unreadable(
            f"has {SUFFIX} files but no {METADATA}: the save was cut off, or not copied whole"
        )
    try:
        metadata = read_pickle(index.read_bytes())
        if not is_a(metadata, "Metadata"):
            raise Unreadable("is no metadata of torch.distributed.checkpoint")
        items = _Items(folder, metadata["storage_data"])
        flat: dict[str, Any] = {}
        for name, entry in metadata["state_dict_metadata"].items():
            if is_a(entry, "TensorStorageMetadata"):
                flat[name] = items.tensor(name, entry)
            else:
                flat[name] = items.load(name)
        files = list(items.files.values())
        paths: Any = metadata.get("planner_data")
        if isinstance(paths, Mapping) and paths.keys() >= flat.keys():
            return unflatten_state_dict(flat, dict(paths)), files
        return flat, files
    except Unreadable as error:
        raise Unreadable(str(error), error.path or index) from None
    except (TypeError, ValueError, AttributeError, IndexError, KeyError, RuntimeError):
        raise Unreadable("is damaged, or of a form that is not known", index) from None


class _Items:
    """The items of a folder: where each lies, by name, and for a chunk of a tensor also by its offsets."""

    def __init__(self, folder: Path, places: Mapping[Note, Note]) -> None:
        self._places: dict[tuple[str, tuple[int, ...] | None], Note] = {}
        ends: dict[str, int] = {}
        for key, info in places.items():
            offset = key.get("offset")
            name = info["relative_path"]
            if offset is not None:
                offset = tuple(offset)
            self._places[key["fqn"], offset] = info
            if info.get("transform_descriptors"):
                raise Unreadable("says that the items are compressed or encrypted: not supported")
            if min(info["offset"], info["length"]) < 0:
                raise Unreadable(f"places an item before the start of {name}")
            ends[name] = max(ends.get(name, 0), info["offset"] + info["length"])
        self.files = {name: _file(folder, name, end) for name, end in sorted(ends.items())}

    def load(self, name: str, offsets: tuple[int, ...] | None = None) -> Any:
        """An item that is no tensor, or a chunk of one."""
        if (info := self._places.get((name, offsets))) is None:
            raise Unreadable(f"does not say where {name} lies")
        path = self.files[info["relative_path"]]
        try:
            with path.open("rb") as file:
                file.seek(info["offset"])
                return read_saved(io.BytesIO(file.read(info["length"])))
        except Unreadable as error:
            raise Unreadable(str(error), path) from None

    def tensor(self, name: str, entry: Note) -> Parts:
        """A tensor, whose chunks are looked for in the files when it is loaded."""
        shape = tuple(entry["size"])
        dtype = entry["properties"].state[0]
        boxes = [(tuple(chunk["offsets"]), tuple(chunk["sizes"])) for chunk in entry["chunks"]]
        if any((name, offsets) not in self._places for offsets, _ in boxes):
            raise Unreadable(f"does not say where {name} lies")
        if not isinstance(dtype, torch.dtype) or not covers(shape, boxes):
            raise Unreadable(f"does not have all of {name}: the shards of a rank are missing")

        def chunk(offsets: tuple[int, ...], sizes: tuple[int, ...]) -> torch.Tensor:
            found = self.load(name, offsets)
            if not isinstance(found, torch.Tensor) or (found.dtype, found.shape) != (dtype, sizes):
                raise Unreadable("a tensor's shape or dtype is not that of the index")
            return found

        filled = [box for box in boxes if math.prod(box[1])]
        return in_parts(shape, dtype, (Part(b, functools.partial(chunk, *b)) for b in filled))


def _file(folder: Path, name: str, end: int) -> Path:
    """A file of the folder, long enough for what the index places in it."""
    file = folder / name
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise Unreadable(f"places an item outside of the folder: {name}")
    if not file.is_file():
        raise Unreadable(f"needs the file {name}, which is missing")
    if (have := file.stat().st_size) < end:
        raise Unreadable(f"is cut off: {end - have} bytes are missing", file)
    return file
