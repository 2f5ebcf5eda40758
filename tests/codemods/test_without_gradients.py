"""Whether a program may run the sharded model without gradients, which decides whether the root frees its parameters."""

from pathlib import Path

import pytest

from .programs import analysed

PROGRAM = """\
import torch
from helper import embed
from model import Net, VAE
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


{functions}


def main():
    vae = VAE()
    model = FSDP(Net())
    ema_decay = 0.99
    for x in loader:
        {line}
        model(x).sum().backward()


if __name__ == "__main__":
    main()
"""
EVALUATE = "@torch.no_grad()\ndef evaluate(net):\n    return net(1)"
UPDATE = "@torch.no_grad()\ndef update(net):\n    for p in net.parameters():\n        p.mul_(0.9)"
SAMPLE = "@torch.inference_mode\ndef sample(net):\n    return inner(net)\n\n\ndef inner(net):\n    return net(1)"
# Functions of the program, a line of its loop, and whether the model may run without gradients.
CASES = {
    "a forward in a block": ("", "with torch.no_grad(): model(x)", True),
    "a function that is decorated": (EVALUATE, "evaluate(model)", True),
    "a function that nobody here calls": (EVALUATE, "pass", True),
    "a function that is called there": (SAMPLE, "sample(model)", True),
    "what another library is given": ("", "with torch.no_grad(): embed(model, x)", True),
    "a method of the model": ("", "with torch.inference_mode(): model.generate(x)", True),
    "a block that is chosen": ("", "off = torch.no_grad if x else torch.enable_grad", True),
    "another model": ("", "with torch.no_grad(): x = vae.encode(x).sample()", False),
    "its parameters": (UPDATE, "update(model)", False),
    "its state": ("", "with torch.no_grad(): torch.save(model.state_dict(), 'm.pt')", False),
    "none at all": ("", "pass", False),
}
MODEL = """\
from torch import nn


class Net(nn.Module):
    def forward(self, x):
        return x


class VAE(nn.Module):
    def encode(self, x):
        return x

    def sample(self):
        return 1
"""


@pytest.mark.parametrize("case", CASES)
def test_what_runs_without_gradients(case: str, tmp_path: Path) -> None:
    functions, line, runs = CASES[case]
    text = PROGRAM.format(functions=functions, line=line)
    after = analysed(tmp_path, {"train.py": text, "model.py": MODEL}, "torch").after["train.py"]
    assert ("reshard_after_forward=True" in after) is runs
