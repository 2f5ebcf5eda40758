"""What the tool makes of FSDP1 programs on the bridge: other imports, and nothing else."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import torch.distributed.fsdp as fsdp
from torch.distributed.fsdp import wrap

import fsdp_migrate.migration  # noqa: F401  (imported once, before ranks are forked)
from fsdp_migrate.engine import analyse_source
from fsdp_migrate.settings import Options
from fsdp_migrate.source import Source

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


@cache
def swap(source: str) -> str:
    """What ``--form bridge`` makes of a program: imports change, and no other line does."""
    file = Source(Path("program.py"), "program.py", source.encode())
    report = analyse_source(file, Options(form="bridge"))
    assert not report.errors, report.errors
    (change,) = report.changes
    after = change.after.decode()
    lines = zip(source.splitlines(), after.splitlines(), strict=True)
    assert all("import" in old for old, new in lines if old != new)
    return after


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
