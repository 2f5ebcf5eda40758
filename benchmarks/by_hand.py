"""Runs a program as its user would, with CUDA emulated and nothing else of `verify`."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from fsdp_migrate.verify.launch import RECORDER

STANDINS = Path(__file__).parent / "standins"
EMULATION = """\
import importlib.util, runpy, sys

spec = importlib.util.spec_from_file_location(
    "_fsdp_migrate_record", {record!r} + "/__init__.py", submodule_search_locations=[{record!r}]
)
sys.modules[spec.name] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
from _fsdp_migrate_record import cpu, emulate, imports

imports.install(imports.Copies([]))
cpu.install()
emulate.install({ranks})
sys.modules["sitecustomize"].__dict__.update(runpy.run_path({next!r}, run_name="sitecustomize"))
"""


def measured(
    command: list[str], folder: Path, paths: list[Path], status: int = 0
) -> tuple[float, float, str]:
    """Seconds of the clock and of the processors that a command takes, and what it prints.

    Each line of that begins with the second in which it came. Raises SystemExit where the command ends with another status.
    """
    inherited = [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*map(str, paths), *inherited]),
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",  # as where CUDA is emulated
        "CUDA_VISIBLE_DEVICES": "",
    }
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        lines = [f"{time.monotonic() - begun:.0f} {line}" for line in process.stdout]
    seconds, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode != status:
        raise SystemExit(f"{' '.join(command)} failed:\n{''.join(lines[-80:])}")
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, used, "".join(lines)


def emulation(scratch: Path, ranks: int) -> Path:
    """A folder that emulates CUDA in each Python that has it on its path, the stand-ins with it."""
    start = scratch / "start"
    start.mkdir()
    (start / "sitecustomize.py").write_text(
        EMULATION.format(
            record=str(RECORDER), ranks=ranks, next=str(STANDINS / "sitecustomize.py")
        ),
        "utf-8",
    )
    return start


def torchrun(ranks: int, entry: str, *arguments: str) -> list[str]:
    """The command that starts a program on so many ranks of this machine."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*command, f"--nproc-per-node={ranks}", "--", entry, *arguments]
