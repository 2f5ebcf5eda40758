"""A sharded model's state but for its values: over how many ranks its units are, what is in none, and its mode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from .. import layouts

_SHOWN = 3
_FLAT = "_flat_param"
_NAMES = 400
"""Of a model with more parameters this is not followed."""


def mode(model: nn.Module) -> str:
    """`training`, `evaluation; otherwise: head`: the model's mode, and the modules that have the other one."""
    # A wrapper has the name of the module in it, which comes later and counts.
    trains = {layouts.clean(name): module.training for name, module in model.named_modules()}
    own = "evaluation"
    if trains[""]:
        own = "training"
    other = sorted(name for name, is_on in trains.items() if is_on != trains[""])
    return own + _listed("; otherwise: ", other)


def units(model: nn.Module) -> str:
    """`2 shards, 1 copy; in no unit: head.weight`; empty where the model has too many parameters."""
    named = [layouts.clean(name) for name, _ in model.named_parameters()]
    if not 0 < len(named) <= _NAMES:
        return ""
    found: set[tuple[int, int]] = set()
    inside: set[str] = set()
    paths = {id(module): path for path, module in model.named_modules()}
    for module in model.modules():
        for owner, name, shards, copies in _divided(module):
            inside.add(layouts.clean(paths.get(id(owner), ""), name))
            found.add((shards, copies))
    text = " and ".join(
        f"{_counted(shards, 'shard', 'shards')}, {_counted(copies, 'copy', 'copies')}"
        for shards, copies in sorted(found)
    )
    return text + _listed("; in no unit: ", sorted({*named} - inside - {_FLAT}))


def _listed(begin: str, names: list[str]) -> str:
    if not names:
        return ""
    if len(names) > _SHOWN:
        return f"{begin}{', '.join(names[:_SHOWN])}, … of {len(names)}"
    return f"{begin}{', '.join(names)}"


def _counted(count: int, one: str, more: str) -> str:
    if count > 1:
        return f"{count} {more}"
    return f"{count} {one}"


_Divided = tuple[nn.Module, str, int, int]
"""A parameter by its module and its name in it, over how many ranks it is sharded, and how many such groups have it."""


def _divided(module: nn.Module) -> Iterator[_Divided]:
    """The parameters of a unit."""
    members = layouts.flat_members(module)
    if members:
        flat: Any = members[0]
        handle: Any = module.__dict__["_handle"]
        shards = handle.process_group.size()
        copies = 1
        nodes = getattr(module, "_inter_node_pg", None)
        if not handle.uses_sharded_strategy:
            copies = shards
            shards = 1
        elif nodes is not None:
            copies = nodes.size()
        for info in (*flat._param_infos, *flat._shared_param_infos):
            yield info.module, info.param_name, shards, copies
    for group in layouts.fsdp2_groups(module):
        for parameter in group.fsdp_params:
            sharded = parameter.sharded_param
            mesh = sharded.device_mesh
            copies = 1
            for dimension, placement in enumerate(sharded.placements):
                if placement.is_replicate():
                    copies *= mesh.size(dimension)
            place = parameter._module_info
            shards = mesh.size() // copies
            yield place.module, place.param_name, shards, copies
            for other, name in zip(place.shared_modules, place.shared_param_names, strict=False):
                yield other, name, shards, copies
