"""What is proven of a model's parts, and above all what is not."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from fsdp_migrate.index.extension import is_extended
from fsdp_migrate.index.known_modules import Makeup
from fsdp_migrate.index.makeup import makeup
from fsdp_migrate.index.module import Module
from fsdp_migrate.index.project import Definition, Project

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"


def of(text: str) -> Makeup:
    """The makeup of the class `Net` of a file."""
    module = Module(Path("/nowhere/net.py"), "net.py", "net", HEAD + text)
    net = next(n for n in module.tree.body if isinstance(n, ast.ClassDef) and n.name == "Net")
    return makeup(Project([module]), Definition(module, net))


def net(body: str, parameters: str = "", more: str = "") -> str:
    """A class with one statement or several in its `__init__`."""
    lines = "".join(f"        {line}\n" for line in ["super().__init__()", *body.split("\n")])
    return f"{more}\nclass Net(nn.Module):\n    def __init__(self{parameters}):\n{lines}"


PROVEN = {
    "linear": net("self.a = nn.Linear(8, 8)"),
    "containers": net("self.a = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.1))"),
    "list in a loop": net("self.a = nn.ModuleList(nn.Linear(8, 8) for _ in range(n))", ", n"),
    "append": net("self.a = nn.ModuleList()\nfor i in range(3):\n    self.a.append(nn.Linear(8, 8))"),
    "annotated": net("self.n = n\nself.s = s", ", n: int, s: str = 'a'"),
    "optional": net("self.n = n", ", n: int | None = None"),
    "divided": net("self.n = n\nself.d = 8 // n", ", n"),
    "default": net("self.n = n", ", n=4"),
    "dataclass": net(
        "self.c = c\nself.n = c.n",
        ", c: Config",
        "from dataclasses import dataclass\n@dataclass\nclass Config:\n    n: int = 1\n",
    ),
    "attention": net("self.a = nn.MultiheadAttention(8, 2)\nnn.init.zeros_(self.a.in_proj_weight)"),
    "submodules in forward": net("self.a = nn.Linear(8, 8)")
    + "    def forward(self, x):\n        return F.relu(self.helper(x))\n"
    + "    def helper(self, x):\n        return self.a(x).mystery()\n",
    "a block": net("self.b = Block(8)", more="class Block(nn.Module):\n    def __init__(self, n):\n"
        "        super().__init__()\n        self.a = nn.Linear(n, n)\n"),
    "init weights": net("self.a = nn.Linear(8, 8)\nself.apply(self._init)")
    + "    def _init(self, m):\n        if isinstance(m, nn.Linear):\n            m.weight.data.normal_(0.0)\n",
}  # fmt: skip

NOT_PROVEN = {
    "alias": net("self.a = BN(8)", more="from torch.nn import BatchNorm1d as BN\n"),
    "module alias": net("self.a = b.BatchNorm1d(8)", more="import torch.nn.modules.batchnorm as b\n"),
    "parameter": net("self.backbone = backbone", ", backbone"),
    "parameter, annotated": net("self.backbone = backbone", ", backbone: nn.Module"),
    "parameter, default None": net("self.backbone = backbone", ", backbone=None"),
    "parameter in a container": net("self.a = nn.Sequential(backbone, nn.Linear(8, 8))", ", backbone"),
    "parameter behind a name": net("b = backbone\nself.a = b", ", backbone"),
    "parameters in a loop": net("self.a = nn.ModuleList()\nfor x in layers:\n    self.a.append(x)", ", layers"),
    "attribute of a parameter": net("self.a = config.norm", ", config"),
    "class as a parameter": net("self.a = norm(8)", ", norm"),
    "starred": "class Net(nn.Sequential):\n    def __init__(self, *layers):\n        super().__init__(*layers)\n",
    "setattr": net("setattr(self, 'a', x)", ", x"),
    "add_module": net("self.add_module('a', x)", ", x"),
    "attribute of self called": net("self.kind = kind\nself.a = self.kind(8)", ", kind: str"),
    "class attribute called": "class Net(nn.Module):\n    kind = unknown\n    def __init__(self):\n"
    "        super().__init__()\n        self.a = self.kind(8)\n",
    "in a helper": net("self.a = self.make()") + "    def make(self):\n        return self.kind(8)\n",
    "built later": net("self.a = None") + "    def build(self, norm):\n        self.a = norm(8)\n",
    "getattr": net("self.a = getattr(nn, kind)(8)", ", kind: str"),
    "getattr first": net("c = getattr(nn, kind)\nself.a = c(8)", ", kind: str"),
    "table": net("self.a = TABLE[kind](8)", ", kind: str", "TABLE = {'bn': nn.Linear}\n"),
    "another package": net("self.a = lib.Block()", more="import lib\n"),
    "made at the top": net("self.a = A", more="A = lib()\n"),
    "unknown base": "class Net(make()):\n    pass\n",
    "mixin of another package": "from lib import Base\nclass Net(Base):\n    pass\n",
    "torch.load": net("self.a = torch.load('x')"),
    "torch.hub": net("self.a = torch.hub.load('x')"),
}  # fmt: skip

BUFFERS = {
    "register_buffer": net("self.register_buffer('a', torch.ones(1))"),
    "cross entropy": net("self.loss = nn.CrossEntropyLoss(weight=torch.ones(2))"),
    "instance norm": net("self.a = nn.InstanceNorm1d(8, track_running_stats=True)"),
    "Buffer": net("self.a = nn.Buffer(torch.ones(1))"),
}


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in PROVEN.items()])
def test_proven(text: str) -> None:
    assert of(text) == Makeup(True, True)


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in NOT_PROVEN.items()])
def test_not_proven(text: str) -> None:
    assert of(text) == Makeup(False, False)


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in BUFFERS.items()])
def test_buffers(text: str) -> None:
    assert of(text) == Makeup(True, False)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("model.bn = nn.BatchNorm1d(8)", True),
        ("model.encoder.layers[0] = x", True),
        ("model.register_buffer('a', t)", True),
        ("model.layers.append(x)", True),
        ("setattr(model, 'bn', x)", True),
        ("other = model\nother.bn = x", True),
        ("model = other.to(device)\nother.bn = x", True),
        ("model.use_cache = False", False),
        ("other.bn = x", False),
    ],
)
def test_is_extended(line: str, expected: bool) -> None:
    module = Module(Path("/nowhere/net.py"), "net.py", "net", f"{line}\nuse(model)\n")
    assert is_extended([ast.Name("model", ast.Load())], module) is expected
