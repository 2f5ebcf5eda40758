from model import Net
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import OffloadPolicy, fully_shard

RESHARD = {
    "FULL_SHARD": None,
    "SHARD_GRAD_OP": False,
}


def shard(model: Net, strategy: str, ranks: int) -> Net:
    mesh = init_device_mesh("cpu", (ranks,))
    kwargs = {
        "mesh": mesh,
        "offload_policy": OffloadPolicy(),
    }
    reshard = RESHARD[strategy]
    for layer in model.layers:
        fully_shard(layer, reshard_after_forward=reshard, **kwargs)
    fully_shard(model, reshard_after_forward=reshard, **kwargs)
    return model
