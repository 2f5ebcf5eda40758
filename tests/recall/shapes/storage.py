# forms: auto bridge
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(build())
size = sum(p.untyped_storage().size() for p in model.parameters())  # FSDP507
known = {p.data_ptr() for p in model.parameters()}  # FSDP507
