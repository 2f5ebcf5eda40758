# forms: auto bridge
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(build())
scaler = torch.amp.GradScaler("cuda")  # FSDP351
if not use_fsdp:
    scaler = torch.amp.GradScaler("cuda")
