"""Which expressions are known to hold parameters of a sharded model, and what is said of a model's classes elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.engine import analyse
from fsdp_migrate.findings import Action, Finding

from .test_examples import analyse as analyse_text

HEAD = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
"""

# Programs in which `.norm()` is taken of a parameter or a gradient of the sharded model, on the last line.
FOUND = {
    "a loop": "for p in model.parameters():\n    p.grad.norm()",
    "names and parameters": "for name, p in model.named_parameters():\n    p.grad.data.norm()",
    "numbered": "for i, (name, p) in enumerate(model.named_parameters()):\n    p.norm()",
    "a comprehension": "[p.grad.float().norm() for p in model.parameters() if p.requires_grad]",
    "a generator in a sum": "sum(p.grad.pow(2).sum() for p in model.parameters())",
    "a list by name": "ps = list(model.parameters())\nfor p in ps:\n    p.norm()",
    "filtered": "ps = filter(lambda p: p.requires_grad, model.parameters())\nfor p in ps:\n    p.norm()",
    "a list that is filled": "ps = []\nfor p in model.parameters():\n    ps.append(p)\nfor q in ps:\n    q.norm()",
    "a dictionary": "ps = dict(model.named_parameters())\nfor name in names:\n    ps[name].norm()",
    "items": "ps = {n: p for n, p in model.named_parameters()}\nfor n, p in ps.items():\n    p.norm()",
    "gradients": "gs = [p.grad for p in model.parameters()]\nfor g in gs:\n    g.norm()",
    "two models": "for a, p in zip(other.parameters(), model.parameters()):\n    p.norm()",
    "modules": "for m in model.modules():\n    for p in m.parameters(recurse=False):\n        p.norm()",
    "one": "next(model.parameters()).norm()\np = next(model.parameters())\np.norm()",
    "by name": "model.head.weight.grad.norm()",
    "a function": "def norm(ps):\n    return [p.norm() for p in ps]\nnorm(model.parameters())",
    "a function that gives them": "def of(m):\n    return list(m.parameters())\nfor p in of(model):\n    p.norm()",
    "groups": "o = torch.optim.SGD(model.parameters())\nfor g in o.param_groups:\n    for p in g['params']:\n        p.norm()",
    "mapped": "list(map(lambda p: p.norm(), model.parameters()))",
    "a function of torch": "for p in model.parameters():\n    torch.linalg.vector_norm(p.grad.detach(), 2)",
}
# Programs in which it is taken of something else.
QUIET = {
    "another model": "for p in other.parameters():\n    p.norm()",
    "the name in another loop": "for p in model.parameters():\n    pass\nfor p in other:\n    p.norm()",
    "the name in a comprehension": "p = next(model.parameters())\n[p.norm() for p in other]",
    "bound again": "p = next(model.parameters())\np = other\np.norm()",
    "the name beside it": "for name, p in model.named_parameters():\n    name.norm()",
    "the other of two": "for p, q in zip(model.parameters(), other.parameters()):\n    q.norm()",
    "an option of a group": "o = torch.optim.SGD(model.parameters())\nfor g in o.param_groups:\n    g['lr'].norm()",
    "keys": "ps = dict(model.named_parameters())\nfor n in ps:\n    n.norm()",
    "told apart": "for p in model.parameters():\n    if isinstance(p, DTensor):\n        pass\n    else:\n        p.norm()",
    "an output": "model(batch).norm()",
    "a layer": "model.norm(batch)",
    "a slice's argument": "x[model.head].weight.norm()",
}


def said(text: str, code: str) -> list[Finding]:
    report, _ = analyse_text(text)
    return [finding for finding in report.findings if finding.code == code]


@pytest.mark.parametrize("case", FOUND)
def test_a_parameter_is_followed(case: str) -> None:
    text = f"{HEAD}model = FSDP(model)\n{FOUND[case]}\n"
    found = said(text, "FSDP507")
    assert found
    assert all(finding.action is Action.RUNTIME for finding in found)
    _, after = analyse_text(text)
    assert "local_shard(" in after
    compile(after, "after", "exec")


@pytest.mark.parametrize("case", QUIET)
def test_nothing_else_is_taken_for_one(case: str) -> None:
    assert not said(f"{HEAD}model = FSDP(model)\n{QUIET[case]}\n", "FSDP507")


@pytest.mark.parametrize("case", FOUND)
def test_parameters_are_no_shards_above_the_constructor(case: str) -> None:
    assert not said(f"{HEAD}{FOUND[case]}\nmodel = FSDP(model)\n", "FSDP507")


MODEL = """\
import torch
from torch import nn


class Block(nn.Module):
    def forward(self, x):
        x += 1
        return self.mlp(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.embed = nn.Embedding(3, 4)
        self.head = nn.Linear(4, 3)
        self.head.weight = self.embed.weight

    def forward(self, x):
        if torch.rand(1) > 0.5:
            x = self.block(x)
        return x
"""
TRAIN = """\
from model import Block, Net
from policies import build
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(Net(), auto_wrap_policy=build())
"""
POLICIES = """\
from model import Block
from torch import nn
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def build():
    return ModuleWrapPolicy({Block, nn.Embedding})
"""


def test_classes_in_another_file_are_named_at_the_constructor(tmp_path: Path) -> None:
    for name, text in {"model": MODEL, "train": TRAIN, "policies": POLICIES}.items():
        (tmp_path / f"{name}.py").write_text(text)
    report = analyse(sorted(tmp_path.glob("*.py")))
    assert not report.errors
    found = {f.code: f for f in report.findings if f.code in {"FSDP503", "FSDP515", "FSDP518"}}
    assert {f.path.rpartition("/")[2] for f in found.values()} == {"train.py"}
    assert "model.py:17" in found["FSDP503"].message
    assert "Block.forward, model.py:7" in found["FSDP515"].message
    assert "Net.forward, model.py:20" in found["FSDP518"].message


def test_an_evaluation_in_another_file_is_seen(tmp_path: Path) -> None:
    (tmp_path / "evaluation.py").write_text("def evaluate(model, batch):\n    model(batch)\n")
    train = tmp_path / "train.py"
    train.write_text(
        f"{HEAD}from evaluation import evaluate\n\nmodel = FSDP(model)\nevaluate(model, batch)\n"
        "optimizer = torch.optim.SGD(model.parameters())\n"
    )
    report = analyse([tmp_path / "evaluation.py", train])
    (change,) = report.changes
    assert b"SGD(resharded(model).parameters())" in change.after


def test_each_run_of_a_function_has_a_model_of_its_own() -> None:
    text = f"""\
{HEAD}

def main():
    model = FSDP(Net())
    optimizer = torch.optim.SGD(model.parameters())
    model(batch)


main()
main()
"""
    assert not said(text, "FSDP502")
