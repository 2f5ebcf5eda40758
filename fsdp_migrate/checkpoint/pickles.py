"""Unpickling without executing: a pickle gets stand-ins for the classes of checkpoints, and nothing else.

A pickle calls what it names. Here a name gives a class of this module that only notes what it is called
with, or the error that the pickle is not executed: tensors become `Stored`, sharded ones `Shards`, and torch's
own classes are never made, so that no process group is needed either. The stand-ins are sealed: a pickle cannot
change them.
"""

from __future__ import annotations

import codecs
import collections
import io
import pathlib
import pickle
from collections.abc import Callable, Iterable
from typing import IO, Any

import torch

from fsdp_migrate.checkpoint.errors import Unreadable
from fsdp_migrate.checkpoint.shards import Shards, chunk_of
from fsdp_migrate.checkpoint.tensors import Lazy, Storage, Stored

FindStorage = Callable[[str, int], Storage]
"""A storage by its key and its size in bytes."""


class _Sealed(type):
    """A class that a pickle can call but not change."""

    def __setattr__(cls, name: str, value: object) -> None:
        raise pickle.UnpicklingError("the pickle changes a class")


class Record(metaclass=_Sealed):
    """A noted object: what its class was called with, and its attributes."""

    __slots__ = ("args", "attributes")
    args: tuple[Any, ...]
    attributes: Any

    def __new__(cls, *args: Any) -> Any:
        """Note the call."""
        self = object.__new__(cls)
        self.args = args
        self.attributes = None
        return self

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):
            state = state[1]  # of a class with slots
        self.attributes = state

    def __getitem__(self, name: str) -> Any:
        if not isinstance(self.attributes, dict) or name not in self.attributes:
            raise Unreadable(f"an object {type(self).__name__} has no {name}")
        return self.attributes[name]

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute, or `default`."""
        return self.attributes.get(name, default) if isinstance(self.attributes, dict) else default


def _record(name: str) -> type[Record]:
    return _Sealed(name, (Record,), {"__slots__": ()})  # type: ignore[return-value]


class _Tensor(Record):
    """`torch._utils._rebuild_tensor`, `_v2`; `_v3` names its dtype."""

    def __new__(cls, *args: Any) -> Any:
        (storage, dtype), offset, size, stride = args[:4]
        if len(args) > 6 and isinstance(args[6], torch.dtype):
            dtype = args[6]
        if any(isinstance(extra, dict) and any(extra.values()) for extra in args[6:]):
            raise Unreadable("holds a conjugated or negated view of a tensor")
        return Stored(storage, dtype, tuple(size), tuple(stride), offset)


class _Parameter(Record):
    """`torch._utils._rebuild_parameter`: the tensor itself."""

    def __new__(cls, data: Any, *args: Any) -> Any:
        return data


class _Wrapper(Record):
    """`torch._utils._rebuild_wrapper_subclass`: a ShardedTensor or a DTensor, whose attributes follow."""


class _Typed(Record):
    """`torch._tensor._rebuild_from_type_v2`: calls the first argument, then sets attributes."""

    def __new__(cls, build: Any, kind: Any, args: Any, state: Any) -> Any:
        if not isinstance(build, _Sealed):
            raise Unreadable("a tensor is rebuilt by no function of torch")
        made = build(*args)
        if not isinstance(made, _Wrapper):
            return made  # what FSDP1 marks a tensor with means nothing in a file
        if kind is _ShardedTensor:
            return _sharded_tensor(made, state)
        if kind is _DTensor:
            return _dtensor(made, state)
        raise Unreadable(f"holds a tensor subclass {kind.__name__} that is not known")


class _Refused(Record):
    """Tensors that cannot be converted piece by piece."""

    def __new__(cls, *args: Any) -> Any:
        raise Unreadable("holds a sparse, quantized, nested or meta tensor: not supported")


class _Member(Record):
    """`getattr`, by which enum members and nested classes are pickled: it finds only those."""

    def __new__(cls, owner: Any, name: Any) -> Any:
        if owner is _ShardedTensor and name == "ProcessGroupState":
            return _GroupState
        if owner is _Enum:
            return _Enum(name)
        raise Unreadable(f"its pickle asks for an attribute {name!r} of an object: not executed")


class _Encoded(Record):
    """`_codecs.encode`, by which bytes are pickled in old protocols."""

    def __new__(cls, text: str, encoding: str = "latin1") -> Any:
        if encoding not in ("latin1", "latin-1"):
            raise Unreadable("bytes in an unexpected encoding")
        return codecs.latin_1_encode(text)[0]


class _Counter(Record):
    """`collections.Counter`, as learning rate schedulers keep their milestones in: a class that could be changed."""

    def __new__(cls, counts: Any = ()) -> Any:
        return collections.Counter(counts)


class _Path(Record):
    """A path is the text of it."""

    def __new__(cls, *parts: str) -> Any:
        return str(pathlib.PurePosixPath(*parts))


_ShardedTensor, _DTensor = _record("ShardedTensor"), _record("DTensor")
_GroupState, _Enum = _record("ProcessGroupState"), _record("Enum")
_Replicate, _Split = _record("Replicate"), _record("Shard")

# The classes of DCP's metadata that are told apart later.
TensorMetadata, BytesMetadata = _record("TensorStorageMetadata"), _record("BytesStorageMetadata")
Metadata = _record("Metadata")

_STORAGES = {
    "DoubleStorage": torch.float64, "FloatStorage": torch.float32, "HalfStorage": torch.float16,
    "LongStorage": torch.int64, "IntStorage": torch.int32, "ShortStorage": torch.int16,
    "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool,
    "BFloat16Storage": torch.bfloat16, "ComplexDoubleStorage": torch.complex128,
    "ComplexFloatStorage": torch.complex64, "UntypedStorage": torch.uint8,
}  # fmt: skip

_PATHS = ("Path", "PosixPath", "WindowsPath")

STORAGE_NAMES = {dtype: name for name, dtype in _STORAGES.items() if name != "UntypedStorage"}
"""The class that a pickle names for a storage of that dtype; dtypes that came later have none."""


def _admitted() -> dict[tuple[str, str], Any]:
    shard, dist, dcp = (
        "torch.distributed._shard",
        "torch.distributed",
        "torch.distributed.checkpoint",
    )
    tensor = "torch.distributed.tensor"
    names: dict[str, Iterable[tuple[str, Any]]] = {
        "collections": [
            ("OrderedDict", collections.OrderedDict),
            ("Counter", _Counter),
        ],
        "builtins": [(t.__name__, t) for t in (set, frozenset, complex)],
        "_codecs": [("encode", _Encoded)],
        **{
            module: [(f"{kind}{name}", _Path) for kind in ("", "Pure") for name in _PATHS]
            for module in ("pathlib", "pathlib._local")  # the latter since Python 3.13
        },
        "torch": [("Size", torch.Size), ("device", torch.device), ("Tensor", _record("Tensor"))],
        "torch.storage": [("UntypedStorage", torch.uint8)],
        "torch.nn.parameter": [("Parameter", _record("Parameter"))],
        "torch.serialization": [("_get_layout", _record("layout"))],
        "torch._tensor": [("_rebuild_from_type_v2", _Typed)],
        "torch._utils": [
            *((f"_rebuild_tensor{version}", _Tensor) for version in ("", "_v2", "_v3")),
            *((f"_rebuild_parameter{more}", _Parameter) for more in ("", "_with_state")),
            ("_rebuild_device_tensor_from_cpu_tensor", _Parameter),
            ("_rebuild_wrapper_subclass", _Wrapper),
            *((f"_rebuild_{kind}", _Refused) for kind in (
                "sparse_tensor", "sparse_csr_tensor", "qtensor", "nested_tensor",
                "meta_tensor_no_storage",
            )),
        ],
        f"{shard}.metadata": [("ShardMetadata", _record("ShardMetadata"))],
        f"{shard}.sharded_tensor.api": [("ShardedTensor", _ShardedTensor)],
        f"{shard}.sharded_tensor.shard": [("Shard", _record("Shard"))],
        f"{shard}.sharded_tensor.metadata": [
            ("ShardedTensorMetadata", _record("ShardedTensorMetadata")),
            ("TensorProperties", _record("TensorProperties")),
            ("MEM_FORMAT_ENCODING", _Enum),
        ],
        f"{shard}.sharding_spec.chunk_sharding_spec": [("ChunkShardingSpec", _record("Spec"))],
        f"{shard}.sharding_spec.api": [("EnumerableShardingSpec", _record("Spec"))],
        f"{dist}.remote_device": [("_remote_device", _record("remote_device"))],
        f"{dist}.device_mesh": [("DeviceMesh", _record("DeviceMesh"))],
        f"{dist}._mesh_layout": [
            ("_MeshLayout", _record("MeshLayout")), ("_FlatLayout", _record("FlatLayout")),
        ],
        tensor: [("DTensor", _DTensor)],
        # Where releases of torch have had the parts of a DTensor.
        **{
            f"{package}.{module}": [
                ("DTensor", _DTensor), ("Shard", _Split), ("Replicate", _Replicate),
                *((name, _record(name)) for name in (
                    "Partial", "_Partial", "_StridedShard", "DTensorSpec", "TensorMeta",
                    "ShardOrderEntry", "DeviceMesh",
                )),
            ]
            for package in (tensor, f"{dist}._tensor")
            for module in ("api", "_api", "_dtensor_spec", "placement_types", "device_mesh")
        },
        f"{dcp}.metadata": [
            ("Metadata", Metadata), ("TensorStorageMetadata", TensorMetadata),
            ("BytesStorageMetadata", BytesMetadata), ("_MEM_FORMAT_ENCODING", _Enum),
            *((name, _record(name)) for name in (
                "ChunkStorageMetadata", "TensorProperties", "MetadataIndex", "StorageMeta",
            )),
        ],
        f"{dcp}.filesystem": [(name, _record(name)) for name in ("_StorageInfo", "_StoragePrefix")],
    }  # fmt: skip
    table = {(module, name): what for module, pairs in names.items() for name, what in pairs}
    for name in dir(torch):
        if isinstance(getattr(torch, name), torch.dtype):
            table["torch", name] = getattr(torch, name)
    table.update({("torch", name): dtype for name, dtype in _STORAGES.items()})
    table["builtins", "getattr"] = _Member
    return table


_ADMITTED = _admitted()


class Reader(pickle.Unpickler):
    """Reads one pickle; `trust` lets it execute what is not known here."""

    def __init__(self, file: IO[bytes], find: FindStorage | None, trust: bool) -> None:
        super().__init__(file, encoding="utf-8")
        self._find = find
        self._trust = trust

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in of that name."""
        module = "builtins" if module == "__builtin__" else module
        if (module, name) in _ADMITTED:
            return _ADMITTED[module, name]
        if self._trust:
            return super().find_class(module, name)
        raise Unreadable(
            f"its pickle asks for {module}.{name}, which is not of a checkpoint: not executed. "
            "--trust-pickle executes it: only if you know who wrote the file"
        )

    def persistent_load(self, pid: Any) -> tuple[Storage, torch.dtype]:
        """The storage of a tensor: `("storage", class, key, location, elements)`, in old files with a view."""
        if self._find is None or not isinstance(pid, tuple) or len(pid) < 5 or pid[0] != "storage":
            raise Unreadable("its pickle has a reference that is no storage of a tensor")
        dtype, key, _, numel, *view = pid[1:]
        if not isinstance(dtype, torch.dtype) or not isinstance(numel, int) or any(view):
            raise Unreadable("its pickle has a storage of an unknown kind")
        return self._find(str(key), numel * dtype.itemsize), dtype


