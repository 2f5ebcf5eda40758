"""Writes checkpoints, converts them, loads them into FSDP2: ``python -m checkpoint_tool.ranks FOLDER``, on two ranks."""

import json
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from forked import run_ranks
from fsdp1 import fsdp1_on_cpu
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)

from fsdp_migrate.checkpoint.convert import convert

from .cases import CASES, name_of
from .programs import build_fsdp2, train, write

WHOLE = StateDictOptions(full_state_dict=True)


def run_rank(rank: int, folder: Path) -> None:
    results: dict[str, Any] = {}
    fsdp1_on_cpu()
    results["continued"] = write(folder)
    for source, to, whole in CASES:
        name = name_of(source, to)
        target = folder / "converted" / (f"{name}.pt" if to == "full" else name)
        if rank == 0:
            target.parent.mkdir(exist_ok=True)
            try:
                results[f"{name}-changes"] = convert(folder / source, target, to).changes
            except Exception:
                results[f"{name}-changes"] = traceback.format_exc()
        dist.barrier()
        try:
            results[name] = compare(target, folder / whole)
        except Exception:
            results[name] = {"error": traceback.format_exc()}
    results["as it is"] = compare(folder / "full-flat.pt", folder / "full-flat.pt")
    (folder / f"results.{rank}.json").write_text(json.dumps(results))


def compare(target: Path, whole: Path) -> dict[str, Any]:
    """Loads a checkpoint into a fresh FSDP2 model: what differs from the whole tensors, and the next losses."""
    model, optimizer = build_fsdp2(seed=9)
    expected = torch.load(whole, weights_only=True)
    has_optimizer = "optimizer" in expected
    if target.is_dir():
        load_dcp(target, model, optimizer if has_optimizer else None)
    else:
        load_full(target, model, optimizer if has_optimizer else None)
    found = get_model_state_dict(model, options=WHOLE)
    if not has_optimizer:
        return {"different": differences(expected, found)}
    states = get_optimizer_state_dict(model, optimizer, options=WHOLE)["state"]
    wanted = flat(expected["optimizer"]["state"])
    different = differences(expected["model"], found) + differences(wanted, flat(states))
    return {"different": different, "losses": train(model, optimizer, 3, 200)}


def load_full(file: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    state = torch.load(file, weights_only=True)
    set_model_state_dict(model, state if optimizer is None else state["model"], options=WHOLE)
    if optimizer is not None:
        set_optimizer_state_dict(model, optimizer, state["optimizer"], options=WHOLE)


def load_dcp(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    if optimizer is None:
        only = get_model_state_dict(model)
        dcp.load(only, checkpoint_id=folder)
        set_model_state_dict(model, only)
        return
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )


def flat(states: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {f"{name}.{key}": v for name, state in states.items() for key, v in state.items()}


def differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    return sorted(
        name
        for name in expected.keys() | found.keys()
        if name not in found or name not in expected or not torch.equal(expected[name], found[name])
    )


if __name__ == "__main__":
    FOLDER = Path(sys.argv[1])
    run_ranks(2, FOLDER, lambda rank: run_rank(rank, FOLDER))
