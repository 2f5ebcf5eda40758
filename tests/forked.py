"""Ranks of gloo, forked from a process that has imported torch: a tenth of the time that fresh interpreters take.

They leave by ``os._exit``: a finished FSDP1 process may abort at interpreter exit.
"""

import gc
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # FSDP2 imports it at first use: once here instead of once a rank
import torch.distributed as dist

from fsdp_migrate.verify import reproducible

os.environ.update({**reproducible.SETTINGS, **os.environ})  # also where this runs without pytest

# In every error of a connection of gloo (closed, reset, timed out) there is the path of its source.
LOST = "gloo/transport"


# In those of a group that could not be made.
UNCONNECTED = "connectFullMesh"

# How a rank ends that did not meet the others, and how often they try again: where hundreds of groups are made, a port
# that one of them had may refuse the next one's connection.
_NOT_MET = 3
MEETINGS = 3

TIMEOUT = timedelta(seconds=60)


def run_ranks(ranks: int, folder: Path, run: Callable[[int], None]) -> None:
    """Calls ``run(rank)`` in each of some processes that have joined one group; it meets in ``folder``."""
    for meeting in range(MEETINGS):

        def join_and_run(rank: int, place: Path = folder / f"store{meeting}") -> None:
            join(rank, ranks, place)
            run(rank)

        if fork_ranks(ranks, join_and_run):
            return


def fork_ranks(ranks: int, run: Callable[[int], None]) -> bool:
    """Calls ``run(rank)`` in each of some processes; False if one of them did not meet the others."""
    gc.freeze()  # what is imported is never garbage; it makes every later collection fast
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            status = 0
            try:
                run(rank)
            except NotMet:
                traceback.print_exc()
                status = _NOT_MET
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        children.append(child)
    return _have_met(children)


def _have_met(children: list[int]) -> bool:
    """Waits for processes. Where one did not meet the others, or crashed, they are ended, who would wait for it."""
    met = True
    while children:
        for child in [*children]:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                children.remove(child)
                if os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == _NOT_MET:
                    met = False
                    for other in children:
                        os.kill(other, signal.SIGKILL)
        time.sleep(0.005)
    return met


class NotMet(Exception):
    """The ranks of a group did not find each other."""


def join(rank: int, ranks: int, place: Path) -> None:
    """Makes this process a rank of a group, which meets in a file. Raises NotMet."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(place), ranks)
    try:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=TIMEOUT)
    except RuntimeError as error:
        raise NotMet(f"rank {rank} of {ranks}") from error


def collect() -> None:
    """Frees the models of a run: before their group, or the process may abort.

    What is left is for good (modules, torch's caches): later collections pass over it, which makes them ten times as fast.
    """
    gc.collect()
    gc.freeze()


class PeerLost(Exception):
    """Another rank of the group has gone, so that nothing can follow in it."""


def record(folder: Path, name: str, run: Callable[[], dict[str, Any] | None]) -> None:
    """Writes what a run gives, or the error that it ends with, before the next one starts.

    Raises PeerLost once that is written, if the error came from the connection to another rank.
    """
    start = time.perf_counter()
    try:
        result = run() or {}
    except NotMet:
        raise
    except Exception:
        result = {"error": traceback.format_exc()}
    collect()
    result["seconds"] = time.perf_counter() - start
    file = folder / f"{name}.{dist.get_rank()}"
    file.write_text(json.dumps(result))
    file.rename(f"{file}.json")  # whole for whoever waits for it
    if LOST in result.get("error", ""):
        raise PeerLost(f"in {name}")
