"""How a program is started: which launcher, with which command line, in which environment."""

import ast
import json
import os
import platform
import re
import shlex
import sys
from dataclasses import asdict
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

from fsdp_migrate import __version__, git
from fsdp_migrate.engine import parse_file
from fsdp_migrate.facts.program import Program
from fsdp_migrate.verify import folders, reproducible
from fsdp_migrate.verify.options import Options, Recording

# Programs load it by its path: it brings nothing else of this package into them.
RECORDER = Path(__file__).resolve().parent / "recorder"

_RANK_VARIABLES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
    "MASTER_PORT",
)  # fmt: skip

_STARTERS = ("multiprocessing.spawn", "multiprocessing.Process")
_CUDA = re.compile(rb"cuda|nccl", re.IGNORECASE)
_ASKS = re.compile(rb"cuda\.is_available|accelerator\.is_available|cuda\.device_count")
_PLAIN = Recording()


def choose(launcher: str, script: Path) -> str:
    """What `auto` means for this script: `python` if it starts its ranks itself, else `torchrun`."""
    if launcher != "auto":
        return launcher
    if _spawns(script):
        return "python"
    return "torchrun"


def _spawns(script: Path) -> bool:
    """Whether a script starts its own ranks: calls `spawn` or `Process` of multiprocessing."""
    if (file := parse_file(script)) is None:
        return False
    program = Program([file], [script], parse_file)
    names = [name for call in file.of(ast.Call) for name in program.dotted(call.func, file)]
    return any(name.endswith(_STARTERS) for name in names)


def needs_cuda(root: Path) -> bool:
    """Whether a program's files mention CUDA or NCCL; one that asks if there is a device may run without."""
    texts = [path.read_bytes() for path in root.rglob("*.py") if path.is_file()]
    return any(map(_CUDA.search, texts)) and not any(map(_ASKS.search, texts))


def command(program: folders.Program, how: Options, launcher: str, logs: Path) -> list[str]:
    """The command line of a program; under torchrun each rank prints to a file below `logs`."""
    line = [sys.executable]
    if launcher == "torchrun":
        if how.nodes:
            meeting = how.nodes.options(program.name)
        else:
            meeting = ["--standalone"]
        line += ["-m", "torch.distributed.run", *meeting, f"--nproc-per-node={how.ranks}"]
        # Without the dashes torchrun takes a script's option for an abbreviation of one of its own.
        line += [f"--log-dir={logs}", "--redirects=3", "--"]
    return [*line, str(program.script), *how.arguments]


def environment(
    program: folders.Program, device: str, records: Path, recording: Recording = _PLAIN
) -> dict[str, str]:
    """The environment of a program: the user's, with the recorder and without what changes a run."""
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
    # Relative paths of the user's start in the user's working folder.
    paths = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    recorder = RECORDER / "start"
    values["PYTHONPATH"] = os.pathsep.join([str(recorder), *paths])
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
    if how.device == "cpu":
        libraries = reproducible.SETTINGS
    else:
        libraries = {}
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": git.commit(program.source) or "none",
        "fsdp-migrate": __version__,
        "torch": metadata.version("torch"),
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": how.device,
        "launcher": choose(how.launcher, program.script),
        "ranks": str(how.ranks),
        "threads of a rank": os.environ.get("OMP_NUM_THREADS", "1"),
        **{name: os.environ.get(name, value) for name, value in libraries.items()},
        "arguments": shlex.join(how.arguments) or "none",
    }
