"""Programs in the torch form, which are compared with what a maintainer would write."""

from pathlib import Path

from .programs import analysed

HEAD = """\
import functools
import torch
from torch.distributed.fsdp import *
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


"""


def rewritten(before: str, first: str, folder: Path) -> str:
    """What a program becomes in the torch form, from the line `first` on."""
    lines = analysed(folder, HEAD + before, "torch").after["train.py"].splitlines(keepends=True)
    return "".join(lines[lines.index(first) :])
