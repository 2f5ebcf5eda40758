"""The same with FSDP2."""

import torch
import torch.distributed as dist
from task import Block, Model, arguments, launch, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def main() -> None:
    args = arguments()
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    mesh = None
    if args.strategy.startswith("HYBRID"):
        mesh = init_device_mesh(
            "cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard")
        )
    model, average = Model(), Model() if args.average else None
    low = torch.bfloat16 if args.bf16 else None
    policy = MixedPrecisionPolicy(low, low)  # torch 2.15 would reduce in float32 otherwise
    for whole in filter(None, (model, average)):
        for module in whole.modules():
            if isinstance(module, Block):
                fully_shard(module, mesh=mesh, mp_policy=policy)
        fully_shard(whole, mesh=mesh, mp_policy=policy)
    lr = 2 * args.lr if args.fault == "lr" else args.lr
    optimizer = getattr(torch.optim, args.optimizer)(model.parameters(), lr=lr)
    train(model, optimizer, args, average)
    dist.destroy_process_group()


if __name__ == "__main__":
    launch(main)
