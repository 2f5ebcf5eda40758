"""A unit that ``fully_shard`` made of a module itself, with what FSDP1's wrapper around it did and answered."""

from __future__ import annotations

import functools
import sys
import warnings
from typing import Any
from weakref import WeakSet

from torch import nn

from . import torch_private
from .attributes import attributes_of
from .forms import WRAPPED, view_of
from .gradients import reduce_as_fsdp1
from .interface import Interface
from .quirks import Record, acted, belongs_to, keeps
from .refusals import PRIVATE_PARTS, PrivatePart
from .running import Unit, run_gathered
from .state_dict_types import follow_default_type

_hooked_before: WeakSet[nn.Module] = WeakSet()


class InPlaceUnit(Unit):
    """Comes before FSDP2's class, and that before the model's own, in the class of a unit that is sharded in place."""

    _own_class: type[nn.Module]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A module of the model's own class: a slice of an ``nn.Sequential`` is no unit."""
        return cls._own_class(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """What the model itself does not have may be FSDP1's."""
        try:
            return super().__getattr__(name)  # type: ignore[misc]
        except AttributeError:
            if name.startswith("__") or not keeps(self, "interface"):  # type: ignore[arg-type]
                raise
            # Under FSDP1 the model's own methods did not see the wrapper: `hasattr(self, "rank")`.
            if name not in _METHODS and _asks_itself(self):
                raise
            answer = _answer(self, name)
            if answer is _NONE:
                if name in PRIVATE_PARTS:
                    raise PrivatePart(name) from None
                raise
        acted(self, "interface", name)  # type: ignore[arg-type]
        return answer

    @torch_private.run_outside_of_graphs
    def _call_impl(self: Any, *args: Any, **kwargs: Any) -> Any:
        """``model(x)``: forward gathers the parameters, or with hooks this, so that they see what FSDP1's saw.

        FSDP1 ran hooks of the module inside of its wrapper: those of before, and those of modules that a program found by
        their class. Of the outermost unit a program has the wrapper, whose hooks ran outside.
        """
        call = super()._call_impl  # type: ignore[misc]
        hooked = self._forward_pre_hooks or self._forward_hooks
        if hooked and (self in _hooked_before or torch_private.is_root(self) is False):
            return run_gathered(self, call, args, kwargs)
        return call(*args, **kwargs)

    def _get_name(self) -> str:
        """The class in the representation of a model."""
        if keeps(self, "class_names"):  # type: ignore[arg-type]
            acted(self, "class_names", "print")  # type: ignore[arg-type]
        return super()._get_name()  # type: ignore[misc,no-any-return]


_NONE = object()
_METHODS = {name for name, member in vars(Interface).items() if not isinstance(member, property)}


def _asks_itself(unit: Any) -> bool:
    """Whether a method of ``unit`` reads the attribute."""
    return sys._getframe(2).f_locals.get("self") is unit


def _answer(unit: Any, name: str) -> Any:
    """What FSDP1's wrapper around ``unit`` has by that name."""
    if name in ("module", WRAPPED):
        checkpointed = unit._modules.get("_checkpoint_wrapped_module") if name == "module" else None
        return view_of(unit, unit._own_class) if checkpointed is None else checkpointed
    member = vars(Interface).get(name, _NONE)
    if member is not _NONE:
        return member.__get__(unit, type(unit))
    return attributes_of(unit).get(name, _NONE)


def adopt(unit: Any, record: Record, is_outermost: bool) -> None:
    """Lets ``unit``, just sharded by ``fully_shard``, do as FSDP1's, but for what ``record`` has switched off."""
    belongs_to(unit, record, is_outermost)
    torch_private.remove_hooks(unit)
    reduce_as_fsdp1(unit)
    if keeps(unit, "whole_state_dicts"):
        follow_default_type(unit)
    if _has_own_hooks(unit):
        _hooked_before.add(unit)
    if is_outermost:
        _warn_of_hidden_names(unit)
    own = vars(unit).get("forward")
    sharded: Any = type(unit)
    unit.__class__ = _class_of(sharded, keeps(unit, "class_names"))
    if own is not None:

        @functools.wraps(own, updated=())
        def forward(*args: Any, **kwargs: Any) -> Any:
            return run_gathered(unit, own, args, kwargs)

        vars(unit)["forward"] = torch_private.run_outside_of_graphs(forward)


# What FSDP1's wrapper answered by itself, whatever the module in it had of that name.
_HIDDEN = ("module", "no_sync", "clip_grad_norm_", "zero_grad", "eval", "state_dict")


def _warn_of_hidden_names(model: nn.Module) -> None:
    """Says which names mean the model's own now: without a wrapper nothing is in front of them."""
    classes = type(model).__mro__  # FSDP2's class, FSDPModule, the model's own
    own = classes[2 : classes.index(nn.Module)]
    given = {name for cls in own for name in vars(cls)} | vars(model).keys() | model._modules.keys()
    names = [name for name in _HIDDEN if name in given]
    if names:
        warnings.warn(
            f"{classes[2].__name__} has {' and '.join(names)} of its own, which FSDP1's wrapper hid: asked for on the "
            "model they are its own now. Rename them, or use --form bridge (fsdp-migrate explain FSDP005)",
            stacklevel=5,
        )


def _has_own_hooks(unit: nn.Module) -> bool:
    """Whether hooks of the program are there, such as the old ``weight_norm``'s."""
    hooks = (*unit._forward_pre_hooks.values(), *unit._forward_hooks.values())
    ours = __name__.rpartition(".")[0]
    return any(not getattr(hook, "__module__", "").startswith(ours) for hook in hooks)


@functools.cache
def _class_of(sharded: type[Any], keeps_name: bool) -> type[Any]:
    """The class of a unit, from FSDP2's."""
    own: type[Any] = sharded.__mro__[2]  # FSDP2's class, FSDPModule, the model's own
    members: dict[str, Any] = {"_own_class": own}
    if not hasattr(own, "_is_root"):
        members["_is_root"] = vars(Interface)["_is_root"]
    metaclass: Any = type(sharded)
    cls: Any = metaclass(sharded.__name__, (InPlaceUnit, sharded), members)

    @functools.wraps(own.forward, updated=())
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return run_gathered(self, super(cls, self).forward, args, kwargs)

    cls.forward = torch_private.run_outside_of_graphs(forward)
    if keeps_name:
        for name in ("__name__", "__qualname__", "__module__"):
            setattr(cls, name, getattr(own, name))
    return cls  # type: ignore[no-any-return]
