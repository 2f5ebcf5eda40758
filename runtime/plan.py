"""Which modules become units, in which order: FSDP1's partition, without wrapping anything.

It decides memory, the number of collectives and the last bits of reduced gradients. FSDP1's own code for this is
``_auto_wrap`` (``torch/distributed/fsdp/_wrap_utils.py``) and ``_recursive_wrap`` (``wrap.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple

from torch import nn

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

    ``policy`` is an object with ``_run_policy`` or a function (see ``wrap.py``), of this package, torch's or the
    program's own. Ignored modules are not looked into, and a size-based policy does not count ignored parameters. The
    module classes that ``mixed_precision`` leaves out become units, too. A module in several places is one unit; so
    is one without a ``forward``.
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

        def ask(module: nn.Module, recurse: bool, numel: int) -> bool:
            if policy(module=module, recurse=recurse, nonwrapped_numel=numel):
                return True
            # FSDP1 then recurses everywhere, to find all modules of these classes.
            return mixed_precision is not None and (recurse or isinstance(module, exempt))

        for chosen in _replay(module, ask, ignored, set(ignored_parameters)):
            selected[chosen] = {"mixed_precision": None} if isinstance(chosen, exempt) else {}
    else:
        raise TypeError(
            f"auto_wrap_policy={policy!r} is not a wrap policy: pass a function, ModuleWrapPolicy, "
            "CustomPolicy or None"
        )

    names = {submodule: name for name, submodule in module.named_modules()}
    units = [
        Unit(names[submodule], submodule, selected[submodule])
        for submodule in _post_order(module, {module})
        if submodule in selected and submodule is not module
    ]
    return [*units, Unit("", module, {})]


def _post_order(module: nn.Module, visited: set[nn.Module]) -> Iterator[nn.Module]:
    for child in module.children():
        if child not in visited:
            visited.add(child)
            yield from _post_order(child, visited)
    yield module


def _replay(
    root: nn.Module,
    ask: Callable[[nn.Module, bool, int], bool],
    ignored_modules: set[nn.Module],
    ignored_parameters: set[nn.Parameter],
) -> list[nn.Module]:
    """What ``_recursive_wrap`` would wrap, from the same questions in the same order."""
    chosen: dict[nn.Module, None] = {}

    def visit(module: nn.Module) -> int:
        """Visits ``module``; returns how many parameter elements of it are in units now."""
        numel = sum(p.numel() for p in module.parameters() if p not in ignored_parameters)
        if not ask(module, True, numel):
            return 0
        in_units = sum(visit(child) for child in module.children() if child not in ignored_modules)
        if module is not root and ask(module, False, numel - in_units):
            chosen[module] = None
            return numel
        return in_units

    visit(root)
    return list(chosen)
