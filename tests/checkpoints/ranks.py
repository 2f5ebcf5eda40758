"""Trains each way on two ranks: until its checkpoint and on, and from the checkpoint of another form."""

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.fsdp as fsdp1
import torch.distributed.fsdp.wrap  # `api.wrap` is the module
from torch import nn

from ..forked import record, run_ranks
from ..fsdp1 import fsdp1_on_cpu
from ..in_place import BRIDGE, IN_PLACE, Api
from .checks import CHECKS
from .ways import FAULTS, WAYS

RANKS = 2
STEPS = 2  # before the checkpoint, and after it
FORMS = {"original": Api(fsdp1), "bridge": BRIDGE, "in place": IN_PLACE}
# Who goes on from whose checkpoint.
RESUMED = [
    ("bridge", "bridge"),
    ("bridge", "original"),
    ("original", "bridge"),
    ("in place", "original"),
    ("original", "in place"),
]


def run_all(folder: Path, names: set[str]) -> None:
    """Trains the ways, and runs the faults and the checks, with these names."""
    fsdp1_on_cpu()
    warnings.simplefilter("ignore")
    faults = {fault: planted for fault, planted in FAULTS.items() if fault in names}
    needed = names | {way for way, _ in faults.values()}
    for way in (way for way in WAYS if way in needed):
        for form in FORMS:
            record(folder, f"{way}.{form}", partial(losses, folder, way, form))
        for form, of in RESUMED:
            record(folder, f"{way}.{form} of {of}", partial(losses, folder, way, form, of))
    for fault, (way, plant) in faults.items():
        if dist.get_rank() == 0:
            file = folder / f"{way} original" / "both.pt"
            both = torch.load(file)
            plant(both)
            torch.save(both, file)
        record(folder, f"fault-{fault}", partial(losses, folder, way, "bridge", "original"))
    for name in (name for name in CHECKS if name in names):
        record(folder, f"check-{name}", CHECKS[name])


def losses(folder: Path, way: str, form: str, of: str = "") -> dict[str, Any]:
    """The losses by step; of a run that goes on, from the checkpoint on."""
    how, api, place = WAYS[way], FORMS[form], folder / f"{way} {of or form}"
    place.mkdir(exist_ok=True)
    torch.manual_seed(99 if of else 0)
    model, optimizer = how.build(api)
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    batches = [how.model.batch(generator) for _ in range(2 * STEPS)]
    first: list[float] = []
    if of:
        dist.barrier()  # rank 0 has written
        how.load(api, model, optimizer, place)
    else:
        change_buffers(model)
        first = train(model, optimizer, batches[:STEPS])
        how.save(api, model, optimizer, place)
    return {"losses": first + train(model, optimizer, batches[STEPS:])}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Any]) -> list[float]:
    found = []
    for batch in batches:
        optimizer.zero_grad()
        loss = model(*batch).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def change_buffers(model: nn.Module) -> None:
    """So that a checkpoint has to bring them back."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point() and name not in module._non_persistent_buffers_set:
                buffer.add_(0.05)


def main(folder: Path, names: set[str]) -> None:
    run_ranks(RANKS, folder, lambda rank: run_all(folder, names))