def read_pickle(file: IO[bytes], find: FindStorage | None = None, trust: bool = False) -> Any:
    """The object of the next pickle in `file`, in stand-ins.

    Raises:
        Unreadable: it is cut off or damaged, or asks for what no checkpoint needs.
    """
    try:
        return Reader(file, find, trust).load()
    except (Unreadable, MemoryError):
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Unreadable(f"its pickle is damaged ({reason})") from None


def read_bytes(data: bytes, trust: bool = False) -> Any:
    """The same of a pickle in memory."""
    return read_pickle(io.BytesIO(data), trust=trust)


def _sharded_tensor(made: Record, state: Any) -> Shards:
    """`ShardedTensor.__getstate__`: local shards, metadata, process group, spec, rrefs."""
    try:
        local, metadata, group = state[:3]
        _, rank, _, ranks = group.args or [group[name] for name in (
            "local_rank", "global_rank", "local_world_size", "global_world_size",
        )]  # fmt: skip
        parts = tuple((_box(shard["metadata"])[0], shard["tensor"]) for shard in local)
        layout = tuple(_box(shard) for shard in metadata["shards_metadata"])
        return Shards(made.args[1], tuple(metadata["size"]), parts, rank, ranks, layout)
    except (TypeError, ValueError, AttributeError, IndexError):
        raise Unreadable("holds a ShardedTensor of an unknown form") from None


