"""Where FSDP1 models go, across names, attributes, functions and files."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from fsdp_migrate.index.models import Models
from fsdp_migrate.index.module import Module
from fsdp_migrate.index.project import Project

IMPORT = "import torch; from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"


def reached(**files: str) -> set[str]:
    """The receivers of `.probe()` calls that hold an FSDP1 model, as `file:receiver:line`."""
    modules = [
        Module(
            Path(f"/project/{name.replace('__', '/')}.py"),
            name,
            f"project.{name.replace('__', '.')}",
            text,
        )
        for name, text in files.items()
    ]
    project = Project(modules)
    models = Models(project)
    return {
        f"{module.shown}:{ast.unparse(attribute.value)}:{attribute.lineno}"
        for module in modules
        for attribute in module.attributes
        if attribute.attr == "probe" and models.sites(attribute.value)
    }


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param("m = FSDP(m)\nm.probe()", {"main:m:3"}, id="rebound name"),
        pytest.param(
            "m.probe()\nm = FSDP(m)", set(), id="above the constructor it is the plain model"
        ),
        pytest.param(
            "for i in x:\n    m.probe()\n    m = FSDP(m)", {"main:m:3"}, id="but not in a loop"
        ),
        pytest.param("w = FSDP(m)\nw.probe()\nm.probe()", {"main:w:3"}, id="another name"),
        pytest.param("m = FSDP(m)\nm = other(m)\nm.probe()", set(), id="overwritten"),
        pytest.param("m = FSDP(m)\nn = m\nn.probe()", {"main:n:4"}, id="copied"),
        pytest.param(
            "m = FSDP(m) if a else m\nm.probe()", {"main:m:3"}, id="conditional expression"
        ),
        pytest.param(
            "if a:\n    m = FSDP(m)\nelse:\n    m.probe()",
            set(),
            id="the other branch never has it",
        ),
        pytest.param("m, n = FSDP(m), 1\nm.probe()\nn.probe()", {"main:m:3"}, id="tuple"),
        pytest.param("m = FSDP(m).to(d)\nm.probe()", {"main:m:3"}, id="moved"),
        pytest.param("m = torch.compile(FSDP(m))\nm.probe()", {"main:m:3"}, id="compiled"),
        pytest.param("m = FSDP(m)\nm.module.probe()", {"main:m.module:3"}, id="inner module"),
        pytest.param(
            "def f(a):\n    a.probe()\nf(FSDP(m))", {"main:a:3"}, id="argument of a function"
        ),
        pytest.param(
            "def f(x, *, a):\n    a.probe()\nf(1, a=FSDP(m))", {"main:a:3"}, id="keyword argument"
        ),
        pytest.param(
            "def f():\n    return 1, FSDP(m)\n_, a = f()\na.probe()",
            {"main:a:5"},
            id="result in a tuple",
        ),
        pytest.param(
            "class T:\n    def __init__(self):\n        self.m = FSDP(m)\n    def go(self):\n        self.m.probe()",
            {"main:self.m:6"},
            id="attribute set in another method",
        ),
        pytest.param(
            "class B:\n    def go(self):\n        self.m.probe()\nclass T(B):\n    def up(self):\n        self.m = FSDP(m)",
            {"main:self.m:4"},
            id="attribute read in a base class",
        ),
        pytest.param(
            "class A:\n    def go(self):\n        self.m.probe()\nclass T:\n    def up(self):\n        self.m = FSDP(m)",
            set(),
            id="attribute of an unrelated class",
        ),
        pytest.param("def f(a: FSDP):\n    a.probe()", {"main:a:3"}, id="annotation"),
        pytest.param("if isinstance(a, FSDP):\n    a.probe()\na.probe()", {"main:a:3"}, id="guard"),
        pytest.param(
            "m = FSDP(m)\nif not isinstance(m, FSDP):\n    m.probe()\nelse:\n    m.probe()",
            {"main:m:6"},
            id="behind the contrary of a guard",
        ),
        pytest.param("def f(FSDP):\n    m = FSDP(m)\n    m.probe()", set(), id="shadowed class"),
    ],
)
def test_within_a_file(body: str, expected: set[str]) -> None:
    assert reached(main=IMPORT + body) == expected


def test_across_files() -> None:
    main = (
        IMPORT
        + "from train import train\nfrom build import build\nmodel = build(1)\ntrain(model, 3)\n"
    )
    build = IMPORT + "def build(x):\n    net = x\n    net = FSDP(net)\n    return net\n"
    train = "def train(model, steps):\n    model.probe()\n    steps.probe()\n"
    assert reached(main=main, build=build, train=train) == {"train:model:2"}


def test_through_a_re_export_and_a_star() -> None:
    dist = "from torch.distributed.fsdp import *\n"
    main = "from dist import FullyShardedDataParallel\nm = FullyShardedDataParallel(m)\nm.probe()\n"
    assert reached(dist=dist, main=main) == {"main:m:3"}


@pytest.mark.parametrize(
    "line",
    [
        "from fairscale.nn import FullyShardedDataParallel as FSDP",
        "from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP",
        "from megatron.core.distributed import FullyShardedDataParallel as FSDP",
        "from torch.nn.parallel import DistributedDataParallel as FSDP",
        "class FSDP: pass",
    ],
)
def test_look_alikes_are_something_else(line: str) -> None:
    assert reached(main=f"{line}\nm = FSDP(m)\nm.probe()\n") == set()
