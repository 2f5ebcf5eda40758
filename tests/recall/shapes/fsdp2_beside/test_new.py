import pytest
import torch
from torch.distributed.fsdp import FSDPModule, fully_shard


def test_it():
    model = fully_shard(torch.nn.Linear(8, 8))
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for name in ("fully_shard", "FSDPModule"):
        assert isinstance(model, getattr(torch.distributed.fsdp, name, FSDPModule))
