"""A sharded model's state but for its values: over how many ranks its units are, in which dtypes, and its mode."""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Iterator
from typing import Any

from torch import nn

from .. import layouts

_SHOWN = 3
_FLAT = "_flat_param"
_NAMES = 400
"""Of a model with more parameters this is not followed."""

State = dict[str, str]


class Units:
    """Reads the units of models, again where a module has become one or has another mode."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[nn.Module], int, State]] = {}

    def of(self, model: nn.Module) -> State:
        """The texts by what they are about; none where the model has too many parameters."""
        key = hash(tuple((id(type(m)), id(m), m.training) for m in model.modules()))
        known = self._known.get(id(model))
        if known is not None and known[0]() is model and known[1] == key:
            return known[2]
        state: State = {}
        if 0 < len([*model.parameters()]) <= _NAMES:
            state = {
                "<units>": _units(model),
                "<precision>": _precision(model),
                "<mode>": _mode(model),
            }
        self._known[id(model)] = weakref.ref(model), key, state
        return state


def _mode(model: nn.Module) -> str:
    """`training`, `evaluation; otherwise: head`: the model's mode, and the modules that have the other one."""
    # A wrapper has the name of the module in it, which comes later and counts.
    trains = {layouts.clean(name): module.training for name, module in model.named_modules()}
    own = "evaluation"
    if trains[""]:
        own = "training"
    other = sorted(name for name, is_on in trains.items() if is_on != trains[""])
    return own + _listed("; otherwise: ", other)


def _precision(model: nn.Module) -> str:
    """`bfloat16, reduced in float32`, with the parameters of each pair of dtypes where there are several."""
    names: dict[str, list[str]] = {}
    for path, module in model.named_modules():
        for _, name, *dtypes in layouts.units_dtypes(module):
            compute, reduce = [str(dtype).removeprefix("torch.") for dtype in dtypes]
            names.setdefault(f"{compute}, reduced in {reduce}", []).append(
                layouts.clean(path, name)
            )
    if len(names) == 1:
        return next(iter(names))
    return "; ".join(how + _listed(": ", sorted(names[how])) for how in sorted(names))


def _units(model: nn.Module) -> str:
    """`2 shards, 1 copy; in no unit: head.weight`."""
    named = {layouts.clean(n) for n, _ in model.named_parameters() if not n.endswith(_FLAT)}
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
    return text + _listed("; in no unit: ", sorted(named - inside))


def _listed(begin: str, names: list[str]) -> str:
    if not names:
        return ""
    if len(names) > _SHOWN:
        code = zlib.crc32("\n".join(names).encode()) & 0xFFFF
        return f"{begin}{', '.join(names[:_SHOWN])}, … of {len(names)} #{code:04x}"
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
