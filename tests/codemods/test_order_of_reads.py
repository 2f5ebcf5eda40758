"""Whether parameters may be read after a forward without gradients, which decides whether the root frees them."""

from pathlib import Path

import pytest

from .programs import analysed

PROGRAM = """\
import torch
from library import embed, package
from model import Net, Trainer, VAE, average, evaluate, off, train
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main():
    vae = VAE()
    model = FSDP(Net())
    {first}
    optimizer = torch.optim.SGD(model.parameters())
    for x in loader:
        {before}
        model(x).sum().backward()
        {behind}
        optimizer.step()
        {last}


if __name__ == "__main__":
    main()
"""
# Statements in front of the optimizer, of the forward, of the step and at the loop's end.
Lines = tuple[str, str, str, str]
READ: dict[str, Lines] = {
    "an average behind an evaluation": ("", "evaluate(model)\naverage(model)", "", ""),
    "an average behind an evaluation at the end": ("", "", "", "evaluate(model)\naverage(model)"),
    "an optimizer behind an evaluation": ("evaluate(model)", "", "", ""),
    "a step behind an evaluation": ("", "", "evaluate(model)", ""),
    "parameters that are frozen": ("", "", "", "evaluate(model)\nfor p in model.parameters():\n    p.requires_grad = False"),
    "the optimizer's state": ("", "", "", "evaluate(model)\nFSDP.optim_state_dict(model, optimizer)"),
    "a block": ("", "with torch.no_grad():\n    model(x)\naverage(model)", "", ""),
    "generation": ("", "model.generate(x)\naverage(model)", "", ""),
    "a block that is chosen": ("", "with off(x):\n    model(x)\naverage(model)", "", ""),
    "by a flag": ("", "with torch.set_grad_enabled(x):\n    model(x)\naverage(model)", "", ""),
    "what another library does": ("", "with torch.no_grad():\n    embed(model)\naverage(model)", "", ""),
    "what another library reads": ("", "evaluate(model)\npackage.average(model)", "", ""),
    "a method of an object": ("", "Trainer(model).evaluate()\naverage(model)", "", ""),
    "a backward in one branch": ("", "evaluate(model)\nif x:\n    model(x).sum().backward()\naverage(model)", "", ""),
    "a backward of another model": ("", "evaluate(model)\nvae.encode(x).sum().backward()\naverage(model)", "", ""),
    "before the loop goes on": ("", "average(model)", "", "if x:\n    evaluate(model)\n    continue"),
    "in a handler": ("", "", "", "try:\n    evaluate(model)\nexcept ValueError:\n    average(model)"),
}  # fmt: skip
NOT_READ: dict[str, Lines] = {
    "an average behind the step": ("", "evaluate(model)", "", "average(model)"),
    "an evaluation at the end": ("", "", "", "average(model)\nevaluate(model)"),
    "another model": ("", "with torch.no_grad():\n    x = vae.encode(x).sample()\naverage(model)", "", ""),
    "another sharded model": ("", "with torch.no_grad():\n    sharded_vae(x)\naverage(model)", "", ""),
    "its state first": ("", "", "", "evaluate(model)\nmodel.state_dict()\nFSDP.optim_state_dict(model, optimizer)"),
    "a count": ("", "evaluate(model)\nprint(sum(p.numel() for p in model.parameters()))", "", ""),
    "a device": ("", "evaluate(model)\nx = x.to(next(model.parameters()).device)", "", ""),
    "a setup": ("torch.compile(model)\napply_activation_checkpointing(model)", "evaluate(model)", "", ""),
    "a word": ("ema_decay = 0.99\nswap(ema_decay)", "evaluate(model)", "", ""),
    "a forward and a backward": ("", "evaluate(model)\ntrain(model)\naverage(model)", "", ""),
    "branches": ("", "evaluate(model)\nif x == 1:\n    train(model)\nelif x == 2:\n    train(model)\naverage(model)", "", ""),
    "another loop": ("", "evaluate(model)\nfor y in x:\n    if y:\n        break\n    train(model)\naverage(model)", "", ""),
    "nothing without gradients": ("", "average(model)", "", "average(model)"),
}  # fmt: skip
MODEL = """\
import torch
from torch import nn


class Net(nn.Module):
    def forward(self, x):
        return x


class VAE(nn.Module):
    def encode(self, x):
        return x

    def sample(self):
        return 1


class Trainer:
    def __init__(self, model):
        self.model = model

    def evaluate(self):
        with torch.inference_mode():
            self.model(1)


@torch.no_grad()
def evaluate(net):
    return inner(net)


def inner(net):
    return net(1)


def train(net):
    net(1).sum().backward()


def average(net):
    for p in net.parameters():
        p.mul_(0.9)


def off(x):
    return torch.no_grad() if x else torch.enable_grad()


def never_called(net):
    evaluate(net)
    average(net)
"""


