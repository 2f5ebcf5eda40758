# forms: auto bridge
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(build())
if hasattr(model, "_exec_order_data"):  # FSDP366
    print(model._exec_order_data)
if hasattr(model, "logger"):
    print(model.logger)
