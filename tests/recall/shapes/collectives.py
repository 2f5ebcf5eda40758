# forms: auto bridge
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def reduce_tensor(tensor):
    return dist.all_reduce(tensor=tensor, async_op=True)  # FSDP525


def metrics(model):
    found = {"loss": torch.tensor(0.0)}
    for name, p in model.named_parameters():
        found[name] = torch.linalg.vector_norm(p.grad, ord=float("inf"))  # FSDP507
        reduce_tensor(p.grad).wait()  # FSDP525
    return found


def biggest(found):
    for name in found:
        value = found.get(name)
        dist.all_reduce(value, op=dist.ReduceOp.MAX)  # FSDP525
    names = [list(found)]
    dist.broadcast_object_list(names)
    loss = torch.tensor([float(value) for value in found.values()])
    dist.all_reduce(loss)


def spread(model):
    for module in model.modules():
        for name, value in dict(module._parameters.items()).items():
            dist.broadcast(value, src=0)  # FSDP525


model = FSDP(build())
biggest(metrics(model))
spread(model)
