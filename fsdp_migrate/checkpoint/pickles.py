"""Unpickling without executing: a pickle gets stand-ins for the classes of checkpoints, and nothing else.

A pickle calls what it names. Here a name gives a class of this project that only notes what it is called with, or the error
that the pickle is not executed: tensors become `Stored`, sharded ones `Shards`, and torch's own classes are never made, so that
no process group is needed either.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import IO, Any

import torch

from fsdp_migrate.checkpoint.admitted import ADMITTED
from fsdp_migrate.checkpoint.errors import Unreadable
from fsdp_migrate.checkpoint.tensors import Storage

FindStorage = Callable[[str, int], Storage]
"""A storage by its key and its size in bytes."""


class Reader(pickle.Unpickler):
    """Reads one pickle; `trust` lets it execute what is not known here."""

    def __init__(self, file: IO[bytes], find: FindStorage | None, trust: bool) -> None:
        super().__init__(file, encoding="utf-8")
        self._find = find
        self._trust = trust

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in of that name."""
        module = "builtins" if module == "__builtin__" else module
        if (module, name) in ADMITTED:
            return ADMITTED[module, name]
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
