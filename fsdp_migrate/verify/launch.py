"""How a program is started: which launcher, with which command line, in which environment."""

from __future__ import annotations

import ast
import json
import os
import platform
import shlex
import sys
from dataclasses import asdict
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

from fsdp_migrate import __version__, git
from fsdp_migrate.engine import parse_file
from fsdp_migrate.facts.program import Program
from fsdp_migrate.vendor import runtime_folder
from fsdp_migrate.verify import folders, reproducible
from fsdp_migrate.verify.options import Launcher, Options, Recording

_RANK_VARIABLES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
    "MASTER_PORT",
)  # fmt: skip

_STARTERS = ("multiprocessing.spawn", "multiprocessing.Process")
_PLAIN = Recording()

_SITECUSTOMIZE = '''\
"""Starts the recorder of fsdp-migrate, then runs the sitecustomize that this one hides."""

import importlib.machinery
import importlib.util
import os
import sys


def _record(folder):
    spec = importlib.util.spec_from_file_location(
        "_fsdp_migrate_record", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    module.start()


def _go_on():
    here = os.path.dirname(os.path.abspath(__file__))
    rest = [path for path in sys.path if os.path.abspath(path or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_record({folder!r})
_go_on()
'''


def choose(launcher: Launcher, script: Path) -> Launcher:
    """What `auto` means for this script."""
    if launcher is not Launcher.AUTO:
        return launcher
    return Launcher.PYTHON if _spawns(script) else Launcher.TORCHRUN


def _spawns(script: Path) -> bool:
    """Whether a script starts its own ranks: calls `spawn` or `Process` of multiprocessing."""
    if (file := parse_file(script)) is None:
        return False
    program = Program([file], [script], parse_file)
    names = (name for call in file.of(ast.Call) for name in program.dotted(call.func, file))
    return any(name.endswith(_STARTERS) for name in names)


def command(program: folders.Program, how: Options, launcher: Launcher, logs: Path) -> list[str]:
    """The command line of a program; under torchrun each rank prints to a file below `logs`."""
    line = [sys.executable]
    if launcher is Launcher.TORCHRUN:
        meeting = how.nodes.options(program.name) if how.nodes else ["--standalone"]
        line += ["-m", "torch.distributed.run", *meeting, f"--nproc-per-node={how.ranks}"]
        # Without the dashes torchrun takes a script's option for an abbreviation of one of its own.
        line += [f"--log-dir={logs}", "--redirects=3", "--"]
    return [*line, str(program.script), *how.arguments]


def environment(
    program: folders.Program, device: str, records: Path, start: Path, recording: Recording = _PLAIN
) -> dict[str, str]:
    """The environment of a program: the user's, with the recorder and without what changes a run.

    `start` is an empty folder, for the module that starts the recorder.
    """
    folder = runtime_folder() / "record"
    start.joinpath("sitecustomize.py").write_text(
        _SITECUSTOMIZE.replace("{folder!r}", repr(str(folder))), encoding="utf-8"
    )
    values = {
        name: value
        for name, value in os.environ.items()
        if name not in _RANK_VARIABLES and not name.startswith(("TORCHELASTIC_", "FSDP_MIGRATE_"))
    }
    copied = (program.source, program.twin)
    settings = asdict(recording) | {
        "device": device,
        "copies": [[str(source), str(program.root)] for source in copied if source],
    }
    values["FSDP_MIGRATE_RECORD"] = str(records)
    values["FSDP_MIGRATE_SETTINGS"] = json.dumps(settings, default=str)
    if recording.emulate:
        # A compiled graph would make its tensors past the emulation.
        values["TORCHDYNAMO_DISABLE"] = "1"
    # Relative paths of the user's start in the user's working folder.
    paths = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    values["PYTHONPATH"] = os.pathsep.join([str(start), *paths])
    values["PYTHONHASHSEED"] = "0"
    # More threads sum in another order, and the ranks share the machine.
    values.setdefault("OMP_NUM_THREADS", "1")
    if device == "cpu":
        values["CUDA_VISIBLE_DEVICES"] = ""
        values = {**reproducible.SETTINGS, **values}
    else:
        values.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return values


def describe(how: Options, program: folders.Program) -> dict[str, str]:
    """Names and values; the programs run under this interpreter, so its packages are theirs."""
    libraries = reproducible.SETTINGS if how.device == "cpu" else {}
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": git.commit(program.source) or "none",
        "fsdp-migrate": __version__,
        "torch": metadata.version("torch"),
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": how.device,
        "launcher": choose(how.launcher, program.script).value,
        "ranks": str(how.ranks),
        "threads of a rank": os.environ.get("OMP_NUM_THREADS", "1"),
        **{name: os.environ.get(name, value) for name, value in libraries.items()},
        "arguments": shlex.join(how.arguments) or "none",
    }
