"""Which expressions hold a module that `fully_shard` has sharded, across names, attributes, functions and files."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from fsdp_migrate.index.models import Models
from fsdp_migrate.index.module import Module
from fsdp_migrate.index.project import Project
from fsdp_migrate.index.sharded import Sharded

IMPORT = "from torch.distributed.fsdp import FSDPModule, fully_shard\n"


def held(**files: str) -> set[str]:
    """The receivers of `.probe()` calls that certainly hold a sharded module, as `file:receiver:line`."""
    modules = [
        Module(Path(f"/project/{n}.py"), n, f"project.{n}", text) for n, text in files.items()
    ]
    sharded = Sharded(Models(Project(modules)))
    return {
        f"{module.shown}:{ast.unparse(attribute.value)}:{attribute.lineno}"
        for module in modules
        for attribute in module.attributes
        if attribute.attr == "probe" and sharded.holds(attribute.value, module)
    }


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param("m = N()\nfully_shard(m)\nm.probe()", {"main:m:4"}, id="in place"),
        pytest.param("m = N()\nm.probe()\nfully_shard(m)", set(), id="above the call it is plain"),
        pytest.param("m = fully_shard(N())\nm.probe()", {"main:m:3"}, id="what is returned"),
        pytest.param("m = N()\nn = m\nfully_shard(n)\nm.probe()", {"main:m:5"}, id="another name"),
        pytest.param("m = N()\nfully_shard(m)\nm = N()\nm.probe()", set(), id="overwritten"),
        pytest.param(
            "m = N()\nfully_shard(m.to(d))\nm.probe()", {"main:m:4"}, id="moved on the way"
        ),
        pytest.param(
            "m, n = N(), N()\nfully_shard([m, n])\nm.probe()\nn.probe()",
            {"main:m:4", "main:n:5"},
            id="a group",
        ),
        pytest.param(
            "for l in m.layers:\n    fully_shard(l)\n    l.probe()\nm.probe()",
            {"main:l:4"},
            id="an element, and not the whole",
        ),
        pytest.param("fully_shard(m.a)\nm.a.probe()\nm.b.probe()", {"main:m.a:3"}, id="a part"),
        pytest.param(
            "def f(x):\n    fully_shard(x)\nm = N()\nm.probe()\nf(m)\nm.probe()",
            {"main:m:7"},
            id="by a function that is given it",
        ),
        pytest.param(
            "def f(x):\n    x = x.to(d)\n    for l in x.layers:\n        fully_shard(l)\n"
            "    fully_shard(x)\n    return x\nm = f(N())\nm.probe()",
            {"main:m:9"},
            id="by a function that returns it",
        ),
        pytest.param(
            "def f(x):\n    x = build(x)\n    fully_shard(x)\nm = N()\nf(m)\nm.probe()",
            set(),
            id="what a function makes of it may be another",
        ),
        pytest.param(
            "def f(x):\n    x = Other()\n    fully_shard(x)\nm = N()\nf(m)\nm.probe()",
            set(),
            id="another one of the same name",
        ),
        pytest.param(
            "def f(x):\n    x.probe()\nm = N()\nfully_shard(m)\nf(m)", {"main:x:3"}, id="given on"
        ),
        pytest.param(
            "class T:\n    def __init__(self):\n        self.m = N()\n        self.m.probe()\n"
            "        fully_shard(self.m)\n    def run(self):\n        self.m.probe()",
            {"main:self.m:8"},
            id="an attribute, in a later method",
        ),
        pytest.param(
            "class T:\n    def __init__(self):\n        self.m = N()\n        self.load()\n"
            "        fully_shard(self.m)\n    def load(self):\n        self.m.probe()",
            set(),
            id="and not in a method that runs first",
        ),
        pytest.param(
            "class T:\n    def __init__(self):\n        self.m = N()\n        self.m.probe()\n"
            "    def setup(self):\n        fully_shard(self.m)",
            set(),
            id="nor in the constructor",
        ),
        pytest.param("def f(x: FSDPModule):\n    x.probe()", {"main:x:3"}, id="declared"),
        pytest.param(
            "def f(x):\n    if isinstance(x, FSDPModule):\n        x.probe()\n    x.probe()",
            {"main:x:4"},
            id="asked for",
        ),
        pytest.param(
            "m = N()\nfully_shard(m)\nif not isinstance(m, FSDPModule):\n    m.probe()",
            set(),
            id="behind the contrary",
        ),
        pytest.param(
            "m = N()\nif cfg.fsdp2:\n    fully_shard(m)\nm.probe()", {"main:m:5"}, id="in some runs"
        ),
        pytest.param(
            "m = N()\nif cfg.fsdp2:\n    fully_shard(m)\n    m.probe()",
            {"main:m:5"},
            id="behind the same condition",
        ),
        pytest.param(
            "m = N()\nif cfg.mode:\n    fully_shard(m)\nif not cfg.mode:\n    m.probe()",
            set(),
            id="behind a condition on the same value",
        ),
        pytest.param(
            "m = N()\nfully_shard(m)\nif strategy == 'ddp':\n    m.probe()",
            set(),
            id="behind a condition that tells models apart",
        ),
        pytest.param(
            "m = N()\nfully_shard(m)\nif rank == 0:\n    m.probe()",
            {"main:m:5"},
            id="behind one that does not",
        ),
        pytest.param(
            "def f(m):\n    fully_shard(m)\n    if is_ddp(m):\n        return\n    m.probe()",
            set(),
            id="behind an early exit",
        ),
        pytest.param(
            "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nm = N()\n"
            "if a:\n    m = FSDP(m)\nelse:\n    fully_shard(m)\nm.probe()",
            set(),
            id="or FSDP1's",
        ),
        pytest.param(
            "from torch.distributed._composable.fsdp import fully_shard as shard\nm = N()\n"
            "shard(m)\nm.probe()",
            {"main:m:5"},
            id="by its old name",
        ),
        pytest.param(
            "from torch.distributed._composable import fully_shard as shard\nm = N()\n"
            "shard(m)\nm.probe()",
            set(),
            id="FSDP1's function of that name",
        ),
        pytest.param(
            "from fsdp_migrate.runtime import shard_model\nm = shard_model(N())\nm.probe()",
            {"main:m:4"},
            id="by the runtime",
        ),
        pytest.param(
            "def fully_shard(m): ...\nm = N()\nfully_shard(m)\nm.probe()", set(), id="own"
        ),
    ],
)
def test_within_a_file(body: str, expected: set[str]) -> None:
    assert held(main=IMPORT + body) == expected


def test_across_files() -> None:
    assert held(
        sharding=IMPORT + "def shard(model, mesh):\n    fully_shard(model, mesh=mesh)\n",
        train="from sharding import shard\nfrom loop import run\nm = N()\nshard(mesh=x, model=m)\nrun(m)\nm.probe()\n",
        loop="def run(model):\n    model.probe()\n",
    ) == {"train:m:6", "loop:model:2"}
