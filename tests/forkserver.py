"""A stand-in for the interpreters that `verify` starts: torch is imported once, then every process is forked.

A fresh interpreter takes some five seconds to import torch with FSDP, and torchrun with two ranks starts three of them.
Here a server imports torch once, with the recorder's patches of FSDP1 for the CPU, as a recorded program does. Each
rank is forked and starts as an interpreter would: with the environment of its run, that run's ``sitecustomize`` (hence
the recorder), and the script as ``__main__``. ``mp.spawn`` forks as well.

A few tests start real launchers, so that a difference between the two would show.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from fsdp_migrate.verify.processes import Outcome

# They are read when Python starts, or when torch is imported.
ENVIRONMENT = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
IMPORTED = (
    "torch",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint.state_dict",
)
TORCHRUN = ["-m", "torch.distributed.run"]

_exit = os._exit  # the recorder replaces it for the program


class ForkServer:
    """The tests' end of the server.

    Args:
        recorder: the folder ``fsdp_migrate/verify/recorder``.
    """

    def __init__(self, recorder: Path) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, str(recorder)],
            env={**os.environ, **ENVIRONMENT},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self,
        command: list[str],
        folder: Path,
        environment: dict[str, str],
        output: Path,
        timeout: float,
        look: Callable[[], bool] = lambda: False,
    ) -> Outcome:
        """Run a program to its end, as :func:`fsdp_migrate.verify.processes.run` does."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        request = [command[1:], str(folder), environment, str(output), timeout]
        print(json.dumps(request), file=self._server.stdin, flush=True)
        outcome = Outcome(*json.loads(self._server.stdout.readline()))
        look()
        return outcome

    def close(self) -> None:
        """End the server."""
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait()


class Server:
    """Runs programs, one after the other; it has imported torch."""

    def __init__(self) -> None:
        self.path = sys.path[1:]

    def serve(self) -> None:
        """Answer requests until there are no more."""
        requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(2, 1)
        for line in requests:
            command, folder, environment, output, timeout = json.loads(line)
            begin = time.monotonic()
            os.chdir(folder)
            torchrun = command[:2] == TORCHRUN
            run = self.torchrun if torchrun else self.python
            codes = run(command, environment, output, begin + timeout)
            late = None in codes and not any(codes)
            status = -1 if late else int(any(codes)) if torchrun else codes[0]
            print(json.dumps([status, time.monotonic() - begin, late]), file=answers, flush=True)

    def python(
        self, command: list[str], environment: dict[str, str], output: str, until: float
    ) -> list[int | None]:
        """Run `python SCRIPT ARGUMENTS`."""
        return _wait([self.fork(command, environment, output, output)], until)

    def torchrun(
        self, command: list[str], environment: dict[str, str], output: str, until: float
    ) -> list[int | None]:
        """Run `python -m torch.distributed.run OPTIONS -- SCRIPT ARGUMENTS`; the ranks' exit codes."""
        options, script = command[: command.index("--")], command[command.index("--") + 1 :]
        values = dict(option.split("=", 1) for option in options if "=" in option)
        store, port = _store()
        count, ranks = int(values["--nproc-per-node"]), []
        for rank in range(count):
            logs = Path(values["--log-dir"], "run", "attempt_0", str(rank))
            logs.mkdir(parents=True)
            ours = {**environment, **_variables(rank, count, port)}
            ranks.append(
                self.fork(script, ours, str(logs / "stdout.log"), str(logs / "stderr.log"))
            )
        codes = _wait(ranks, until)
        os.kill(store, signal.SIGKILL)
        os.waitpid(store, 0)
        _report(codes, output)
        return codes

    def fork(self, arguments: list[str], environment: dict[str, str], out: str, error: str) -> int:
        """Fork an interpreter, which leads a process group of its own."""
        child = os.fork()
        if child == 0:
            os.setsid()
            for path, number in ((out, 1), (error, 2)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), number)
            _interpret(arguments, environment, self.path)
        return child


