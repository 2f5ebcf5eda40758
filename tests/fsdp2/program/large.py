import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def build():
    with torch.device("meta"):
        model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2), 2)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    model.to_empty(device="cpu")
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return model(torch.randn(3, 2, 16))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    print(build())
