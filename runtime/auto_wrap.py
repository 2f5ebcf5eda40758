"""``auto_wrap_policy``: units inside a model, made by its constructor."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch import nn

from .frozen import check_frozen
from .materialize import own_modules
from .plan import plan_units
from .precision import run_in_full_precision
from .ties import check_ties
from .units import Arguments, Common, is_unit


def wrap_children(
    module: nn.Module,
    policy: Any,
    arguments: Arguments,
    common: Common,
    wrap: Callable[[nn.Module, Arguments, Common], nn.Module],
) -> None:
    """Puts the units that ``policy`` selects in the place of the modules that they wrap."""
    for name, submodule in module.named_modules():
        if is_unit(submodule):
            raise ValueError(
                "FSDP auto wrapping requires modules to not already have FSDP applied but found "
                f"{name} in\n{module}"
            )
    units = plan_units(
        module,
        policy,
        ignored_modules=common.ignored.modules,
        ignored_parameters=common.ignored.parameters,
        mixed_precision=arguments.precision,
        containers=True,
    )
    check_ties_between(module, [unit.module for unit in units], common)
    if hasattr(policy, "_run_policy"):  # FSDP1 does not check what a function selects
        check_frozen(module, units[:-1], common.ignored.parameters, arguments.use_orig_params)
    if arguments.precision is not None:
        _exempt(module, tuple(arguments.precision._module_classes_to_ignore))
    places: dict[nn.Module, list[tuple[nn.Module, str]]] = {}
    for parent in module.modules():
        for name, child in parent._modules.items():
            if child is not None:
                places.setdefault(child, []).append((parent, name))
    for unit in units[:-1]:
        wrapper = wrap(unit.module, arguments.for_unit(unit.name, unit.kwargs), common)
        for parent, name in places[unit.module]:
            setattr(parent, name, wrapper)


def _exempt(root: nn.Module, classes: tuple[type[nn.Module], ...]) -> None:
    """Lets modules of ``classes``, units of their own, run without mixed precision."""
    exempt = [module for module in root.modules() if isinstance(module, classes)]
    for module in exempt:
        run_in_full_precision(module)
    if exempt:
        warnings.warn(
            "Both mixed precision and an auto_wrap_policy were specified to FSDP, where the wrapped "
            f"module has submodules of type:\n{ {type(module) for module in exempt} }\nThese modules "
            "will be wrapped as separate FSDP instacnes with mixed precision disabled.",
            stacklevel=4,
        )


def check_ties_between(root: nn.Module, units: list[nn.Module], common: Common) -> None:
    """:func:`check_ties` of units that are not made yet."""
    boundaries = set(units) | common.ignored.modules
    owned = (own_modules(unit, boundaries) for unit in units if not is_unit(unit))
    check_ties(root, owned, common.ignored.parameters)
