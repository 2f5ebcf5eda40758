"""The module that FSDP1's wrapper wrapped, for a model that is sharded in place: ``model.module``.

FSDP1's was another object, of the model's own class and without FSDP1's interface. Programs rely on that: ``while
hasattr(m, "module"): m = m.module`` ends there.
"""

from __future__ import annotations

from weakref import ReferenceType, WeakKeyDictionary, ref

from torch import nn

# A view keeps its unit, not the other way round.
_views: WeakKeyDictionary[nn.Module, ReferenceType[nn.Module]] = WeakKeyDictionary()
_units: WeakKeyDictionary[nn.Module, nn.Module] = WeakKeyDictionary()


def view_of(unit: nn.Module, cls: type[nn.Module]) -> nn.Module:
    """``unit`` as a module of its own class ``cls``: the same attributes, children, parameters and hooks."""
    known = _views.get(unit)
    view = None if known is None else known()
    if view is None:
        view = object.__new__(cls)
        object.__setattr__(view, "__dict__", vars(unit))
        _views[unit], _units[view] = ref(view), unit
    return view


def unit_of(module: nn.Module) -> nn.Module:
    """The unit that ``module`` is a view of, or ``module`` itself."""
    return _units.get(module, module)
