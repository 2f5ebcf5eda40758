from accelerate import Accelerator
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(model, optimizer, accelerator: Accelerator):
    model, optimizer = accelerator.prepare(model, optimizer)
    if isinstance(model, FSDP):  # FSDP808
        print("sharded")
    elif isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(False)
    return model
