# forms: auto bridge
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def offload(model):
    for module in model.modules():
        if isinstance(module, FSDP):
            for param in module.params:  # FSDP366
                print(param._shard_param_infos)
            for handle in module._all_handles:
                handle.flat_param_to(torch.device("cpu"))


offload(FSDP(build()))
