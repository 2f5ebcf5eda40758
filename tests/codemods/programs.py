"""A program of two files, and what becomes of it."""

from __future__ import annotations

from pathlib import Path

from fsdp_migrate.engine import analyse
from fsdp_migrate.report import Report
from fsdp_migrate.settings import Options

TRAIN = """\
import torch
from model import Net
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    model = Net()
    model = FSDP(model)
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer)
"""
MODEL = """\
import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 8)

    def forward(self, x):
        return self.head(x)
"""


def migrated(
    folder: Path, files: dict[str, str], form: str = "auto"
) -> tuple[dict[str, str], Report]:
    """What becomes of a program of several files, by name."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    report = analyse([folder / name for name in files], Options(form))
    assert not report.errors
    changed = {
        change.path.relative_to(folder).as_posix(): change.after.decode()
        for change in report.changes
    }
    return {**files, **changed}, report


def is_plain(after: str) -> bool:
    return "fully_shard(" in after and "FullyShardedDataParallel" not in after
