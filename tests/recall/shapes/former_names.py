# forms: auto bridge torch
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

head = nn.Linear(8, 8)
model = FSDP(build(head), ignored_parameters=list(head.parameters()))  # FSDP002
