"""Parameters that two units share: a tie that sharding would cut."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from torch import nn


def check_ties(
    root: nn.Module, units: Iterable[list[nn.Module]], ignored: Collection[nn.Parameter] = ()
) -> None:
    """Refuses a parameter that belongs to more than one unit.

    Each unit shards its own parameters, so that the two ends of such a tie would go on as two parameters.
    ``fully_shard`` says so from torch 2.12 on and cuts the tie in silence before. FSDP1 failed in
    its first forward, or with ``use_orig_params=False`` cut the tie in silence as well.

    Args:
        root: the model, for the names.
        units: the modules of each unit.
        ignored: parameters that no unit shards.

    Raises:
        ValueError: names both ends.
    """
    names = {id(module): name for name, module in root.named_modules()}
    seen: dict[nn.Parameter, tuple[int, str]] = {}
    for index, modules in enumerate(units):
        for module in modules:
            for name, parameter in module.named_parameters(recurse=False):
                if parameter in ignored:
                    continue
                path = f"{names[id(module)]}.{name}".removeprefix(".")
                unit, first = seen.setdefault(parameter, (index, path))
                if unit != index:
                    raise ValueError(
                        f"{path!r} and {first!r} are one parameter in two units, and sharding would "
                        "cut the tie: change auto_wrap_policy so that one unit holds both, such as "
                        "the whole model's"
                    )
