"""The recording of one process, from the moment that torch is imported to the end."""

import contextlib
import faulthandler
import functools
import glob
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import process
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import optimizer as optimizers

from . import clips, costs, evidence, losses, values
from .census import Census
from .imports import Copies
from .leaving import Departure
from .patch import Method, around
from .ranks import grouped, identity
from .steps import Steps

_PATIENCE = 5.0


class Session:
    """What one process has seen so far; it writes a record if it went backward, stepped or joined a process group."""

    def __init__(self, folder: str, departure: Departure, copies: Copies) -> None:
        self.folder = folder
        self.copies = copies
        self.evidence = evidence.Evidence(copies)
        self.departure = departure
        self.counts, self.bytes = costs.install(dist)
        self.start: values.Start | None = None
        self.reset()

    def reset(self) -> None:
        """Begin anew, as a forked child does."""
        self.rank = -1
        self.world = 0
        self.backend = ""
        self.steps = Steps(self.folder)
        self.problems: list[str] = []
        self.census = Census()
        if self.start is not None:
            self.start.close()
        self.start = values.Start(self.folder)
        self._stepping: int | None = None
        self._training: set[threading.Thread] = set()
        # A forked DataLoader worker has its parent's process group, and is no rank.
        self._inherited = grouped()
        self.counts.clear()
        self.bytes.clear()

    def identify(self) -> None:
        """Ask for the rank while it can be asked for: the process group may be gone later."""
        if grouped():
            self.backend = str(dist.get_backend())
        if grouped() or self.rank < 0:
            self.rank, self.world = identity()
            self.steps.rank = self.rank
            self.steps.world = self.world

    def loss(self, loss: torch.Tensor) -> None:
        """A backward begins."""
        self._stepping = None
        self._training.add(threading.current_thread())
        if self.rank < 0:
            self.identify()
        self.steps.loss(loss)

    def before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """An optimizer steps; a step within its own step (`super().step()`) is the same one."""
        if self._stepping == id(optimizer) or _makes_states():
            return
        self._stepping = id(optimizer)
        self._training.add(threading.current_thread())
        if self.rank < 0:
            self.identify()
        members = [p for group in optimizer.param_groups for p in group["params"]]
        rates = [float(group.get("lr", 0.0)) for group in optimizer.param_groups]
        self.steps.step(rates, time.perf_counter())
        with self.noting("no gradient norm"), torch.no_grad():
            is_first = not self.census.parts
            self.census.look(members, self.rank, self.world)
            self.steps.norms(members, self.census)
            if is_first:
                self.census.look_for_untrained(self.rank, self.world)

    def after_step(self, *_: Any) -> None:
        """The step is done."""
        self._stepping = None

    def in_thread(self, error: BaseException) -> None:
        """Nobody caught an exception in a thread; Python goes on, and only one that trains ends the training."""
        if threading.current_thread() in self._training:
            self.departure.failed(error)
        else:
            self._note(f"a thread that does not train raised {type(error).__name__}: {error}")

    def _at_start(self) -> dict[str, Any]:
        """What the record says of the first values."""
        if self.start is None:
            return {"aligned": [], "start_problem": "", "dtype": ""}
        start = self.start
        dtypes = {"dtype": start.dtype, "precisions": start.precisions}
        return {"aligned": start.aligned, "start_problem": start.problem, **dtypes}

    def write(self) -> bool:
        """Write this process's record; returns whether it is a rank and has one."""
        if self.rank < 0 and grouped() and not self._inherited:
            self.identify()
        if self.rank < 0 and self.departure.well:
            return False
        path = os.path.join(self.folder, f"process-{os.getpid()}")
        told: dict[str, Any] = {}
        with self.noting("not known what fsdp_migrate.runtime did"):
            told = evidence.told_by_runtime(self.copies)
        end_problem = self._write_parameters(f"{path}.pt")
        self.steps.write(end=True)
        record = {
            "rank": self.rank,
            "backend": self.backend,
            "ended": time.time(),
            "collectives": dict(sorted(self.counts.items())),
            "collective_bytes": dict(sorted(self.bytes.items())),
            **self._at_start(),
            "end_problem": end_problem,
            "peak_memory_bytes": costs.peak_bytes(),
            **self.evidence.told(),
            "lost": self.census.lost,
            "gathered": self.census.gathered,
            **told,
            "problems": self.problems,
            "process": _process(),
            "variable": int(os.environ.get("RANK", "-1")),
            "failure": self.departure.failure,
            "status": self.departure.status,
            "code": self.departure.code,
        }
        with open(f"{path}.part", "w", encoding="utf-8") as file:
            json.dump(record, file)
        os.replace(f"{path}.part", f"{path}.json")
        return self.rank >= 0

    def together(self) -> None:
        """Wait for the other ranks' records, some seconds at most: a rank may be in trouble, or have none."""
        end = time.monotonic() + _PATIENCE
        records = f"{self.folder}/process-*.json"
        while len(glob.glob(records)) < self.world and time.monotonic() < end:
            time.sleep(0.02)

    def _write_parameters(self, path: str) -> str:
        """Write the last parameters of a program that ended well; returns why that is not possible, or nothing."""
        try:
            if self.departure.well:
                return values.write(self.census, path)
            return ""
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    @contextlib.contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """What the recorder does not understand must not end the program: it is said in the record."""
        try:
            yield
        except Exception as error:
            self._note(f"{what}: {type(error).__name__}: {error}")

    def _note(self, problem: str) -> None:
        if problem and problem not in self.problems:
            self.problems.append(problem)


