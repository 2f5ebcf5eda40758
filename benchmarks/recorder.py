"""What the recorder costs a training step: `python -P benchmarks/recorder.py`.

Trains a transformer with FSDP2 on two CPU processes, recorded and not, one run after the other in
pairs, so that a busy machine slows both. Prints the ratio of the times of a step: the median over
the pairs of the ratio of the runs' median steps, and how far the pairs are apart. The first steps
are left out; the recorder's look at the model falls in the first.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fsdp_migrate.verify import launch, reproducible
from fsdp_migrate.verify.folders import Program
from fsdp_migrate.verify.options import Recording

LEFT_OUT = 3


def main() -> None:
    parser = argparse.ArgumentParser(description="The recorder's overhead.")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        train(args)
        return
    for name, recording in (("plain", Recording()), ("canonical", Recording(canonical=True))):
        ratios = []
        for pair in range(args.pairs):
            # Each goes first in every other pair.
            kinds = (None, recording) if pair % 2 else (recording, None)
            seconds = {kind is not None: run(args, kind) for kind in kinds}
            ratios.append(seconds[True] / seconds[False])
        ratios.sort()
        print(
            f"{name:9}  recorded/unrecorded {statistics.median(ratios):.3f}  "
            f"({ratios[0]:.3f} to {ratios[-1]:.3f} in {len(ratios)} pairs)",
            flush=True,
        )


def run(args: argparse.Namespace, recording: Recording | None) -> float:
    """The median time of a step, of the slowest rank."""
    script = Path(__file__).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        values = {**reproducible.SETTINGS, **os.environ}
        values |= {"OMP_NUM_THREADS": "1", "STEP_TIMES": str(folder)}
        if recording is not None:
            (folder / "records").mkdir()
            program = Program("recorded", script.parent, script, script.parent)
            values |= launch.environment(program, "cpu", folder / "records", recording)
        command = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={args.ranks}", str(script), "--train"]
        command += ["--steps", str(args.steps), "--dim", str(args.dim)]
        subprocess.run(command, env=values, check=True, capture_output=True)
        times = [json.loads(path.read_text()) for path in folder.glob("times-*.json")]
        assert len(times) == args.ranks
        return max(statistics.median(steps) for steps in times)


def train(args: argparse.Namespace) -> None:
    """The program: a decoder of four blocks, clipping, AdamW."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(args.dim, 4, 4 * args.dim, batch_first=True, dropout=0.0)
    model = nn.Sequential(
        nn.Embedding(1000, args.dim),
        nn.TransformerEncoder(block, 4, enable_nested_tensor=False),
        nn.Linear(args.dim, 1000),
    )
    for layer in model[1].layers:  # type: ignore[union-attr]
        fully_shard(layer)  # type: ignore[arg-type]
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    times = []
    for step in range(args.steps + LEFT_OUT):
        tokens = torch.randint(1000, (4, 65))
        begin = time.perf_counter()
        loss = nn.functional.cross_entropy(
            model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
        )
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step >= LEFT_OUT:
            times.append(time.perf_counter() - begin)
    Path(os.environ["STEP_TIMES"], f"times-{dist.get_rank()}.json").write_text(json.dumps(times))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
