import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from megatron.core.dist_checkpointing.mapping import ShardedTensor

model = FSDP(build())
print(isinstance(model.state_dict()["w"], ShardedTensor))