def _process() -> str:
    """A process that has no rank yet is known by its name in multiprocessing, or by its script."""
    name = process.current_process().name
    if name == "MainProcess":
        return sys.argv[0]
    return name


def _makes_states() -> bool:
    """Whether a step is torch's own, with learning rate 0, so that an optimizer has states to load into.

    FSDP1's functions need none (``torch/distributed/checkpoint/state_dict.py``, ``_init_optim_state``).
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_init_optim_state":
        frame = frame.f_back
    return frame is not None


def install(folder: str, departure: Departure, copies: Copies) -> Callable[[], bool]:
    """Record this process and those that it forks; returns the function that writes the record."""
    session = Session(folder, departure, copies)
    departure.together = session.together
    departure.in_thread = session.in_thread
    losses.install(session.loss)
    clips.install(lambda limit, acted: session.steps.clip(limit, acted), session.noting)
    optimizers.register_optimizer_step_pre_hook(session.before_step)
    optimizers.register_optimizer_step_post_hook(session.after_step)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=session.reset)
        os.register_at_fork(after_in_child=functools.partial(_show_stack_when_asked, folder))
    _show_stack_when_asked(folder)
    _write_before_children_end(session)
    _write_before_hard_exits(session)
    return session.write


def _write_before_children_end(session: Session) -> None:
    # A forked child of multiprocessing runs no exit handlers, and its exceptions end here.
    def bootstrap(begin: Method, *args: Any, **kwargs: Any) -> Any:
        code = begin(*args, **kwargs)
        session.departure.status = session.departure.code = code
        if session.write() and not code:
            session.together()
        return code

    def run_noted(run: Method, self: Any) -> None:
        try:
            run(self)
        except Exception as error:
            session.departure.failed(error)
            raise

    around(process.BaseProcess, "_bootstrap", bootstrap)
    around(process.BaseProcess, "run", run_noted)


def _write_before_hard_exits(session: Session) -> None:
    # Some programs leave FSDP1's abort at exit behind in this way, too.
    def leave(original: Method, status: int) -> Any:
        session.departure.leaves(status)
        session.write()
        original(status)

    around(os, "_exit", leave)


def _show_stack_when_asked(folder: str) -> None:
    """Name this process in `folder`, where it writes its stack on SIGUSR2, if that is free: it may not end."""
    path = os.path.join(folder, f"alive-{os.getpid()}")
    file = open(f"{path}.stack", "w", encoding="utf-8")  # noqa: SIM115 (open to the end)
    number = getattr(signal, "SIGUSR2", None)
    if number is not None and signal.getsignal(number) is signal.SIG_DFL:
        faulthandler.register(number, file=file, all_threads=False)
    with open(path, "w", encoding="utf-8") as rank:
        rank.write(os.environ.get("RANK", ""))