def _box(shard: Record) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(shard["shard_offsets"]), tuple(shard["shard_sizes"])


def _dtensor(made: Record, state: Any) -> Shards:
    """The attributes of a DTensor: its local tensor, and mesh and placements in its spec."""
    try:
        attributes = state[1] if isinstance(state, tuple) else state
        spec, local = attributes["_spec"], attributes["_local_tensor"]
        mesh, shape = spec["mesh"], tuple(made.args[2])
        sizes, coordinate = _mesh_sizes(mesh), mesh.get("_coordinate_on_dim")
        dims = []
        for placement in spec["placements"]:
            if not isinstance(placement, (_Split, _Replicate)):
                kind = type(placement).__name__
                raise Unreadable(f"holds a DTensor whose placement is {kind}: not supported")
            dims.append(placement["dim"] if isinstance(placement, _Split) else None)
        if coordinate is None:
            parts: tuple[tuple[tuple[int, ...], Lazy], ...] = ()
        else:
            offsets, held = chunk_of(shape, sizes, coordinate, dims)
            if held != local.shape:
                raise Unreadable("holds a DTensor whose local tensor has not the size of its shard")
            parts = ((offsets, local),)
        rank = 0
        for size, index in zip(sizes, coordinate or (), strict=False):
            rank = rank * size + index
        return Shards(made.args[1], shape, parts, rank, _product(sizes))
    except (TypeError, ValueError, AttributeError, IndexError, KeyError):
        raise Unreadable("holds a DTensor of an unknown form") from None


def _mesh_sizes(mesh: Record) -> tuple[int, ...]:
    """A mesh's shape: of its layout in later releases of torch, of the tensor of its ranks in earlier ones."""
    layout = mesh.get("_layout")
    if layout is not None and layout.get("axes") is not None:
        return tuple(_product(axis["shape"]) for axis in layout["axes"])
    if layout is not None:
        shape = layout["shape"]
        shape = shape if isinstance(shape, tuple) else (shape,)
        return tuple(_product(n) if isinstance(n, tuple) else n for n in shape)
    tensor = mesh.get("mesh", mesh.get("_mesh"))
    if isinstance(tensor, Lazy):
        return tensor.shape
    raise Unreadable("holds a DTensor on a mesh of an unknown form")


def _product(numbers: Any) -> int:
    if isinstance(numbers, int):
        return numbers
    total = 1
    for number in numbers:
        total *= _product(number)
    return total
