import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


def save(model, path):
    state = get_model_state_dict(model, options=FULL)
    if dist.get_rank() == 0:
        torch.save({"model": state}, path)


def norms(model):
    model.unshard()
    shapes = [parameter.shape for parameter in model.parameters(recurse=False)]
    model.reshard()
    return shapes
