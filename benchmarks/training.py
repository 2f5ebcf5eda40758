"""What a training step costs in five forms: `python -P benchmarks/training.py --device cuda`.

FSDP1, `fully_shard` as written by hand, and what the tool makes of the FSDP1 program in each form train one transformer,
each in a process of its own, as one rank of a world whose other ranks do not exist: collectives move nothing (torch's
`fake` process group), so one device shows the memory of one rank of eight, and the time of all but the communication.
The loss means nothing; times and memory do.

The five take turns, a few steps each, and another one begins in each round. Times are medians of a round's steps, ratios
medians over the rounds of what a form took beside the one by hand; on a CPU, which may have other work, they are the
process's own. Collectives are those of one step. Memory is what tensors had at most in a step, by the allocator's count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

LEFT_OUT = 2  # steps: FSDP2 imports and sets up in the first
PARTS = ("forward", "backward", "optimizer", "step")

MODEL = """\
import torch
from torch import nn
{imports}

class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.attention = nn.MultiheadAttention(dim, max(1, dim // 64), batch_first=True)
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
        self.blocks = nn.Sequential(*[Block(dim) for _ in range(layers)])
        self.head = nn.Linear(dim, vocabulary, bias=False)

    def forward(self, tokens):
        return self.head(self.blocks(self.embedding(tokens)))


def build(model):
{build}"""
FSDP1 = MODEL.format(
    imports="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
""",
    build="""\
    model = FSDP(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        device_id=torch.cuda.current_device(),
        use_orig_params=True,
    )
    return model
""",
)
HAND = MODEL.format(
    imports="from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard\n",
    build="""\
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=precision)
    fully_shard(model, mp_policy=precision)
    return model
""",
)
FORMS = ("FSDP1", "hand", "bridge", "auto", "torch")


def program(form: str, device: str) -> dict[str, Any]:
    """The names of a form's program, which has been run: `Transformer` and `build`, which shards one.

    FSDP1 runs on the CPU only where a program names that.
    """
    text = FSDP1 if form == "FSDP1" else HAND
    if form not in ("FSDP1", "hand"):
        from fsdp_migrate.engine import analyse_source
        from fsdp_migrate.settings import Options
        from fsdp_migrate.source import Source

        source = Source(Path("program.py"), "program.py", FSDP1.encode())
        text = analyse_source(source, Options(form=form)).changes[0].after.decode()
    if device == "cpu":
        text = text.replace("torch.cuda.current_device()", "torch.device('cpu')")
    names: dict[str, Any] = {"__name__": f"program_{form}"}
    exec(text, names)
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description="FSDP1 against fully_shard, by hand and migrated.")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--world", type=int, default=8)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turns", type=int, default=4, help="of each program in a round")
    parser.add_argument("--steps", type=int, default=4, help="in a turn")
    parser.add_argument("--train", choices=FORMS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        train(args)
        return
    print("\n".join(table(compare(args))))


def compare(args: argparse.Namespace) -> list[dict[str, dict[str, float]]]:
    """What a step of each form took, by round."""
    options = [f"--{key}={value}" for key, value in vars(args).items() if key != "train"]
    running = {
        form: subprocess.Popen(
            [sys.executable, "-P", __file__, *options, f"--train={form}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": "0", "KINETO_LOG_LEVEL": "5"},
        )
        for form in FORMS
    }

    def turn(form: str) -> Any:
        process = running[form]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"{form} failed")
        return json.loads(line)

    try:
        counted = {form: turn(form) for form in FORMS}
        rounds = []
        for number in range(args.rounds):
            first = number % len(FORMS)
            steps: dict[str, list[list[float]]] = {form: [] for form in FORMS}
            for _ in range(args.turns):
                for form in (*FORMS[first:], *FORMS[:first]):
                    steps[form] += turn(form)
            rounds.append({form: counted[form] | medians(steps[form]) for form in FORMS})
    finally:
        for process in running.values():
            process.communicate()
    return rounds


