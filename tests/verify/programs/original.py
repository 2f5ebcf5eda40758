"""FSDP1, as one would write it for GPUs: no device_id, which the CPU would need."""

import torch
import torch.distributed as dist
from task import Block, Model, arguments, launch, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def main() -> None:
    args = arguments()
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    mesh = None
    if args.strategy.startswith("HYBRID"):
        mesh = init_device_mesh(
            "cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard")
        )
    model = FSDP(
        Model(),
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        sharding_strategy=ShardingStrategy[args.strategy],
        use_orig_params=not args.flat,
        device_mesh=mesh,
    )
    optimizer = getattr(torch.optim, args.optimizer)(model.parameters(), lr=args.lr)
    train(model, optimizer, args)
    dist.destroy_process_group()


if __name__ == "__main__":
    launch(main)
