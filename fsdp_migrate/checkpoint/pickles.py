"""Reading a pickle without executing it.

A pickle calls what it names. Here a name gives a container, a function of this module, or, for the classes of
`torch.distributed`, a `Note` that only keeps what the class would have been given; any other name is refused. The classes
of torch are never made, so that no process group is needed either. Nothing but notes and containers can be changed.
"""

from __future__ import annotations

import codecs
import collections
import io
import pathlib
import pickle
from collections.abc import Callable, Mapping
from typing import IO, Any

import torch

from fsdp_migrate.checkpoint.errors import Unreadable
from fsdp_migrate.checkpoint.notes import Note, note
from fsdp_migrate.checkpoint.parts import sharded_tensor
from fsdp_migrate.checkpoint.trees import nodes

FindStorage = Callable[[str, int], torch.UntypedStorage]
"""A storage by its key and its least size in bytes."""

_VISITS = 10
"""How often a container may lie in other places of a tree, on average."""


def read_pickle(
    file: IO[bytes] | bytes, find: FindStorage | None = None, trust: bool = False
) -> Any:
    """The object of a pickle, with notes for classes of `torch.distributed` and tensors over `find`'s storages.

    Raises Unreadable where it is cut off or damaged, or asks for what no checkpoint needs.
    """
    try:
        return _Reader(io.BytesIO(file) if isinstance(file, bytes) else file, find, trust).load()
    except Unreadable:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Unreadable(f"its pickle is damaged ({reason})") from None


def checked(tree: Any) -> Any:
    """The tree itself, if it can be walked and none of its leaves is a class or object of `torch.distributed`.

    A pickle of some hundred bytes can nest one list in itself so often that a walk through it does not end.
    """
    containers: set[int] = set()
    visits = 0
    for _, value in nodes(tree):
        if isinstance(value, (Mapping, list, tuple)):
            containers.add(id(value))
            visits += 1
            if visits > _VISITS * (1_000 + len(containers)):
                raise Unreadable("holds the same containers over and over: it is no checkpoint")
        kind = value if isinstance(value, type) else type(value)
        if issubclass(kind, Note):
            raise _not_executed(f"torch.distributed's {kind.__name__}")
    return tree


def _not_executed(name: str) -> Unreadable:
    return Unreadable(
        f"its pickle asks for {name}, which is not of a checkpoint: not executed. "
        "--trust-pickle executes it: only if you know who wrote the file"
    )


