"""A class in the place of one that is written in C and cannot be changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def stand_in(real: type, make: Callable[..., Any]) -> type:
    """A class that looks like `real` and whose calls return what `make` returns, a `real`."""

    class Meta(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return make(*args, **kwargs)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, real)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, real)

        def __eq__(cls, other: object) -> bool:
            # A module that torch imported earlier holds the real one.
            return other is cls or other is real

        def __hash__(cls) -> int:
            return hash(real)

        def __getattr__(cls, name: str) -> Any:
            return getattr(real, name)

    # Pickled objects and annotations name the class: they must find this one.
    names = {"__module__": "torch", "__qualname__": real.__name__, "__doc__": real.__doc__}
    return Meta(real.__name__, (), names)
