"""``auto_wrap_policy``: units inside a model, made by its constructor, and which units FSDP1 refuses."""

import warnings
from collections.abc import Collection, Iterator

from torch import nn

from .arguments import Arguments, is_unit
from .ignored import Ignored
from .materialize import own_modules
from .plan import Unit, plan_units
from .precision import run_in_full_precision


def plan_checked(arguments: Arguments) -> list[Unit]:
    """The units that the policy makes of the model, itself the last; raises what FSDP1 raises for them."""
    module = arguments.module
    policy = arguments.auto_wrap_policy
    ignored = arguments.ignored
    if policy is None:
        return [Unit("", module, {})]
    for name, submodule in module.named_modules():
        if is_unit(submodule):
            raise ValueError(
                "FSDP auto wrapping requires modules to not already have FSDP applied but found "
                f"{name} in\n{module}"
            )
    units = plan_units(
        module,
        policy,
        ignored_modules=ignored.modules,
        ignored_parameters=ignored.parameters,
        mixed_precision=arguments.precision,
    )
    check_ties(module, [unit.module for unit in units], ignored)
    if hasattr(policy, "_run_policy"):  # FSDP1 does not check what a function selects
        _check_frozen(module, units[:-1], ignored, arguments.use_orig_params)
    if arguments.precision is not None:
        _exempt(module, tuple(arguments.precision._module_classes_to_ignore))
    return units


def _exempt(root: nn.Module, classes: tuple[type[nn.Module], ...]) -> None:
    """Lets modules of ``classes``, units of their own, run without mixed precision."""
    exempt = [module for module in root.modules() if isinstance(module, classes)]
    for module in exempt:
        run_in_full_precision(module)
    if exempt:
        warnings.warn(
            "Both mixed precision and an auto_wrap_policy were specified to FSDP, where the wrapped "
            f"module has submodules of type:\n{ {type(module) for module in exempt} }\nThese modules "
            "will be wrapped as separate FSDP instances with mixed precision disabled.",
            stacklevel=4,
        )


def check_ties(root: nn.Module, units: Collection[nn.Module], ignored: Ignored) -> None:
    """Raises ValueError for a parameter that belongs to more than one of ``units``, which are not made yet.

    Newer releases of ``fully_shard`` say so, and older ones cut the tie in silence. FSDP1 failed in its first forward,
    or with ``use_orig_params=False`` cut the tie in silence as well.
    """
    seen: dict[nn.Parameter, str] = {}
    for parameters in _of_each(root, units, ignored):
        for parameter, path in parameters.items():
            if parameter in seen:
                raise ValueError(
                    f"{path!r} and {seen[parameter]!r} are the same parameter in two units, and sharding would "
                    "untie them: change auto_wrap_policy so that one unit contains both"
                )
        seen.update(parameters)


def _of_each(
    root: nn.Module, units: Collection[nn.Module], ignored: Ignored
) -> Iterator[dict[nn.Parameter, str]]:
    """What each unit will hold: its parameters, with their names in ``root``."""
    names = {module: f"{name}." if name else "" for name, module in root.named_modules()}
    boundaries = set(units)
    for unit in units:
        if is_unit(unit):
            yield {}
            continue
        yield {
            parameter: names[module] + name
            for module in own_modules(unit, boundaries)
            for name, parameter in module.named_parameters(recurse=False)
            if parameter not in ignored.parameters
        }


def _check_frozen(
    root: nn.Module, units: list[Unit], ignored: Ignored, use_orig_params: bool
) -> None:
    """Raises ValueError, or with ``use_orig_params`` warns, for units with both frozen and trained parameters.

    With FSDP1's texts (``_wrap_utils.py``, ``_validate_frozen_params``), although the memory that they speak of is
    FSDP1's.
    """
    held = _of_each(root, [unit.module for unit in units], ignored)
    for unit, parameters in zip(units, held, strict=True):
        trained = [name for p, name in parameters.items() if p.requires_grad]
        frozen = [name for p, name in parameters.items() if not p.requires_grad]
        if not trained or not frozen:
            continue
        message = f"{unit.name} has both parameters with requires_grad=True and False."
        if use_orig_params:
            numel = sum(p.numel() for p in parameters)
            message += (
                " We do not recommend wrapping such modules since the gradient memory usage will be "
                f"higher than expected ({numel} numel instead of "
                f"{sum(p.numel() for p in parameters if p.requires_grad)} numel before sharding via "
                "reduce-scatter). "
            )
        else:
            message += " FSDP does not support wrapping such modules when use_orig_params=False. "
        message += (
            "If possible, wrap the frozen parameters with FSDP separately.\n"
            f"The following parameters have requires_grad=True:\n{trained}\n"
            f"The following parameters have requires_grad=False:\n{frozen}"
        )
        if not use_orig_params:
            raise ValueError(message)
        warnings.warn(message, stacklevel=5)
