"""The names that a pickle of a checkpoint may ask for, and what each of them gives."""

from __future__ import annotations

import codecs
import collections
import pathlib
from collections.abc import Iterable
from typing import Any

import torch

from fsdp_migrate.checkpoint.errors import Unreadable
from fsdp_migrate.checkpoint.rebuilt import (
    DTENSOR,
    REPLICATE,
    SHARDED_TENSOR,
    SPLIT,
    Parameter,
    Refused,
    Tensor,
    Typed,
    Wrapper,
)
from fsdp_migrate.checkpoint.records import Record, record

# The classes of DCP's metadata that are told apart later.
TensorMetadata, BytesMetadata = record("TensorStorageMetadata"), record("BytesStorageMetadata")
Metadata = record("Metadata")

_GROUP_STATE, _Enum = record("ProcessGroupState"), record("Enum")


class _Member(Record):
    """`getattr`, by which enum members and nested classes are pickled: it finds only those."""

    def __new__(cls, owner: Any, name: Any) -> Any:
        if owner is SHARDED_TENSOR and name == "ProcessGroupState":
            return _GROUP_STATE
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
        "torch": [("Size", torch.Size), ("device", torch.device), ("Tensor", record("Tensor"))],
        "torch.storage": [("UntypedStorage", torch.uint8)],
        "torch.nn.parameter": [("Parameter", record("Parameter"))],
        "torch.serialization": [("_get_layout", record("layout"))],
        "torch._tensor": [("_rebuild_from_type_v2", Typed)],
        "torch._utils": [
            *((f"_rebuild_tensor{version}", Tensor) for version in ("", "_v2", "_v3")),
            *((f"_rebuild_parameter{more}", Parameter) for more in ("", "_with_state")),
            ("_rebuild_device_tensor_from_cpu_tensor", Parameter),
            ("_rebuild_wrapper_subclass", Wrapper),
            *((f"_rebuild_{kind}", Refused) for kind in (
                "sparse_tensor", "sparse_csr_tensor", "qtensor", "nested_tensor",
                "meta_tensor_no_storage",
            )),
        ],
        f"{shard}.metadata": [("ShardMetadata", record("ShardMetadata"))],
        f"{shard}.sharded_tensor.api": [("ShardedTensor", SHARDED_TENSOR)],
        f"{shard}.sharded_tensor.shard": [("Shard", record("Shard"))],
        f"{shard}.sharded_tensor.metadata": [
            ("ShardedTensorMetadata", record("ShardedTensorMetadata")),
            ("TensorProperties", record("TensorProperties")),
            ("MEM_FORMAT_ENCODING", _Enum),
        ],
        f"{shard}.sharding_spec.chunk_sharding_spec": [("ChunkShardingSpec", record("Spec"))],
        f"{shard}.sharding_spec.api": [("EnumerableShardingSpec", record("Spec"))],
        f"{dist}.remote_device": [("_remote_device", record("remote_device"))],
        f"{dist}.device_mesh": [("DeviceMesh", record("DeviceMesh"))],
        f"{dist}._mesh_layout": [
            ("_MeshLayout", record("MeshLayout")), ("_FlatLayout", record("FlatLayout")),
        ],
        tensor: [("DTensor", DTENSOR)],
        # Where releases of torch have had the parts of a DTensor.
        **{
            f"{package}.{module}": [
                ("DTensor", DTENSOR), ("Shard", SPLIT), ("Replicate", REPLICATE),
                *((name, record(name)) for name in (
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
            *((name, record(name)) for name in (
                "ChunkStorageMetadata", "TensorProperties", "MetadataIndex", "StorageMeta",
            )),
        ],
        f"{dcp}.filesystem": [(name, record(name)) for name in ("_StorageInfo", "_StoragePrefix")],
    }  # fmt: skip
    table = {(module, name): what for module, pairs in names.items() for name, what in pairs}
    for name in dir(torch):
        if isinstance(getattr(torch, name), torch.dtype):
            table["torch", name] = getattr(torch, name)
    table.update({("torch", name): dtype for name, dtype in _STORAGES.items()})
    table["builtins", "getattr"] = _Member
    return table


ADMITTED = _admitted()
"""By module and name: a stand-in, a dtype, or a class that holds what it is given and does nothing else."""
