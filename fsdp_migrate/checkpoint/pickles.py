"""What a pickle may ask for. Nothing in it is executed: any name but those here, and those that torch allows, is refused.

The classes of `torch.distributed` would need a process group; a `Note` stands in for each.
"""

from __future__ import annotations

import collections
import io
import pickle
from typing import Any

import torch

from fsdp_migrate.checkpoint.errors import Unreadable


class Note:
    """An object of `torch.distributed` as a pickle describes it: arguments of its class, and its state."""

    args: tuple[Any, ...]
    state: Any = None

    def __new__(cls, *args: Any) -> Note:
        """Keep the arguments."""
        self = object.__new__(cls)
        self.args = args
        return self

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):
            state = state[1]  # of a class with slots
        self.state = state

    def __getitem__(self, name: str) -> Any:
        return self.state[name]

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute, or `default`."""
        if isinstance(self.state, dict):
            return self.state.get(name, default)
        return default


def is_a(value: Any, kind: str) -> bool:
    """Whether it stands for an object of the class `kind`."""
    return isinstance(value, Note) and type(value).__name__ == kind


def allowed(name: str) -> Any:
    """What a pickle gets for a name with its module; raises Unreadable for a name that no checkpoint needs.

    A stand-in is a class of its own each time: a pickle that changes one changes
    nothing else.
    """
    if name in _HARMLESS:
        return _HARMLESS[name]
    if isinstance(dtype := getattr(torch, name.removeprefix("torch."), None), torch.dtype):
        return dtype
    if name.startswith("torch.distributed.") or name == "torch.serialization._get_layout":
        return type(name.rpartition(".")[2], (Note,), {})
    if name.startswith("pathlib."):
        return _path
    raise not_executed(name)


def not_executed(name: str) -> Unreadable:
    """The refusal of a pickle that asks for `name`."""
    return Unreadable(
        f"its pickle asks for {name}, which is not of a checkpoint: not executed. If you know who wrote it, "
        "load it with weights_only=False, and save the state dicts alone"
    )


def read_pickle(data: bytes) -> Any:
    """The object of a pickle; raises Unreadable where it is damaged, or asks for what it may not have."""
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except Unreadable:
        raise
    except Exception as error:
        raise Unreadable(f"its pickle is damaged ({first_line(error)})") from None


def first_line(error: Exception) -> str:
    """An error's message as one line."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return allowed(f"{module}.{name}")


class Member(Note):
    """Of an enum, or a class in a class."""


def _member(owner: Any, name: str) -> type[Member]:
    """`getattr`, by which members are pickled: it finds only those of stand-ins."""
    if not (isinstance(owner, type) and issubclass(owner, (Note, torch.Tensor))):
        raise Unreadable(f"its pickle asks for an attribute {name!r} of an object: not executed")
    return Member


def _path(*parts: str) -> str:
    """A path is read as its text: DCP's index has its own."""
    return "/".join(parts)


# Nothing that a pickle could set an attribute of: classes in Python are not among them.
_HARMLESS: dict[str, Any] = {
    "builtins.getattr": _member,
    "builtins.set": set,
    "collections.OrderedDict": collections.OrderedDict,
    "torch.Size": torch.Size,
}
