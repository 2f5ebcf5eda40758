# forms: auto bridge
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from torch.distributed._shard.sharded_tensor import ShardedTensor


def local(state):
    return {k: v.local_shards() if isinstance(v, ShardedTensor) else v for k, v in state.items()}  # FSDP524


model = FSDP(build())
local(model.state_dict())
