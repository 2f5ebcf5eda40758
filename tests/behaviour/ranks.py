"""Runs behaviours under several gloo ranks: ``python -m behaviour.ranks RANKS FOLDER [NAME[:FORM]...]``, in ``tests/``.

They share processes, forked from here, and their group until one fails on some ranks alone, or otherwise than on the others:
these may be in another collective then.
"""

import contextlib
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.fsdp as fsdp1
import torch.distributed.fsdp.sharded_grad_scaler
import torch.distributed.fsdp.wrap  # `api.wrap` is the module
from forked import MEETINGS, TIMEOUT, UNCONNECTED, NotMet, PeerLost, fork_ranks, join, record
from fsdp1 import fsdp1_on_cpu
from in_place import ALONE, BRIDGE, IN_PLACE, Api
from torch.distributed.tensor import debug

from .checks import CHECKS
from .compare import differences, without_wrappers
from .faults import FAULTS, Fault, remove_faults
from .registry import BEHAVIOURS, Behaviour

FSDP1 = Api(fsdp1)
FORMS = {"bridge": BRIDGE, "in place": IN_PLACE, "torch": ALONE}


def run_one(behaviour: Behaviour, forms: Mapping[str, Any]) -> dict[str, Any]:
    """For each form what its result and FSDP1's differ in, or with which error it ends."""
    theirs = run_on(FSDP1, behaviour)
    return {
        form: _compared(theirs, behaviour, api)
        for form, api in forms.items()
        if api is not ALONE or behaviour.torch
    }


def _compared(theirs: Any, behaviour: Behaviour, api: Any) -> dict[str, Any]:
    try:
        result = run_on(api, behaviour)
        if api in (IN_PLACE, ALONE):
            theirs, result = without_wrappers(theirs), without_wrappers(result)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if UNCONNECTED in text:
            raise NotMet(behaviour.name) from error
        return {"refusal": text, "trace": traceback.format_exc()}
    return {"differences": differences(theirs, result, behaviour.tolerance)}


def run_on(api: Any, behaviour: Behaviour) -> Any:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return behaviour.run(api)


def run_fault(fault: Fault) -> dict[str, Any]:
    fault.plant()
    try:
        return run_one(fault.behaviour, {fault.form: FORMS[fault.form]})
    finally:
        remove_faults()


Task = tuple[str, Callable[[], dict[str, Any]]]


def run_tasks(ranks: int, folder: Path, tasks: list[Task]) -> None:
    """Runs tasks one after the other in the same processes, and in new ones those that come after a crash.

    A task whose ranks did not meet is tried again.
    """
    meetings = 0

    def run(rank: int) -> None:
        joined = False
        for name, task in tasks:
            if not joined:
                join(rank, ranks, folder / f"{name}.{meetings}.store")
            with contextlib.suppress(PeerLost):  # the next task has a group of its own
                record(folder, name, task)
            joined = end_together(folder, name, ranks)
            if not joined:
                dist.destroy_process_group()
                forget_meshes()

    while tasks:
        met = fork_ranks(ranks, run)
        missing = (n for n, (name, _) in enumerate(tasks) if not is_recorded(folder, name, ranks))
        meetings += not met
        tries_again = not met and meetings < MEETINGS
        tasks = tasks[next(missing, len(tasks)) + (0 if tries_again else 1) :]


def end_together(folder: Path, name: str, ranks: int) -> bool:
    """Whether a task ended alike on all ranks, so that they can go on in their group. Waits for its end.

    One that raised on some of them, or elsewhere, may have left collectives that the others wait for.
    """
    files = [folder / f"{name}.{rank}.json" for rank in range(ranks)]
    start = time.monotonic()
    while not all(file.exists() for file in files):
        if any(file.exists() and "error" in json.loads(file.read_text()) for file in files):
            return False
        if time.monotonic() - start > TIMEOUT.seconds:
            return False
        time.sleep(0.001)
    results = [json.loads(file.read_text()) for file in files]
    refusals = [
        [form.get("refusal") for form in each.values() if isinstance(form, dict)]
        for each in results
    ]
    return not any("error" in each for each in results) and refusals.count(refusals[0]) == ranks


def forget_meshes() -> None:
    """Clears DTensor's cache, which keeps meshes whose groups are gone and names taken again. Older releases have none such."""
    getattr(debug, "_clear_sharding_prop_cache", lambda: None)()


def is_recorded(folder: Path, name: str, ranks: int) -> bool:
    return all((folder / f"{name}.{rank}.json").exists() for rank in range(ranks))


def main(ranks: int, folder: Path, names: list[str]) -> None:
    fsdp1_on_cpu()
    # To develop a behaviour: FSDP1 beside itself.
    every = {"fsdp1": FSDP1} if os.environ.get("BEHAVIOUR_OF") == "fsdp1" else FORMS
    asked = {*names}

    def forms(name: str) -> dict[str, Api]:
        whole = not asked or name in asked
        return {form: api for form, api in every.items() if whole or f"{name}:{form}" in asked}

    chosen = [each for each in BEHAVIOURS.values() if each.ranks == ranks and forms(each.name)]
    run_tasks(
        ranks, folder, [(each.name, partial(run_one, each, forms(each.name))) for each in chosen]
    )
    others = {f"check.{name}": check for name, check in CHECKS.items()}
    for name, fault in FAULTS.items():
        others[f"fault.{name}"] = fault.behaviour.ranks, partial(run_fault, fault)
    tasks = [(name, task) for name, (takes, task) in others.items() if takes == ranks]
    run_tasks(ranks, folder, [task for task in tasks if not asked or task[0] in asked])


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