def medians(steps: list[list[float]]) -> dict[str, float]:
    """By part."""
    columns = zip(*steps, strict=True)
    return {part: statistics.median(each) for part, each in zip(PARTS, columns, strict=True)}


def table(rounds: list[dict[str, dict[str, float]]]) -> list[str]:
    """Medians over the rounds, each beside the ratio to the program by hand."""
    titles = [part if part != "step" else "all" for part in PARTS]
    lines = [
        "| | " + " | ".join(f"{title}, ms | / hand" for title in titles) + " | collectives | MiB |",
        "|---" + "|--:" * (2 * len(PARTS) + 2) + "|",
    ]
    for form in FORMS:
        cells = [form]
        for part in PARTS:
            ratios = [each[form][part] / each["hand"][part] for each in rounds]
            seconds = statistics.median(each[form][part] for each in rounds)
            cells += [f"{1e3 * seconds:.1f}", f"{statistics.median(ratios):.2f}"]
        cells.append(f"{rounds[0][form]['collectives']:.0f}")
        cells.append(f"{statistics.median(each[form]['bytes'] for each in rounds) / 2**20:.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def train(args: argparse.Namespace) -> None:
    """One process: a line with collectives and bytes, then one with the seconds of some steps for each that it reads."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch.utils._python_dispatch import TorchDispatchMode

    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=args.world)
    on_gpu = args.device == "cuda"
    device = torch.device(args.device, 0) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    tokens = torch.randint(0, 8192, (args.batch, args.length), device=device)

    def now() -> float:
        if not on_gpu:
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def step() -> list[float]:
        begin = now()
        logits = model(tokens).float()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        forward = now()
        loss.backward()
        backward = now()
        optimizer.step()
        optimizer.zero_grad()
        end = now()
        return [forward - begin, backward - forward, end - backward, end - begin]

    class Collectives(TorchDispatchMode):
        """Counts them, those below DTensors as well."""

        counts: Counter[str] = Counter()

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if any(issubclass(each, dist.tensor.DTensor) for each in types):
                return NotImplemented
            if func.namespace in ("c10d", "_c10d_functional") and "wait" not in func.__name__:
                self.counts[func.__name__] += 1
            return func(*args, **kwargs or {})

    sys.stdin.readline()
    kept = Memory(on_gpu)
    with kept:
        names = program(args.train, args.device)
        model = names["build"](names["Transformer"](args.dim, args.layers).to(device))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        for _ in range(LEFT_OUT):
            step()
    with Memory(on_gpu) as used:
        step()
    with Collectives():
        step()
    found = {"collectives": Collectives.counts.total(), "bytes": kept.left + used.most}
    print(json.dumps(found), flush=True)
    for _ in sys.stdin:
        print(json.dumps([step() for _ in range(args.steps)]), flush=True)


class Memory:
    """The bytes that tensors have more, at most and at the end, than at the begin."""

    most = left = 0

    def __init__(self, on_gpu: bool) -> None:
        self._on_gpu = on_gpu

    def __enter__(self) -> Memory:
        import torch

        if self._on_gpu:
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()
        else:
            cpu = torch.profiler.ProfilerActivity.CPU
            self._profile = torch.profiler.profile(activities=[cpu], profile_memory=True)
            self._profile.start()
        return self

    def __exit__(self, *_: object) -> None:
        import torch

        if self._on_gpu:
            self.most = torch.cuda.max_memory_allocated() - self._before
            self.left = torch.cuda.memory_allocated() - self._before
            return
        self._profile.stop()
        events = self._profile.profiler.kineto_results.events()
        memory = [(each.start_ns(), each.nbytes()) for each in events if each.name() == "[memory]"]
        for _, size in sorted(memory):
            self.left += size
            self.most = max(self.most, self.left)


if __name__ == "__main__":
    main()
