import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def build():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 4))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    model.to_empty(device="cpu")
    for layer in model:
        layer.reset_parameters()
    return model(torch.randn(2, 16))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    print(build())
