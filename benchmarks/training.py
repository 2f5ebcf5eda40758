"""What a training step costs under FSDP1, and as the tool migrates it: `python -P benchmarks/training.py --device cuda`.

Trains one transformer as one rank of a world whose other ranks do not exist: collectives move nothing
(torch's `fake` process group), so one device shows the memory of one rank of eight, and the time of
all but the communication. The loss means nothing; times and memory do. Each program runs in a
process of its own, in turns, and the ratio is the median over the rounds. Memory is what CUDA's
allocator had at most, on the CPU the largest resident set.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

LEFT_OUT = 2  # steps: FSDP2 imports and sets up in the first

PROGRAM = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.attention = nn.MultiheadAttention(dim, dim // 64, batch_first=True)
        self.mlp = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)
        )

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(x)


class Transformer(nn.Module):
    def __init__(self, dim, layers, vocabulary=8192):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.blocks = nn.ModuleList([Block(dim) for _ in range(layers)])
        self.head = nn.Linear(dim, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def build(dim, layers, device):
    model = Transformer(dim, layers)
    model = FSDP(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        device_id=device,
        use_orig_params=True,
    )
    return model
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="FSDP1 against what it becomes.")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--world", type=int, default=8)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--train", choices=["original", "migrated"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        print(json.dumps(train(args)))
        return
    for line in report(compare(args)):
        print(line, flush=True)


def compare(args: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """The seconds of a step and the bytes of every run of both programs."""
    found: dict[str, list[dict[str, float]]] = {"original": [], "migrated": []}
    for number in range(args.rounds):
        for name in sorted(found, reverse=number % 2 == 0):  # each goes first in every other round
            options = [f"--{key}={value}" for key, value in vars(args).items() if key != "train"]
            command = [sys.executable, "-P", __file__, *options, f"--train={name}"]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
    return found


def report(found: dict[str, list[dict[str, float]]]) -> list[str]:
    """Medians, and the migrated program's share of the original's."""
    lines = []
    for what, unit, size in (("seconds", "ms a step", 1e-3), ("bytes", "MiB at most", 2**20)):
        one, other = (
            statistics.median(run[what] for run in found[name]) for name in ("original", "migrated")
        )
        pairs = zip(found["migrated"], found["original"], strict=True)
        ratios = sorted(new[what] / old[what] for new, old in pairs)
        lines.append(
            f"{unit}: FSDP1 {one / size:.1f}, migrated {other / size:.1f}, ratio "
            f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
        )
    return lines


def train(args: argparse.Namespace) -> dict[str, float]:
    """One run: the median time of a step, and the most memory."""
    import time

    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=args.world)
    device = torch.device(args.device, 0) if args.device == "cuda" else torch.device("cpu")
    if args.device == "cuda":
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    program: dict[str, Any] = {}
    exec(PROGRAM if args.train == "original" else migrate(), program)
    model = program["build"](args.dim, args.layers, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, 8192, (args.batch, args.length), device=device)
    seconds = []
    for _ in range(LEFT_OUT + args.steps):
        start = time.perf_counter()
        logits = model(tokens).float()
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        if args.device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return {"seconds": statistics.median(seconds[LEFT_OUT:]), "bytes": float(peak(args.device))}


def migrate() -> str:
    """What the tool makes of the program."""
    from fsdp_migrate.engine import analyse_source
    from fsdp_migrate.source import Source

    change = analyse_source(Source(Path("program.py"), "program.py", PROGRAM.encode())).changes[0]
    return change.after.decode()


def peak(device: str) -> int:
    """Bytes."""
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated()
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
