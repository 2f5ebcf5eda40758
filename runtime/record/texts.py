"""Values as Python text, to compare ranks and runs, for a reader, and for `migrate --values`.

`ShardingStrategy.FULL_SHARD`, `torch.bfloat16`; what has no text of its own is in angle brackets.
"""

from __future__ import annotations

import functools
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from .settings import SETTINGS

EMULATED = bool(SETTINGS.get("emulate"))
_CURRENT = "torch.cuda.current_device()"


def given(name: str, value: Any) -> str:
    """The text of an argument; a device that the program has made current is written as such."""
    if name != "device_id" or value is None:
        return text(value)
    if EMULATED and not isinstance(value, int):  # `emulate` has made it the CPU
        return _CURRENT
    device = torch.device("cuda", value) if isinstance(value, int) else torch.device(value)
    index = value if isinstance(value, int) else device.index
    if device.type != "cuda" and not EMULATED:
        return text(device)
    return _CURRENT if index in (None, torch.cuda.current_device()) else repr(index)


def text(value: Any) -> str:
    """A value as a program with FSDP1's usual imports would write it; `<type>` where there is no such text."""
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, torch.dtype):
        return str(value)
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, type):
        public = getattr(torch.nn, value.__name__, None) is value
        return f"{'torch.nn' if public else value.__module__}.{value.__qualname__}"
    if is_dataclass(value):
        values = {f.name: getattr(value, f.name) for f in fields(value)}
        changed = [f.name for f in fields(value) if values[f.name] != f.default]
        return f"{type(value).__name__}({', '.join(f'{n}={text(values[n])}' for n in changed)})"
    if isinstance(value, tuple):
        return f"({', '.join(map(text, value))})"
    return _of_ranks(value)


def _of_ranks(value: Any) -> str:
    """The text of a mesh or a group, or the name of any other value."""
    if isinstance(value, DeviceMesh):
        shape, names = tuple(value.mesh.shape), value.mesh_dim_names
        return f"init_device_mesh({value.device_type!r}, {shape}, mesh_dim_names={names})"
    if isinstance(value, dist.ProcessGroup):
        return "dist.group.WORLD" if value is dist.group.WORLD else f"ProcessGroup({value.size()})"
    value = value.func if isinstance(value, functools.partial) else value
    name = getattr(value, "__qualname__", type(value).__name__)
    return f"<{name.replace('<', '').replace('>', '')}>"
