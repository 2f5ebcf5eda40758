"""Runs behaviours under several gloo ranks: ``python -m behaviour.ranks RANKS FOLDER [NAME...]``, in ``tests/``.

Each behaviour has ranks of its own, forked from here, so that one that fails on one rank does not
leave the others of the next in another collective.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed.fsdp as fsdp1
import torch.distributed.fsdp.sharded_grad_scaler
import torch.distributed.fsdp.wrap  # `api.wrap` is the module
from forked import record, run_ranks
from torch.distributed.fsdp import (
    _flat_param,
    _init_utils,
    _optim_utils,
    fully_sharded_data_parallel,
)

from fsdp_migrate import runtime
from fsdp_migrate.runtime.record import cpu

from .compare import differences
from .faults import FAULTS, Fault
from .registry import BEHAVIOURS, Behaviour


def fsdp1_on_cpu() -> None:
    """Makes FSDP1 right where there is no accelerator, for the rest of this process."""
    cpu._streams(torch)
    cpu._pinned_memory(torch)
    cpu._device_without_device_id(fully_sharded_data_parallel)  # it has imported the function
    cpu._sync_of_cpu_states(_init_utils)
    cpu._offload_to_the_same_device(_flat_param)
    cpu._offloaded_gradients(_flat_param)
    cpu._aliased_optimizer_states(_optim_utils)


def run_one(behaviour: Behaviour, ours: ModuleType) -> dict[str, Any]:
    """What the two results of a behaviour differ in, and with which error the second one ends."""
    theirs = run_on(fsdp1, behaviour)
    try:
        result = run_on(ours, behaviour)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return {"refusal": text, "trace": traceback.format_exc()}
    return {"differences": differences(theirs, result, behaviour.tolerance)}


def run_on(api: Any, behaviour: Behaviour) -> Any:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = behaviour.run(api)
    gc.collect()  # before the process group goes, or the process may abort
    return result


def run_fault(fault: Fault) -> dict[str, Any]:
    fault.plant()
    return run_one(fault.behaviour, runtime)


def start(ranks: int, folder: Path, name: str, run: Callable[[], dict[str, Any]]) -> None:
    meeting = folder / name
    meeting.mkdir()
    run_ranks(ranks, meeting, lambda rank: record(folder, name, run))


def main(ranks: int, folder: Path, names: list[str]) -> None:
    fsdp1_on_cpu()
    # To develop a behaviour: FSDP1 beside itself.
    ours = fsdp1 if os.environ.get("BEHAVIOUR_OF") == "fsdp1" else runtime
    for name, behaviour in BEHAVIOURS.items():
        if behaviour.ranks == ranks and (not names or name in names):
            start(ranks, folder, name, partial(run_one, behaviour, ours))
    for name, fault in FAULTS.items():
        if fault.behaviour.ranks == ranks and (not names or f"fault.{name}" in names):
            start(ranks, folder, f"fault.{name}", partial(run_fault, fault))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
