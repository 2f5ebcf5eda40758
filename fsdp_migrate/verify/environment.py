"""Where the programs ran, for the reader of a report."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

from fsdp_migrate import __version__, git
from fsdp_migrate.verify.folders import Program
from fsdp_migrate.verify.launch import choose
from fsdp_migrate.verify.options import Options


def describe(how: Options, program: Program) -> dict[str, str]:
    """Names and values; the programs run under this interpreter, so its packages are theirs."""
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": git.commit(program.source) or "none",
        "fsdp-migrate": __version__,
        "torch": _version("torch"),
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": how.device,
        "launcher": choose(how.launcher, program.script).value,
        "ranks": str(how.ranks),
        "threads of a rank": os.environ.get("OMP_NUM_THREADS", "1"),
        "arguments": shlex.join(how.arguments) or "none",
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"
