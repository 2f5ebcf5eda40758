"""Writing a tree as `torch.save` and as torch.distributed.checkpoint do, with one tensor in memory at a time."""

from __future__ import annotations

import io
import pickle
import sys
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import _utils
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.serialization import _open_zipfile_writer

from fsdp_migrate.checkpoint.admitted import STORAGE_NAMES
from fsdp_migrate.checkpoint.dcp import METADATA
from fsdp_migrate.checkpoint.errors import Refused
from fsdp_migrate.checkpoint.fingerprints import Fingerprints
from fsdp_migrate.checkpoint.tensors import Lazy


@dataclass(frozen=True, eq=False)
class _Slot:
    """The storage that a tensor gets in the new file."""

    key: str
    tensor: Lazy

    def id(self) -> tuple[str, Any, str, str, int]:
        """How torch.save refers to it."""
        name = STORAGE_NAMES.get(self.tensor.dtype)
        if name is None:
            return ("storage", torch.UntypedStorage, self.key, "cpu", self.tensor.nbytes)
        return ("storage", getattr(torch, name), self.key, "cpu", self.tensor.numel)


class _Pickler(pickle.Pickler):
    """Pickles tensors that are on disk as torch.save pickles those in memory."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=2)
        self.slots: list[_Slot] = []

    def persistent_id(self, obj: Any) -> Any:
        return obj.id() if isinstance(obj, _Slot) else None

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, Lazy):
            return NotImplemented
        slot = _Slot(str(len(self.slots)), obj)
        self.slots.append(slot)
        no_hooks: OrderedDict[Any, Any] = OrderedDict()
        stride = torch.empty(obj.shape, device="meta").stride()
        args = (slot, 0, obj.shape, stride, False, no_hooks)
        if obj.dtype in STORAGE_NAMES:
            return _utils._rebuild_tensor_v2, args
        return _utils._rebuild_tensor_v3, (*args, obj.dtype)


def write_full(tree: Any, file: Path, prints: Fingerprints) -> None:
    """One file, as `torch.save(tree, file)` writes it."""
    data = io.BytesIO()
    pickler = _Pickler(data)
    pickler.dump(tree)
    with _open_zipfile_writer(str(file)) as archive:
        archive.write_record("data.pkl", data.getvalue(), data.tell())
        archive.write_record("byteorder", sys.byteorder, len(sys.byteorder))
        for slot in pickler.slots:
            tensor = slot.tensor.load()
            prints.note(slot.tensor, tensor)
            archive.write_record(f"data/{slot.key}", tensor.untyped_storage(), tensor.nbytes)
            del tensor  # before the next one is loaded


@dataclass
class Flat:
    """A tree as DCP keeps it: a name for each entry, and the keys and indices that the name stands for."""

    entries: dict[str, Any] = field(default_factory=dict)
    paths: dict[str, Any] = field(default_factory=dict)


def flatten(tree: Any) -> Flat:
    """By torch's own function, which must see tensors; those on the meta device take no memory.

    Raises:
        Refused: two entries get the same name.
    """
    lazy: dict[int, Lazy] = {}

    def stand_in(value: Any) -> Any:
        if isinstance(value, Lazy):
            meta = torch.empty(value.shape, dtype=value.dtype, device="meta")
            lazy[id(meta)] = value
            return meta
        if isinstance(value, Mapping):
            return {key: stand_in(inner) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(map(stand_in, value)) if type(value) in (list, tuple) else value
        return value

    try:
        entries, paths = flatten_state_dict(stand_in(tree))
    except ValueError as error:
        raise Refused(f"cannot be a DCP checkpoint: {error}") from None
    return Flat({name: lazy.get(id(value), value) for name, value in entries.items()}, paths)


def write_dcp(tree: Any, folder: Path, prints: Fingerprints) -> None:
    """A folder, as `torch.distributed.checkpoint.save(tree)` of one rank writes it; its metadata comes last."""
    flat = flatten(tree)
    folder.mkdir()
    name = f"__0_0{filesystem.DEFAULT_SUFFIX}"
    entries: dict[str, Any] = {}
    storage: dict[metadata.MetadataIndex, Any] = {}
    with (folder / name).open("wb") as file:
        for key, value in flat.entries.items():
            start = file.tell()
            if isinstance(value, Lazy):
                tensor = value.load()
                prints.note(value, tensor)
                torch.save(tensor, file)
                entries[key] = _tensor_entry(tensor)
                index = metadata.MetadataIndex(key, [0] * tensor.dim(), 0)
                del tensor  # before the next one is loaded
            else:
                torch.save(value, file)
                entries[key] = metadata.BytesStorageMetadata()
                index = metadata.MetadataIndex(key)
            storage[index] = filesystem._StorageInfo(name, start, file.tell() - start)
    known = {f.name for f in fields(metadata.Metadata)}
    version = getattr(filesystem, "CURRENT_DCP_VERSION", None)
    written = metadata.Metadata(
        entries, flat.paths, storage, **({"version": version} if "version" in known else {})
    )
    (folder / METADATA).write_bytes(pickle.dumps(written))


def _tensor_entry(tensor: torch.Tensor) -> metadata.TensorStorageMetadata:
    size = tensor.size()
    chunk = metadata.ChunkStorageMetadata(torch.Size([0] * tensor.dim()), size)
    properties = metadata.TensorProperties(dtype=tensor.dtype)
    return metadata.TensorStorageMetadata(properties, size, [chunk])
