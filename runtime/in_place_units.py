"""A unit that ``fully_shard`` made of a module itself, with what FSDP1's wrapper around it did and answered."""

from __future__ import annotations

import functools
import sys
import warnings
from typing import Any

from torch import nn

from . import torch_forward, torch_private
from .attributes import attributes_of
from .forms import WRAPPED, view_of
from .gradients import reduce_as_fsdp1
from .interface import Interface
from .notes import Notes, notes_of
from .own_members import NONE, of_the_model, own_first
from .pickled import as_before_sharding
from .refusals import PRIVATE_PARTS, PrivatePart
from .running import Unit, run_gathered
from .state_dict_types import follow_default_type


class InPlaceUnit(Unit):
    """Comes before FSDP2's class, and that before the model's own, in the class of a unit that is sharded in place."""

    _own_class: type[nn.Module]
    _delegates: bool  # whether the model's own class looks elsewhere for what it does not have

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A module of the model's own class: a slice of an ``nn.Sequential`` is no unit."""
        return cls._own_class(*args, **kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """The model's own class counts, or registers, its subclasses: this is none of them."""

    def __getattr__(self, name: str) -> Any:
        """What the model itself does not have may be FSDP1's, before what its own ``__getattr__`` finds elsewhere."""
        if self._delegates and _may_be_fsdp1s(self, name) and not _asks_itself(self):
            answer = _answer(self, name)
            if answer is not NONE:
                notes_of(self).acted("interface", name)  # type: ignore[arg-type]
                return answer
        try:
            return super().__getattr__(name)  # type: ignore[misc]
        except AttributeError:
            if name.startswith("__") or "interface" not in notes_of(self).quirks:  # type: ignore[arg-type]
                raise
            # Under FSDP1 the model's own methods did not see the wrapper: `hasattr(self, "rank")`.
            if name not in _METHODS and _asks_itself(self):
                raise
            answer = _answer(self, name)
            if answer is NONE:
                if name in PRIVATE_PARTS:
                    raise PrivatePart(name) from None
                raise
        notes_of(self).acted("interface", name)  # type: ignore[arg-type]
        return answer

    @torch_private.run_outside_of_graphs
    def _call_impl(self: Any, *args: Any, **kwargs: Any) -> Any:
        """``model(x)``: forward gathers the parameters, or with hooks this, so that they see what FSDP1's saw.

        FSDP1 ran hooks of the module inside of its wrapper: those of before, and those of modules that a program found by
        their class. Of the outermost unit a program has the wrapper, whose hooks ran outside.
        """
        call = super()._call_impl  # type: ignore[misc]
        hooked = self._forward_pre_hooks or self._forward_hooks
        if hooked and (notes_of(self).was_hooked or torch_private.is_root(self) is False):
            return run_gathered(self, call, args, kwargs)
        return call(*args, **kwargs)

    def _get_name(self) -> str:
        """The class in the representation of a model."""
        notes = notes_of(self)  # type: ignore[arg-type]
        if "class_names" in notes.quirks:
            notes.acted("class_names", "print")
        return super()._get_name()  # type: ignore[misc,no-any-return]


_OWN_FIRST = own_first(of_the_model)
_METHODS = {name for name, member in vars(Interface).items() if not isinstance(member, property)}


def _asks_itself(unit: Any) -> bool:
    """Whether a method of ``unit`` reads the attribute."""
    frame = sys._getframe(2)
    # Not of every frame: before Python 3.13 it would go on to hold what its variables hold now, such as a model.
    return "self" in frame.f_code.co_varnames and frame.f_locals.get("self") is unit


def _may_be_fsdp1s(unit: Any, name: str) -> bool:
    """Whether the model itself has nothing by a name, which its own ``__getattr__`` may find in a part of it."""
    if name.startswith("__") or "interface" not in notes_of(unit).quirks:
        return False
    members = (unit._modules, unit._parameters, unit._buffers)
    return not any(name in each for each in members)


def _answer(unit: Any, name: str) -> Any:
    """What FSDP1's wrapper around ``unit`` has by that name."""
    if name in ("module", WRAPPED):
        checkpointed = None
        if name == "module":
            checkpointed = unit._modules.get("_checkpoint_wrapped_module")
        if checkpointed is not None:
            return checkpointed
        as_before_sharding(unit._own_class)
        return view_of(unit, unit._own_class)
    member = vars(Interface).get(name, NONE)
    if member is not NONE:
        return member.__get__(unit, type(unit))
    return attributes_of(unit).get(name, NONE)


def adopt(unit: Any, notes: Notes) -> None:
    """Lets ``unit``, just sharded by ``fully_shard``, do as FSDP1's, but for what its notes say is switched off."""
    torch_forward.remove_hooks(unit)
    reduce_as_fsdp1(unit, notes)
    if "whole_state_dicts" in notes.quirks:
        follow_default_type(unit)
    notes.was_hooked = _has_own_hooks(unit)
    if notes.is_outermost(unit):
        _warn_of_hidden_names(unit)
    own = vars(unit).get("forward")
    sharded: Any = type(unit)
    unit.__class__ = _class_of(sharded, "class_names" in notes.quirks)
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
            f"{classes[2].__name__} defines {' and '.join(names)} itself. FSDP1's wrapper hid that; now the model's own is "
            "used. Rename it, or use --form bridge (fsdp-migrate explain FSDP005)",
            stacklevel=5,
        )


def _has_own_hooks(unit: nn.Module) -> bool:
    """Whether hooks of the program are there, such as the old ``weight_norm``'s."""
    hooks = (*unit._forward_pre_hooks.values(), *unit._forward_hooks.values())
    ours = __name__.rpartition(".")[0]
    return any(not getattr(hook, "__module__", "").startswith(ours) for hook in hooks)


def _class_for_programs(unit: Any) -> type[Any]:
    """What a unit says of its class: the model's own, for ``super(self.__class__, self)`` and for classes as keys.

    ``torch.compile`` asks, too, and would call the forward of that class without the unit's, which gathers.
    """
    return type(unit) if torch_private.is_compiling() else unit._own_class


@functools.cache
def _class_of(sharded: type[Any], keeps_name: bool) -> type[Any]:
    """The class of a unit, from FSDP2's."""
    own: type[Any] = sharded.__mro__[2]  # FSDP2's class, FSDPModule, the model's own
    members: dict[str, Any] = {"_own_class": own, **_OWN_FIRST}
    members["_delegates"] = own.__getattr__ is not nn.Module.__getattr__
    if not hasattr(own, "_is_root"):
        members["_is_root"] = vars(Interface)["_is_root"]
    if keeps_name:
        members["__class__"] = property(_class_for_programs)
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
