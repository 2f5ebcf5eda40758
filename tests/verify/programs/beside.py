"""What losses do not show: parts that none depends on, clipping that never acts, losses that are no numbers.

With FSDP1, or `--fsdp2`; each argument makes one thing otherwise.
"""

import argparse

import torch
import torch.distributed as dist
from task import Block, batch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

parser = argparse.ArgumentParser()
parser.add_argument("--fsdp2", action="store_true")
parser.add_argument("--root-alone", action="store_true", help="is the only unit")
parser.add_argument("--optimizer", default="AdamW")
parser.add_argument("--decay", type=float, default=0.0)
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--clip-by", default="norm", choices=["norm", "value", "hand", "factor"])
parser.add_argument("--nan", type=int, default=0, help="from this step on losses are NaN")
parser.add_argument("--shape", default="", help="of the loss; 2 means two losses")
parser.add_argument("--writes", default="", help="what is written to after the last step")
parser.add_argument("--before", default="", help="what is done before the optimizer is built")
parser.add_argument("--nproc", type=int, default=2)
ARGS = parser.parse_args()


class Model(nn.Module):
    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(8, 12)
        self.block = Block(12)
        self.unused = nn.Linear(12, 12)
        self.leave = nn.Linear(12, 5)
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.leave(self.block(self.enter(x)))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model: nn.Module = Model()
    if ARGS.fsdp2:
        if not ARGS.root_alone:
            fully_shard(model.block)
        fully_shard(model)
    else:
        model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=True)
    prepare(model)
    kind = getattr(torch.optim, ARGS.optimizer)
    optimizer = kind(model.parameters(), lr=0.01, weight_decay=ARGS.decay)
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    for step in range(1, 4):
        optimizer.zero_grad()
        x, target = batch(generator)
        loss = nn.functional.cross_entropy(model(x), target)
        if ARGS.nan and step >= ARGS.nan:
            loss = loss * float("nan")
        backward(loss)
        if ARGS.clip:
            clip(model)
        optimizer.step()
    write(model)
    dist.destroy_process_group()


def prepare(model: nn.Module) -> None:
    if ARGS.before == "unshard":
        model.unshard()
    elif ARGS.before:
        with torch.no_grad():
            model(torch.ones(2, 8))
    if ARGS.before == "reshard":
        model.reshard()


def backward(loss: torch.Tensor) -> None:
    if ARGS.shape == "2":
        torch.autograd.backward([loss.reshape(1) / 2, loss.reshape(1) / 2])
    elif ARGS.shape:
        loss.reshape([int(size) for size in ARGS.shape.split(",")]).backward()
    else:
        loss.backward()


def clip(model: nn.Module) -> None:
    if ARGS.clip_by == "value":
        nn.utils.clip_grad_value_(model.parameters(), ARGS.clip)
    elif ARGS.clip_by == "hand":
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        factor = torch.clamp(
            ARGS.clip / (getattr(norm, "full_tensor", lambda: norm)() + 1e-6), max=1
        )
        for gradient in gradients:
            gradient.mul_(factor)
    elif ARGS.clip_by == "factor":
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        nn.utils.clip_grads_with_norm_(model.parameters(), ARGS.clip, norm)
    elif ARGS.fsdp2:
        nn.utils.clip_grad_norm_(model.parameters(), ARGS.clip)
    else:
        model.clip_grad_norm_(ARGS.clip)


def write(model: nn.Module) -> None:
    with torch.no_grad():
        if ARGS.writes == "unused":
            model.unused.weight.mul_(1.001)
        if ARGS.writes == "used":
            model.block.up.weight.mul_(1.001)
        if ARGS.writes == "buffer":
            model.count.add_(1)


if __name__ == "__main__":
    main()
