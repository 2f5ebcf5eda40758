"""What a model is, whichever form it has: the bridge, sharded in place, FSDP1's still, in another wrapper, or not sharded."""

import sys
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar
from weakref import ref

from torch import nn
from torch.distributed.fsdp import FSDPModule

from .api import NamedOption
from .notes import notes_of

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

WRAPPED = "_fsdp_wrapped_module"
_OTHERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def unwrap(model: nn.Module) -> Any:
    """The model itself: without the bridge's wrapper, FSDP1's or DistributedDataParallel's, however many are around it.

    A model that is sharded in place, or not at all, is its own; an attribute ``module`` of its own is not looked at. What
    ``torch.compile`` makes of any of these asks it for its ``module``, and so does this function.
    """
    model = uncompiled(model)
    while _is_around(model):
        model = model.module  # type: ignore[assignment]
    return model


def uncompiled(model: nn.Module) -> nn.Module:
    """The unit, or the model in another wrapper, of which ``torch.compile`` made ``model``; else ``model`` itself."""
    compiled = model._modules.get("_orig_mod")
    if compiled is not None and (_is_around(compiled) or is_sharded(compiled)):
        return compiled
    return model


def _is_around(model: nn.Module) -> bool:
    is_wrapper = is_fsdp1(type(model)) or WRAPPED in model._modules
    return is_wrapper or isinstance(model, _OTHERS)


def is_sharded(model: object) -> bool:
    """Whether ``model`` is a unit: of the bridge, of ``fully_shard`` or of torch's FSDP1."""
    return isinstance(model, FSDPModule) or is_fsdp1(type(model))


# Models that are FSDP1's still: a program may move its checkpoints first, and its model later #


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
    return any(map(_is_torchs, cls.__mro__))


def _is_torchs(cls: type) -> bool:
    return cls.__name__ == "FullyShardedDataParallel" and cls.__module__.startswith(
        "torch.distributed.fsdp"
    )


def _fsdp1_of(*given: object) -> Any:
    """FSDP1's class if one of the arguments is a model with units of it."""
    models = [each for each in given if isinstance(each, nn.Module)]
    for model in models:
        for module in model.modules():
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


# The module that FSDP1's wrapper wrapped, for a model that is sharded in place: `model.module`. FSDP1's was another object,
# of the model's own class and without FSDP1's interface: `while hasattr(m, "module"): m = m.module` ends there #


def view_of(unit: nn.Module, cls: type[nn.Module]) -> nn.Module:
    """``unit`` as a module of its own class ``cls``: the same attributes, children, parameters and hooks."""
    notes = notes_of(unit)
    if notes.view is None:
        view = None
    else:
        view = notes.view()
    if view is None:
        view = object.__new__(cls)
        object.__setattr__(view, "__dict__", vars(unit))
        notes.view = ref(view)
        notes_of(view).unit = unit  # a view keeps its unit, not the other way round
    return view


def unit_of(module: nn.Module) -> nn.Module:
    """The unit that ``module`` is a view of, or ``module`` itself."""
    unit = notes_of(module).unit
    if unit is None:
        return module
    return unit