def _variables(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What torchrun sets."""
    values = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": ranks,
        "GROUP_RANK": 0,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": True,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_RUN_ID": "run",
    }
    return {name: str(value) for name, value in values.items()}


def _store() -> tuple[int, int]:
    """A process with the store that ranks meet at, and its port."""
    read, write = os.pipe()
    child = os.fork()  # the store has threads, and what forks later had better have none
    if child == 0:
        import torch.distributed as dist

        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(write, str(store.port).encode())
        os.close(write)
        while True:
            signal.pause()
    os.close(write)
    with os.fdopen(read) as told:
        return child, int(told.read())


def _wait(processes: list[int], until: float) -> list[int | None]:
    """The exit codes; None for those that were ended, because another failed or the time was over."""
    codes: dict[int, int] = {}
    while len(codes) < len(processes) and not any(codes.values()) and time.monotonic() < until:
        time.sleep(0.005)
        for process in set(processes) - codes.keys():
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                codes[process] = os.waitstatus_to_exitcode(status)
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)  # with its own children
        if process not in codes:
            os.waitpid(process, 0)
    return [codes.get(process) for process in processes]


def _report(codes: list[int | None], output: str) -> None:
    """Say which ranks failed, as torchrun does."""
    with open(output, "a", encoding="utf-8") as file:
        for rank, code in enumerate(codes):
            if code:
                file.write(f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code}\n")


def _interpret(arguments: list[str], environment: dict[str, str], path: list[str]) -> NoReturn:
    """Do what a fresh interpreter does with a script."""
    os.environ.clear()
    os.environ.update(environment)
    script = arguments[0]
    sys.argv = arguments
    sys.path[:] = [os.path.dirname(script), *environment["PYTHONPATH"].split(os.pathsep), *path]
    main = types.ModuleType("__main__")
    main.__file__ = script
    sys.modules["__main__"] = main
    status = 0
    try:
        _start_recorder()
        exec(compile(Path(script).read_bytes(), script, "exec"), vars(main))
    except SystemExit as end:
        status = _status(end)
    except BaseException as error:
        status = _uncaught(error)
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    _exit(status)


def _status(end: SystemExit) -> int:
    return end.code if isinstance(end.code, int) else int(end.code is not None)


def _uncaught(error: BaseException) -> int:
    """What the interpreter does with an exception of the program; returns the exit status."""
    trace = error.__traceback__
    error.__traceback__ = trace and trace.tb_next  # without the frame of this file
    vars(sys)["last_value"] = error
    try:
        hook = getattr(sys, "excepthook", sys.__excepthook__)
        hook(type(error), error, error.__traceback__)
    except SystemExit as end:  # a hook may ask for a status of its own
        return _status(end)
    return 1


def _start_recorder() -> None:
    import torch.multiprocessing as mp

    vars(mp)["spawn"] = functools.partial(_spawn, mp)
    sys.modules.pop("sitecustomize", None)
    importlib.invalidate_caches()
    importlib.import_module("sitecustomize")


def _spawn(
    mp: Any, fn: Any, args: Any = (), nprocs: int = 1, join: bool = True, daemon: bool = False
) -> Any:
    return mp.start_processes(fn, args, nprocs, join, daemon, start_method="fork")


def _import_torch(recorder: Path) -> None:
    """Import torch, patched meanwhile for FSDP1 on the CPU: some modules copy names when they are imported."""
    spec = importlib.util.spec_from_file_location(
        "_record", recorder / "__init__.py", submodule_search_locations=[str(recorder)]
    )
    assert spec is not None
    sys.modules["_record"] = importlib.util.module_from_spec(spec)
    imports = importlib.import_module("_record.imports")
    imports.install(imports.Copies([]))
    importlib.import_module("_record.cpu").install()
    for name in IMPORTED:
        importlib.import_module(name)
    sys.meta_path.pop(0)  # each program brings a recorder that watches imports
    sys.modules["torch"].set_num_threads(1)
    gc.freeze()  # what is imported is never garbage


if __name__ == "__main__":
    _import_torch(Path(sys.argv[1]))
    Server().serve()
