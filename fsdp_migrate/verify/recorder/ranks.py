"""Which rank this process is, if any."""

import os

import torch.distributed as dist


def grouped() -> bool:
    """Whether there is a process group."""
    return dist.is_available() and dist.is_initialized()


def identity() -> tuple[int, int]:
    """This process's rank, and how many there are."""
    if grouped():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
