"""FSDP1, as one would write it for GPUs: no device_id, which the CPU would need."""

import functools

import torch
import torch.distributed as dist
from task import Block, Model, arguments, launch, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffload,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
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
    fsdp = functools.partial(
        FSDP,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        sharding_strategy=ShardingStrategy[args.strategy],
        use_orig_params=not args.flat,
        device_mesh=mesh,
        sync_module_states=True,
        cpu_offload=CPUOffload(args.offload),
        mixed_precision=MixedPrecision(torch.bfloat16, torch.bfloat16) if args.bf16 else None,
    )
    model = fsdp(Model())
    average = fsdp(Model()) if args.average else None
    optimizer = getattr(torch.optim, args.optimizer)(model.parameters(), lr=args.lr)
    train(model, optimizer, args, average)
    if args.offload:
        save(model, optimizer)
    dist.destroy_process_group()


def save(model: FSDP, optimizer: torch.optim.Optimizer) -> None:
    """Gather everything on the CPU: all of it is there already, and must be copied all the same."""
    options = (
        FullStateDictConfig(offload_to_cpu=True, rank0_only=True),
        FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=True),
    )
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, *options):
        weights, states = model.state_dict(), FSDP.optim_state_dict(model, optimizer)
    if dist.get_rank() == 0:
        assert weights["enter.weight"].shape == (17, 8)
        for state in states["state"].values():
            assert not torch.equal(state["exp_avg"], state["exp_avg_sq"])


if __name__ == "__main__":
    launch(main)
