import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(build())
critic = nn.Linear(8, 8)
torch.nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
