import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard


def teacher(path):
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2), 2)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    state = torch.load(path)
    set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True))
    return model


if __name__ == "__main__":
    dist.init_process_group("gloo")
    print(teacher("teacher.pt"))
