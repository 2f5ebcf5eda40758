# forms: auto bridge
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def save(rank, optimizer):
    torch.save({"optimizer": optimizer.state_dict()}, f"optimizer-{rank}.pt")  # FSDP336


def load(rank, optimizer):
    state = torch.load(f"optimizer-{rank}.pt")
    optimizer.load_state_dict(state["optimizer"])  # FSDP336


model = FSDP(build())
optimizer = torch.optim.AdamW(model.parameters())
save(dist.get_rank(), optimizer)
load(dist.get_rank(), optimizer)
