# forms: auto bridge
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

import copy

first = build()
first.reset_parameters()
kept = copy.deepcopy(first)
model = FSDP(first)
nn.SyncBatchNorm.convert_sync_batchnorm(model)  # FSDP527
model.reset_parameters()  # FSDP527
average = copy.deepcopy(model)  # FSDP527
