"""Parameters that forward writes under NO_SHARD."""

from pathlib import Path

import pytest

from .programs import analysed

PROGRAM = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.codes = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(4, 8))
        self.register_buffer("mean", torch.zeros(8))

    def start(self, x):
        {start}

    def other(self, x):
        {other}

    def forward(self, x):
        self.start(x)
        {forward}
        return x * self.scale


model = FSDP(Layer(), sharding_strategy=ShardingStrategy.{strategy})
"""


def found(folder: Path, strategy: str = "NO_SHARD", form: str = "auto", **code: str) -> int:
    bodies = {"start": "pass", "other": "pass", "forward": "pass", **code}
    program = PROGRAM.format(strategy=strategy, **bodies)
    findings = analysed(folder, program, form=form).findings
    return sum(f.code == "FSDP103" and "during forward" in f.message for f in findings)


@pytest.mark.parametrize(
    "write",
    [
        "self.scale.data.copy_(1 / x.std(0))",
        "self.codes[0] = x[0]",
        "self.codes.data[0] = x[0]",
        "self.scale.data = self.scale.data * 0.9",
        "self.scale.detach().mul_(0.9)",
        "self.scale += 1",
        "nn.init.ones_(self.scale)",
        "scale = self.scale; scale.data.clamp_(0, 1)",
        "self.inner.weight.mul_(0.9)",
    ],
)
def test_each_write_is_found_in_each_form(write: str, tmp_path: Path) -> None:
    for form in ("auto", "torch", "bridge"):
        assert found(tmp_path, form=form, forward=write) == 1
        assert found(tmp_path, form=form, start=write) == 1
    assert found(tmp_path, other=write) == 0
    assert found(tmp_path, "FULL_SHARD", forward=write) == 0


@pytest.mark.parametrize(
    "line",
    [
        "self.mean.mul_(0.9)",
        "x = x + self.codes[0]",
        "x = self.scale.data * x",
        "x.add_(self.scale)",
    ],
)
def test_reads_and_buffers_are_safe(line: str, tmp_path: Path) -> None:
    assert found(tmp_path, forward=line) == 0


def test_a_layer_has_parameters_of_its_own(tmp_path: Path) -> None:
    program = PROGRAM.format(
        start="pass", other="pass", forward="self.weight.mul_(2)", strategy="NO_SHARD"
    )
    said = [f.code for f in analysed(tmp_path, program.replace("nn.Module", "nn.Linear")).findings]
    assert (
        said.count("FSDP103")
        == [f.code for f in analysed(tmp_path, program).findings].count("FSDP103") + 1
    )


HOOKS = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

{hook}

net = nn.Linear(8, 8)
net.{register}
model = FSDP(net, sharding_strategy=ShardingStrategy.{strategy})
"""


@pytest.mark.parametrize(
    ("hook", "register"),
    [
        ("def clamp(m, x):\n    m.weight.data = m.weight.data.clamp(-1, 1)", "register_forward_pre_hook(clamp)"),
        (
            "def limit(top):\n    def hook(module, x):\n        module.weight.data.clamp_(max=top)\n    return hook",
            "register_forward_pre_hook(limit(2.0))",
        ),
        ("def after(m, x, y):\n    m.bias.data.zero_()", "register_forward_hook(after)"),
        ("zero = 0", "register_forward_hook(lambda m, x, y: m.bias.data.fill_(zero))"),
        (
            "class Norm:\n    def hook(self, m, x):\n        m.weight.data.div_(2)\nnorm = Norm()",
            "register_forward_pre_hook(norm.hook)",
        ),
    ],
)  # fmt: skip
def test_hooks_of_forward(hook: str, register: str, tmp_path: Path) -> None:
    def number(strategy: str, code: str = hook) -> int:
        program = HOOKS.format(hook=code, register=register, strategy=strategy)
        findings = analysed(tmp_path / f"{strategy} {len(code)}", program).findings
        return sum(f.code == "FSDP103" and "during forward" in f.message for f in findings)

    assert number("NO_SHARD") == 1
    assert number("FULL_SHARD") == 0
    if "lambda" not in register:
        assert number("NO_SHARD", "from hooks import *") == 0
