"""Models that are FSDP1's still: a program may move its checkpoints first, and its model later."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from torch import nn

from .api import NamedOption

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def or_fsdp1s(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """``function``; of a model that is FSDP1's, the function of the same name that FSDP1 has.

    That is found through the model's class, so that nothing of FSDP1 is imported.
    """

    @wraps(function)
    def choose(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        theirs = _fsdp1_of(*args, *kwargs.values())
        if theirs is None:
            return function(*args, **kwargs)
        module = sys.modules[theirs.__module__]
        given = [_as_torchs(each, module) for each in args]
        named = {name: _as_torchs(each, module) for name, each in kwargs.items()}
        result: Result = getattr(theirs, function.__name__)(*given, **named)
        return result

    return choose


def is_fsdp1(cls: type) -> bool:
    """Whether ``cls`` is torch's FSDP1, or derives from it."""
    return any(_is_torchs(base) for base in cls.__mro__)


def _is_torchs(cls: type) -> bool:
    return cls.__name__ == "FullyShardedDataParallel" and cls.__module__.startswith(
        "torch.distributed.fsdp"
    )


def _fsdp1_of(*given: object) -> Any:
    """FSDP1's class if one of the arguments is a model with units of it."""
    for model in given:
        for module in model.modules() if isinstance(model, nn.Module) else ():
            for cls in type(module).__mro__:
                if _is_torchs(cls):
                    return cls
    return None


def _as_torchs(value: object, module: Any) -> object:
    """An option of this project as torch's of the same name, which FSDP1 insists on."""
    name = type(value).__name__
    if type(value).__module__.startswith("torch.") or not hasattr(module, name):
        return value
    if isinstance(value, NamedOption):
        return getattr(module, name)[value.name]
    if is_dataclass(value) and not isinstance(value, type):
        return getattr(module, name)(**asdict(value))
    return value
