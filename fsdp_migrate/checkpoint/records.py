"""Notes of what a pickle calls, in place of the classes that it names. They are sealed: a pickle cannot change them."""

from __future__ import annotations

import pickle
from typing import Any

from fsdp_migrate.checkpoint.errors import Unreadable


class Sealed(type):
    """A class that a pickle can call but not change."""

    def __setattr__(cls, name: str, value: object) -> None:
        raise pickle.UnpicklingError("the pickle changes a class")


class Record(metaclass=Sealed):
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


def record(name: str) -> type[Record]:
    """The stand-in of a class that is only noted."""
    return Sealed(name, (Record,), {"__slots__": ()})  # type: ignore[return-value]