class _Reader(pickle._Unpickler):
    """The unpickler in Python, whose steps can be guarded; `trust` lets it execute names that are not known here."""

    dispatch = dict(pickle._Unpickler.dispatch)  # of opcodes

    def __init__(self, file: IO[bytes], find: FindStorage | None, trust: bool) -> None:
        super().__init__(file, encoding="utf-8")
        self._file_readline = lambda: _line(file)
        self._find, self._trust = find, trust

    def find_class(self, module: str, name: str) -> Any:
        module = "builtins" if module == "__builtin__" else module
        if (module, name) in _KNOWN:
            return _KNOWN[module, name]
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        if module.startswith("torch.distributed."):
            return note(name.rpartition(".")[2])
        if self._trust:
            return super().find_class(module, name)
        raise _not_executed(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> tuple[torch.UntypedStorage, torch.dtype]:
        """The storage of a tensor: `("storage", class, key, location, elements)`, in old files with a view."""
        if self._find is None or not isinstance(pid, tuple) or len(pid) < 5 or pid[0] != "storage":
            raise Unreadable("its pickle has a reference that is no storage of a tensor")
        dtype, key, _, numel, *view = pid[1:]
        if not isinstance(dtype, torch.dtype) or not isinstance(numel, int) or any(view):
            raise Unreadable("its pickle has a storage of an unknown kind")
        return self._find(str(key), numel * dtype.itemsize), dtype


def _line(file: IO[bytes]) -> bytes:
    """A line to its end: half a name must not be taken for another name."""
    line = file.readline()
    if not line.endswith(b"\n"):
        raise EOFError("Ran out of input")
    return line


def _guard(opcode: bytes, target: Callable[[Any], Any], kinds: tuple[type, ...]) -> None:
    """Let an instruction change only what is an instance of `kinds`."""
    step = _Reader.dispatch[opcode[0]]

    def guarded(reader: Any) -> None:
        if not reader._trust and not isinstance(found := target(reader), kinds):
            raise pickle.UnpicklingError(f"the pickle changes an object {type(found).__name__}")
        step(reader)

    _Reader.dispatch[opcode[0]] = guarded


_guard(pickle.BUILD, lambda reader: reader.stack[-2], (Note, collections.OrderedDict))
_guard(pickle.SETITEM, lambda reader: reader.stack[-3], (dict,))
_guard(pickle.SETITEMS, lambda reader: reader.metastack[-1][-1], (dict,))


def _tensor(storage: Any, offset: int, size: Any, stride: Any, *more: Any) -> torch.Tensor:
    """`torch._utils._rebuild_tensor` and `_v2`; `_v3` also names the dtype."""
    found, dtype = storage
    if len(more) > 2 and isinstance(more[2], torch.dtype):
        dtype = more[2]
    if any(isinstance(extra, dict) and any(extra.values()) for extra in more[2:]):
        raise Unreadable("holds a conjugated or negated view of a tensor")
    return view(found, dtype, offset, tuple(size), tuple(stride))


def view(
    storage: torch.UntypedStorage, dtype: torch.dtype, offset: int, size: Any, stride: Any
) -> torch.Tensor:
    """A tensor over a storage; offset and strides count elements."""
    try:
        tensor = torch.empty(0, dtype=dtype, device=storage.device)
        return tensor.set_(storage, offset, size, stride)
    except (RuntimeError, TypeError, OverflowError):
        raise Unreadable("a tensor has no possible shape, or reaches beyond its storage") from None


def _typed(build: Any, kind: Any, args: Any, state: Any) -> Any:
    """`torch._tensor._rebuild_from_type_v2`: calls the first argument, then sets attributes."""
    if build not in (_tensor, _parameter, _wrapper):
        raise Unreadable("a tensor is rebuilt by no function of torch")
    made = build(*args)
    if not isinstance(made, Note):
        return made  # what FSDP1 marks a tensor with means nothing in a file
    return sharded_tensor(kind, made.args[1], tuple(made.args[2]), state)


def _wrapper(*args: Any) -> Note:
    """`torch._utils._rebuild_wrapper_subclass`: a ShardedTensor or a DTensor, whose attributes follow."""
    return note("wrapper")(*args)


def _parameter(data: Any, *_: Any) -> Any:
    """`torch._utils._rebuild_parameter`: the tensor itself."""
    return data


def _unsupported(*_: Any) -> Any:
    raise Unreadable("holds a sparse, quantized, nested or meta tensor: not supported")


def _member(owner: Any, name: str) -> type[Note]:
    """`getattr`, by which members of enums and nested classes are pickled: it finds only those."""
    if not (isinstance(owner, type) and issubclass(owner, Note)):
        raise Unreadable(f"its pickle asks for an attribute {name!r} of an object: not executed")
    return note(name)


def _encoded(text: str, encoding: str = "latin1") -> bytes:
    """`_codecs.encode`, by which old protocols pickle bytes."""
    if encoding not in ("latin1", "latin-1"):
        raise Unreadable("bytes in an unexpected encoding")
    return codecs.latin_1_encode(text)[0]


def _path(*parts: str) -> str:
    """A path is read as its text."""
    return str(pathlib.PurePosixPath(*parts))


_STORAGES = {
    "Double": torch.float64, "Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8,
    "Byte": torch.uint8, "Bool": torch.bool, "ComplexDouble": torch.complex128,
    "ComplexFloat": torch.complex64,
}  # fmt: skip

_KNOWN: dict[tuple[str, str], Any] = {
    ("builtins", "getattr"): _member,
    ("_codecs", "encode"): _encoded,
    ("torch.storage", "UntypedStorage"): torch.uint8,
    ("torch._tensor", "_rebuild_from_type_v2"): _typed,
    **{("builtins", kind.__name__): kind for kind in (set, frozenset, complex)},
    **{("collections", k.__name__): k for k in (collections.OrderedDict, collections.Counter)},
    # Since Python 3.13 paths are of pathlib._local.
    **{
        (module, f"{kind}{system}Path"): _path
        for module in ("pathlib", "pathlib._local")
        for kind in ("", "Pure")
        for system in ("", "Posix", "Windows")
    },
    **{("torch", kind.__name__): kind for kind in (torch.Size, torch.device)},
    **{("torch", f"{name}Storage"): dtype for name, dtype in _STORAGES.items()},
    ("torch", "Tensor"): note("Tensor"),
    ("torch.nn.parameter", "Parameter"): note("Parameter"),
    ("torch.serialization", "_get_layout"): note("layout"),
    **{("torch._utils", f"_rebuild_tensor{version}"): _tensor for version in ("", "_v2", "_v3")},
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _parameter,
    ("torch._utils", "_rebuild_device_tensor_from_cpu_tensor"): _parameter,
    ("torch._utils", "_rebuild_wrapper_subclass"): _wrapper,
    **{
        ("torch._utils", f"_rebuild_{kind}"): _unsupported
        for kind in ("sparse_tensor", "sparse_csr_tensor", "qtensor", "nested_tensor", "meta_tensor_no_storage")
    },
}  # fmt: skip
