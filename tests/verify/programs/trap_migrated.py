"""The same with FSDP2."""

import torch
import torch.distributed as dist
from task import Block, Scaled, arguments, batch, launch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def main() -> None:
    args = arguments()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())  # only the first rank's weights count
    model = Scaled(args.batch_norm)
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.detach(), src=0)
    policy = full = MixedPrecisionPolicy()
    if args.low:
        model.scale = model.scale.to(torch.bfloat16)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        full = MixedPrecisionPolicy(param_dtype=torch.float32, output_dtype=torch.bfloat16)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            fully_shard(module, mp_policy=full)
        elif isinstance(module, Block):
            fully_shard(module, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    for _ in range(args.steps):
        optimizer.zero_grad()
        for micro in range(args.accumulate):
            last = micro == args.accumulate - 1
            model.set_requires_gradient_sync(last)
            x, target = batch(generator)
            loss = nn.functional.cross_entropy(model(x).float(), target) / args.accumulate
            loss.backward()
        if args.clip:
            nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    launch(main)