def program(lines: Lines) -> str:
    text = PROGRAM
    for place, line in zip(("first", "before", "behind", "last"), lines, strict=True):
        margin = "\n    " if place == "first" else "\n        "
        text = text.replace(f"{{{place}}}", line.replace("\n", margin) or "pass")
    if "sharded_vae" in text:
        text = text.replace("    vae = VAE()\n", "    vae = VAE()\n    sharded_vae = FSDP(vae)\n")
    return text


@pytest.mark.parametrize("case", READ)
def test_what_may_read_gathered_parameters(case: str, tmp_path: Path) -> None:
    files = {"train.py": program(READ[case]), "model.py": MODEL}
    after = analysed(tmp_path, files, "torch").after["train.py"]
    assert after.count("reshard_after_forward=True") == 1, after


@pytest.mark.parametrize("case", NOT_READ)
def test_what_reads_none(case: str, tmp_path: Path) -> None:
    files = {"train.py": program(NOT_READ[case]), "model.py": MODEL}
    result = analysed(tmp_path, files, "torch")
    assert "reshard_after_forward=True" not in result.after["train.py"], result.findings


WHO = {
    "an average behind an evaluation": "line 41 of model.py",
    "an optimizer behind an evaluation": "line 11",
    "what another library reads": "code outside of these files",
}


@pytest.mark.parametrize(("case", "who"), WHO.items())
def test_the_finding_names_a_line_only_where_one_reads(case: str, who: str, tmp_path: Path) -> None:
    files = {"train.py": program(READ[case]), "model.py": MODEL}
    findings = analysed(tmp_path, files, "torch").findings
    (message,) = [each.message for each in findings if each.code == "FSDP006"]
    assert f"because {who} may use parameters" in message


LIBRARY = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(net):
    return FSDP(net)


class Evaluation:
    def __init__(self, net: FSDP):
        self.net = net

    @torch.no_grad()
    def run(self):
        self.net(1)


class Average{base}:
    def update(self, net: FSDP):
        for p in net.parameters():
            p.mul_(0.9)
"""


@pytest.mark.parametrize("base", ["", "(Callback)"])
@pytest.mark.parametrize(
    "end", ["", "\n\nif __name__ == '__main__':\n    shard(torch.nn.Linear(1, 1))\n"]
)
def test_the_functions_of_a_library_run_in_any_order(base: str, end: str, tmp_path: Path) -> None:
    """Those of a program that none of its code names do not run, but for methods that another library may call."""
    text = LIBRARY.replace("{base}", base).replace("Evaluation:", f"Evaluation{base}:") + end
    if base:
        text = f"from library import Callback\n{text}"
    after = analysed(tmp_path, text, "torch").after["train.py"]
    assert ("reshard_after_forward=True" in after) is (not end or bool(base))


UNITS = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from model import Block, Net, evaluate

model = FSDP(
    Net(),
    auto_wrap_policy=ModuleWrapPolicy({{Block}}),
    sharding_strategy=ShardingStrategy.{strategy},
)
with torch.no_grad():
    print(evaluate(model))
{last}
"""


@pytest.mark.parametrize(
    ("strategy", "last", "units"),
    [
        ("FULL_SHARD", "", "outermost unit keeps"),
        ("FULL_SHARD", "optimizer = torch.optim.SGD(model.parameters())", ""),
        (
            "SHARD_GRAD_OP",
            "optimizer = torch.optim.SGD(model.parameters())",
            "Units with `reshard_after_forward=False` keep gathered copies of their parameters",
        ),
    ],
)
def test_the_assumption_names_the_units_that_stay_gathered(
    strategy: str, last: str, units: str, tmp_path: Path
) -> None:
    text = UNITS.format(strategy=strategy, last=last)
    program = analysed(tmp_path, text, "torch")
    messages = [each.message for each in program.findings if each.code == "FSDP003"]
    found = [each for each in messages if "gathered copies" in each]
    assert len(found) == bool(units)
    assert all(units in each for each in found)
