"""What a model has by the names of FSDP2's methods: ``reshard``, ``unshard``. FSDP1's wrapper had none of these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.distributed.fsdp import FSDPModule

NONE = object()
_NAMES = [name for name in vars(FSDPModule) if not name.startswith("_")]


class _OwnFirst:
    """A name of FSDP2's on a unit: what the model has by it, else FSDP2's method.

    The runtime itself calls ``FSDPModule.reshard(unit)``.
    """

    def __init__(self, name: str, own: Callable[[Any, str], Any]) -> None:
        self._name = name
        self._own = own

    def __get__(self, unit: Any, cls: type[Any]) -> Any:
        method = getattr(FSDPModule, self._name)
        if unit is None:
            return method
        own = self._own(unit, self._name)
        if own is NONE:
            return method.__get__(unit, cls)
        return own


def own_first(own: Callable[[Any, str], Any]) -> dict[str, Any]:
    """Members for the class of units: each of FSDP2's names, where ``own(unit, name)`` is NONE, is FSDP2's method."""
    return {name: _OwnFirst(name, own) for name in _NAMES}


def of_the_model(unit: Any, name: str) -> Any:
    """What a unit that is sharded in place has by a name itself: a part of it, a parameter, or a member of its own class."""
    for members in (unit._modules, unit._parameters, unit._buffers):
        if name in members:
            return members[name]
    return getattr(super(FSDPModule, unit), name, NONE)
