"""Which modules become units, in which order: FSDP1's partition, without wrapping anything.

It decides memory, the number of collectives and the last bits of reduced gradients. FSDP1's own code for this is
``_auto_wrap`` (``torch/distributed/fsdp/_wrap_utils.py``).
"""

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from torch import nn
from torch.distributed.fsdp.wrap import _post_order_apply, _recursive_wrap

from .api import as_mixed_precision


class Unit(NamedTuple):
    """A module that is sharded as one group; ``kwargs`` are the arguments in which it differs from the root."""

    name: str
    module: nn.Module
    kwargs: dict[str, Any]


def plan_units(
    module: nn.Module,
    policy: Any,
    *,
    ignored_modules: Collection[nn.Module] = (),
    ignored_parameters: Iterable[nn.Parameter] = (),
    mixed_precision: Any = None,
) -> list[Unit]:
    """The units of ``module`` under ``policy``: children before parents, ``module`` itself last.

    ``policy`` is an object with ``_run_policy`` or a function (see ``wrap.py``). Ignored modules are not looked into,
    and a size-based policy does not count ignored parameters. The module classes that ``mixed_precision`` leaves out
    become units, too. A module in several places is one unit; so is one without a ``forward``.
    """
    ignored = set(ignored_modules)
    mixed_precision = as_mixed_precision(mixed_precision)
    exempt = tuple(mixed_precision._module_classes_to_ignore) if mixed_precision else ()

    selected: dict[nn.Module, dict[str, Any]] = {}
    if hasattr(policy, "_run_policy"):
        selected = policy._run_policy(module, ignored, {})
        for candidate in module.modules():
            if candidate not in ignored and isinstance(candidate, exempt):
                selected[candidate] = {**selected.get(candidate, {}), "mixed_precision": None}
    elif callable(policy):

        def ask(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
            if policy(module=module, recurse=recurse, nonwrapped_numel=nonwrapped_numel):
                return True
            # FSDP1 then recurses everywhere, to find all modules of these classes.
            return mixed_precision is not None and (recurse or isinstance(module, exempt))

        def choose(module: nn.Module) -> nn.Module:
            selected[module] = {"mixed_precision": None} if isinstance(module, exempt) else {}
            return module

        _recursive_wrap(
            module, ask, choose, ignored, set(ignored_parameters), only_wrap_children=True
        )
    else:
        raise TypeError(
            f"auto_wrap_policy={policy!r} is not a wrap policy: pass a function, ModuleWrapPolicy, "
            "CustomPolicy or None"
        )

    names = {submodule: name for name, submodule in module.named_modules()}
    units = []

    def add(submodule: nn.Module) -> None:
        if submodule in selected and submodule is not module:
            units.append(Unit(names[submodule], submodule, selected[submodule]))

    _post_order_apply(module, add)
    return [*units, Unit("", module, {})]
