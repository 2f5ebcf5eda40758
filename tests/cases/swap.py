"""Puts a program on the bridge: its imports change, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

_MODULES = re.compile(
    r"\btorch\.distributed\.fsdp(\.(api|wrap|fully_sharded_data_parallel))?\b(?!\._)"
)


def swap_imports(folder: Path) -> None:
    """Have every file of a program take FSDP1's names from the runtime."""
    for path in folder.rglob("*.py"):
        text = path.read_text("utf-8")
        path.write_text(_MODULES.sub("fsdp_migrate.runtime", text), "utf-8")
