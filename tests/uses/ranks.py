"""Runs each program in each form on two gloo ranks."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from equivalence.models import Transformer
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.fsdp import FSDPModule

from fsdp_migrate import migrate_source

from ..checkpoints.fsdp1 import checkpoints_on_cpu
from ..forked import record, run_ranks
from .programs import FORMS, USES, Use

RANKS = 2


def source(use: Use, form: str) -> str:
    """A program in one of its forms."""
    if form in {"bridge", "auto"}:
        return migrate_source(use.source, form=form)[0]
    if form == "plain":
        before, after = use.plain
        plain = use.source.replace(*(_indented(each) for each in (before, after)))
        assert plain != use.source
        plain = plain.replace("torch.distributed.fsdp", "fsdp_migrate.runtime")
        return f"{use.imports}\n{plain}"
    return use.source


def _indented(code: str) -> str:
    return code.replace("\n", "\n    ")


def result(use: Use, form: str, folder: Path) -> dict[str, Any]:
    """What the program saw and saved, and the model's own state dict at its end."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    batches = [Transformer.batch(generator) for _ in range(2)]
    names: dict[str, Any] = {}
    exec(compile(source(use, form), "program", "exec"), names)
    with checkpoints_on_cpu():
        model, seen = names["run"](batches, folder)
        states = {name: _list(value) for name, value in model.state_dict().items()}
    is_bridged = isinstance(model, FSDPModule)
    names.clear()
    dist.barrier()
    return {"seen": seen, "states": states, "saved": _saved(folder), "bridge": is_bridged}


def _saved(folder: Path) -> Any:
    """What a program wrote, by name."""
    if dist.get_rank():
        return None
    whole = folder / "state.pt"
    if (folder / "sharded").exists():
        dcp_to_torch_save(folder / "sharded", whole)
    return _list(torch.load(whole)) if whole.exists() else None


def _list(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {str(key): _list(each) for key, each in sorted(value.items())}
    return value


def main(folder: Path) -> None:
    def run(rank: int) -> None:
        for name, use in USES.items():
            for form in FORMS:
                place = folder / "saved" / f"{name} {form}"
                record(folder, f"{name} {form}", partial(result, use, form, place))

    run_ranks(RANKS, folder, run)
