"""Where the programs ran, for the reader of a report."""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Sequence
from importlib import metadata

from fsdp_migrate import __version__


def describe(device: str, launcher: str, ranks: int, arguments: Sequence[str]) -> dict[str, str]:
    """Names and values; the programs run under this interpreter, so its packages are theirs."""
    return {
        "fsdp-migrate": __version__,
        "torch": _version("torch"),
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": device,
        "launcher": launcher,
        "ranks": str(ranks),
        "threads of a rank": os.environ.get("OMP_NUM_THREADS", "1"),
        "arguments": shlex.join(arguments) or "none",
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"
