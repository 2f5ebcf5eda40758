# forms: auto bridge
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from accelerate import Accelerator

accelerator = Accelerator()
model = FSDP(build())
model = accelerator.prepare(model)  # FSDP007
