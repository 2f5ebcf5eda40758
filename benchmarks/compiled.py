"""torch.compile in five forms: `python benchmarks/compiled.py`.

The programs of `training.py` train three steps on two CPU processes (gloo, backend aot_eager), or with `--device cuda` on
one GPU (NCCL, inductor), as they are and compiled: each block before the model is sharded (`block.compile()`, and
`torch.compile(block)` in its place), and the whole model afterwards. A row says whether the losses are those without
torch.compile, and how many graphs and graph breaks there were.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import traceback
from typing import Any

from training import FORMS, program

RANKS = {"cpu": 2, "cuda": 1}
BACKENDS = {"cpu": "aot_eager", "cuda": "inductor"}
WAYS = ("eager", "block.compile()", "torch.compile(block)", "torch.compile(model)")


def main() -> None:
    parser = argparse.ArgumentParser(description="torch.compile, by hand and migrated.")
    parser.add_argument("--device", choices=[*RANKS], default="cpu")
    parser.add_argument("--form", choices=FORMS, help=argparse.SUPPRESS)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.form:
        print(json.dumps(train(args.form, args.way, args.device)))
        return
    eager = {form: run(form, "eager", args.device) for form in FORMS}
    as_fsdp1 = all(each["losses"] == eager["FSDP1"]["losses"] for each in eager.values())
    print(f"Without torch.compile the losses are {'equal' if as_fsdp1 else 'not equal'}.\n")
    print("| | " + " | ".join(f"{way} | graphs | breaks" for way in WAYS[1:]) + " |")
    print("|---" + "|---|--:|--:" * (len(WAYS) - 1) + "|")
    for form in FORMS:
        cells = [form]
        for way in WAYS[1:]:
            found = run(form, way, args.device)
            cells += [verdict(found, eager[form]), *map(str, found.get("counts", ("", "")))]
        print(f"| {' | '.join(cells)} |", flush=True)


def verdict(found: dict[str, Any], eager: dict[str, Any]) -> str:
    """In words."""
    if "error" in found:
        return str(found["error"])
    if found["losses"] == eager["losses"]:
        return "equal"
    pairs = zip(found["losses"], eager["losses"], strict=True)
    return f"within {max(abs(one - other) for one, other in pairs):.0e}"


def run(form: str, way: str, device: str) -> dict[str, Any]:
    """What rank 0 of the ranks found."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, f"--form={form}", f"--way={way}"]
        command.append(f"--device={device}")
        ranks = [
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "RANK": str(rank), "RENDEZVOUS": f"{folder}/store"},
            )
            for rank in range(RANKS[device])
        ]
        printed = [rank.communicate()[0] for rank in ranks]
    found: dict[str, Any] = json.loads(printed[0].splitlines()[-1])
    return found


def train(form: str, way: str, device: str) -> dict[str, Any]:
    """The losses of three steps, and the numbers of graphs and of graph breaks."""
    import torch
    import torch.distributed as dist
    from torch._dynamo.utils import counters

    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group(
        "gloo" if device == "cpu" else "nccl",
        init_method=f"file://{os.environ['RENDEZVOUS']}",
        rank=rank,
        world_size=RANKS[device],
    )
    torch.manual_seed(0)
    names = program(form, device)
    model = names["Transformer"](64, 4, vocabulary=256).to(device)
    backend = BACKENDS[device]
    try:
        for number, block in enumerate(model.blocks):
            if way == "block.compile()":
                block.compile(backend=backend)
            elif way == "torch.compile(block)":
                model.blocks[number] = torch.compile(block, backend=backend)
        model = names["build"](model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        if way == "torch.compile(model)":
            model = torch.compile(model, backend=backend)
        losses = []
        torch.manual_seed(rank)
        for _ in range(3):
            tokens = torch.randint(0, 256, (2, 16)).to(device)
            logits = model(tokens).float()
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    except Exception as error:
        traceback.print_exc()
        return {"error": type(error).__name__}
    breaks = counters["graph_break"]
    print(*(f"{count} x {reason}" for reason, count in breaks.items()), sep="\n", file=sys.stderr)
    return {"losses": losses, "counts": [counters["stats"]["unique_graphs"], breaks.total()]}


if __name__ == "__main__":
    main()
