"""FSDP1 programs with their imports swapped, and nothing else: what runs on the bridge."""

from __future__ import annotations

import ast

import torch.distributed.fsdp as fsdp
from torch.distributed.fsdp import wrap

PACKAGE = "torch.distributed.fsdp"
_OTHERS = {
    "dcp": "import torch.distributed.checkpoint as dcp",
    "default_hooks": "from torch.distributed.algorithms._comm_hooks import default_hooks",
    "dist": "import torch.distributed as dist",
    "init_device_mesh": "from torch.distributed.device_mesh import init_device_mesh",
    "nn": "from torch import nn",
    "partial": "from functools import partial",
    "torch": "import torch",
}


def swap(source: str) -> str:
    """``source`` with FSDP1's names from the runtime."""
    return source.replace(PACKAGE, "fsdp_migrate.runtime")


def imports(code: str) -> list[str]:
    """The import statements that a piece of an FSDP1 program needs."""
    used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    lines = [line for name, line in _OTHERS.items() if name in used]
    if "FSDP" in used:
        lines.append(f"from {PACKAGE} import FullyShardedDataParallel as FSDP")
    for name in sorted(used):
        if name in fsdp.__all__:
            lines.append(f"from {PACKAGE} import {name}")
        elif name in vars(wrap) and name.rstrip("_").endswith(("wrap", "Policy", "policy")):
            lines.append(f"from {PACKAGE}.wrap import {name}")
    return lines
