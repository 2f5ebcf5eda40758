"""Where FSDP1 models go, across names, attributes, functions and files."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from fsdp_migrate.index.models import Models
from fsdp_migrate.index.module import Module
from fsdp_migrate.index.project import Project

IMPORT = "import torch; from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"

STRATEGY = """\
class S:
    def __init__(self, m):
        self._m = FSDP(m)
    @property
    def model(self):
        return self._m
"""


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
        pytest.param(
            "m = FSDP(m)\nif a:\n    m = other\n    if b:\n        m.probe()\nm.probe()",
            {"main:m:7"},
            id="overwritten in a branch",
        ),
        pytest.param("m = FSDP(m)\nn = m\nn.probe()", {"main:n:4"}, id="copied"),
        pytest.param(
            "m = FSDP(m) if a else m\nm.probe()", {"main:m:3"}, id="conditional expression"
        ),
        pytest.param(
            "if a:\n    m = FSDP(m)\nelse:\n    m.probe()",
            set(),
            id="the other branch never has it",
        ),
        pytest.param(
            "if a:\n    m = FSDP(m)\nelse:\n    m = DDP(m)\nm.probe()",
            {"main:m:6"},
            id="another value in the other branch",
        ),
        pytest.param(
            "if a:\n    m = FSDP(m)\n"
            "if isinstance(m, torch.nn.parallel.DistributedDataParallel):\n    m.probe()\n"
            "else:\n    m.probe()",
            {"main:m:7"},
            id="ruled out by a test for another wrapper",
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
        pytest.param(
            STRATEGY + "class T:\n    def __init__(self, s: S | None):\n        self.s = s\n"
            "    def go(self):\n        self.s.model.probe()\n        s = self.s\n        s.model.probe()",
            {"main:self.s.model:12", "main:s.model:14"},
            id="through an object that another keeps",
        ),
        pytest.param(
            STRATEGY + "class T:\n    s: 'S'\ndef go(t: T):\n    t.s.model.probe()",
            {"main:t.s.model:11"},
            id="through a field",
        ),
        pytest.param(
            STRATEGY
            + "class T:\n    def __init__(self, s: S, o: Other):\n        self.s = s\n        self.s = o\n"
            "    def go(self):\n        self.s.model.probe()",
            set(),
            id="an object that may be another's",
        ),
        pytest.param(
            "class T:\n    def go(self):\n        self.t = self.t.t\n        self.t.model.probe()\nm = FSDP(m)",
            set(),
            id="an attribute that leads back to itself",
        ),
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


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # containers
        pytest.param(
            "ms = {'a': FSDP(m), 'b': n}\nms['a'].probe()\nms['b'].probe()",
            {"main:ms['a']:3"},
            id="dictionary",
        ),
        pytest.param(
            "ms = [FSDP(m) for m in ms]\nfor m in ms:\n    m.probe()",
            {"main:m:4"},
            id="comprehension and loop",
        ),
        pytest.param(
            "ms = {k: FSDP(m) for k, m in x}\nfor k, m in ms.items():\n    m.probe()\n    k.probe()",
            {"main:m:4"},
            id="items of a dictionary comprehension",
        ),
        pytest.param(
            "ms = {'a': FSDP(m)}\nfor m in ms:\n    m.probe()", set(), id="keys of a dictionary"
        ),
        pytest.param(
            "ms = dict(a=FSDP(m))\nfor m in list(ms.values()):\n    m.probe()",
            {"main:m:4"},
            id="values",
        ),
        pytest.param(
            "ms = [FSDP(m)]\nfor (i, m), o in zip(enumerate(ms), x):\n    m.probe()\n    o.probe()",
            {"main:m:4"},
            id="zip and enumerate",
        ),
        pytest.param("ms = []\nms.append(FSDP(m))\nms[0].probe()", {"main:ms[0]:4"}, id="append"),
        pytest.param("ms = []\nms += [FSDP(m)]\nms[0].probe()", {"main:ms[0]:4"}, id="extended"),
        pytest.param(
            "ms = torch.nn.ModuleList([FSDP(m) for m in x])\nms.probe()\nms[0].probe()",
            {"main:ms[0]:4"},
            id="module list",
        ),
        pytest.param(
            "net = torch.nn.Sequential(FSDP(a), b)\nnet[0].probe()\nnet[1].probe()",
            {"main:net[0]:3"},
            id="sequential",
        ),
        pytest.param(
            "net = torch.nn.Sequential(*[FSDP(a) for a in x])\nnet[1].probe()",
            {"main:net[1]:3"},
            id="sequential of a list",
        ),
        pytest.param(
            "[m.probe() for m in [FSDP(m)]]\nm.probe()", {"main:m:2"}, id="inside a comprehension"
        ),
        pytest.param(
            "class T:\n    def __init__(self):\n        self.ms = {}\n        self.ms['a'] = FSDP(m)\n"
            "    def go(self, k):\n        self.ms[k].probe()",
            {"main:self.ms[k]:7"},
            id="dictionary in an attribute",
        ),
        pytest.param(
            "ms = x\nfor k in ms:\n    ms[k].probe()\n    ms[k] = FSDP(ms[k])\nms['a'].probe()",
            {"main:ms['a']:6"},
            id="each element once",
        ),
        pytest.param(
            "def f(*a, **k):\n    a[0].probe()\n    k['n'].probe()\nf(FSDP(m), n=FSDP(m))",
            {"main:a[0]:3", "main:k['n']:4"},
            id="packed arguments",
        ),
        # classes
        pytest.param(
            "from dataclasses import dataclass\n@dataclass\nclass S:\n    step: int\n    net: object\n"
            "s = S(1, FSDP(m))\ns.net.probe()\ns.step.probe()",
            {"main:s.net:8"},
            id="field by position",
        ),
        pytest.param(
            "class T:\n    net = FSDP(m)\n    def go(self):\n        self.net.probe()\nT.net.probe()",
            {"main:self.net:5", "main:T.net:6"},
            id="class attribute",
        ),
        pytest.param(
            "class B:\n    def __init__(self, m):\n        self.m = m\n    def go(self):\n        self.m.probe()\n"
            "class T(B):\n    def __init__(self):\n        super().__init__(FSDP(x))\n"
            "class U(B):\n    def go(self):\n        self.m.probe()",
            {"main:self.m:6"},
            id="kept by a base class, for one class and not its sibling",
        ),
        # makers
        pytest.param(
            "from functools import partial\nf = partial(FSDP, x=1)\nm = f(m)\nm.probe()",
            {"main:m:5"},
            id="partial",
        ),
        pytest.param(
            "from functools import partial\ndef g():\n    return partial(partial(FSDP), x=1)\nm = g()(m)\nm.probe()",
            {"main:m:6"},
            id="partial of a partial from a function",
        ),
        pytest.param(
            "from functools import partial\nclass T:\n    def __init__(self):\n        self.f = partial(FSDP)\n"
            "    def go(self):\n        m = self.f(x)\n        m.probe()",
            {"main:m:8"},
            id="partial in an attribute",
        ),
        pytest.param(
            "def build(f):\n    m = f(x)\n    m.probe()\nbuild(lambda m: FSDP(m))",
            {"main:m:4"},
            id="lambda as an argument",
        ),
        pytest.param(
            "def build(f):\n    m = f(x)\n    m.probe()\ndef w(m):\n    return FSDP(m)\nbuild(w)",
            {"main:m:4"},
            id="function as an argument",
        ),
        pytest.param(
            "from torch.distributed.fsdp.wrap import enable_wrap, wrap\nwith enable_wrap(wrapper_cls=FSDP):\n"
            "    m = wrap(m)\nm.probe()",
            {"main:m:5"},
            id="wrap",
        ),
        pytest.param(
            "from torch.distributed.fsdp.wrap import enable_wrap, wrap\nwith enable_wrap(wrapper_cls=Other):\n"
            "    m = wrap(m)\nm.probe()",
            set(),
            id="wrap by another class",
        ),
    ],
)
def test_indirectly(body: str, expected: set[str]) -> None:
    assert reached(main=IMPORT + body) == expected


def test_partial_across_files() -> None:
    wrapping = (
        IMPORT + "from functools import partial\ndef wrapper(x):\n    return partial(FSDP, x=x)\n"
    )
    main = "import wrapping\nfrom wrapping import *\na = wrapping.wrapper(1)(m)\na.probe()\nb = wrapper(2)(m)\nb.probe()\n"
    assert reached(wrapping=wrapping, main=main) == {"main:a:4", "main:b:6"}
