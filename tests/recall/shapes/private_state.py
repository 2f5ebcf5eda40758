# forms: auto bridge
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from torch.distributed._composable_state import _get_module_state

model = FSDP(build())
state = _get_module_state(model)
assert state is None  # FSDP014
if hasattr(model, "_exec_order_data"):  # FSDP366
    print(model._exec_order_data)
if hasattr(model, "logger"):
    print(model.logger)
