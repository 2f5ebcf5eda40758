"""What the class of a unit cannot do that the model's own can, in one file and across files."""

from pathlib import Path

import pytest

from fsdp_migrate.codemods.by_hand.units_of_the_model import NAMES

from .programs import analysed

HEAD = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
"""
KEYWORD = """\
class Layer(nn.Module):
    def __init_subclass__(cls, *, kind{default}):
        KINDS[kind] = cls

class Block(Layer, kind="block"):
    pass
"""
METHOD = """\
class Block(nn.Module):
    def {name}(self, x):
        return x
"""
BASE = """\
class Block(nn.Linear):
    def {method}(self, x):
        return super({cls}, self).{method}(x)
"""
BASES = """\
class Block(nn.Linear):
    def forward(self, x):
        return {base}.forward(self, x)
"""
PART = """\
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.{name} = {value}
"""
WRAP = "model = FSDP(build(), auto_wrap_policy=ModuleWrapPolicy({Block}))\n"
CODE = {"FSDP530"}

# The class, a part of the line, and the forms that have a finding there.
CLASSES = [
    (KEYWORD.format(default=""), "def __init_sub", {"torch"}),
    (KEYWORD.format(default="=None"), "def __init_sub", set()),
    (METHOD.format(name="reshard"), "def reshard", {"torch"}),
    (METHOD.format(name="set_requires_gradient_sync"), "def set_requires", {"torch"}),
    (METHOD.format(name="reshape"), "def reshape", set()),
    (PART.format(name="unshard", value="nn.Linear(2, 2)"), "self.unshard", {"torch"}),
    (PART.format(name="unshard", value="3"), "self.unshard", set()),
    (BASE.format(method="forward", cls="self.__class__"), "super(", {"torch"}),
    (BASE.format(method="forward", cls="type(self)"), "super(", {"torch", "auto"}),
    (BASE.format(method="forward", cls="Block"), "super(", set()),
    (BASE.format(method="__init__", cls="type(self)"), "super(", set()),
    (BASES.format(base="self.__class__.__bases__[0]"), "return ", {"torch"}),
    (BASES.format(base="type(self).__base__"), "return ", {"torch", "auto"}),
    (BASES.format(base="type(self).mro()[1]"), "return ", {"torch", "auto"}),
    (BASES.format(base="type(other).__base__"), "return ", set()),
]


@pytest.mark.parametrize("form", ["bridge", "auto", "torch"])
@pytest.mark.parametrize(("cls", "part", "forms"), CLASSES)
def test_a_class_that_a_unit_cannot_have(
    cls: str, part: str, forms: set[str], form: str, tmp_path: Path
) -> None:
    found = analysed(tmp_path, f"{HEAD}{cls}{WRAP}", form)
    assert found.codes(part) & CODE == (CODE if form in forms else set())


@pytest.mark.parametrize(
    ("wrapped", "found"),
    [
        ("FSDP(build(), auto_wrap_policy=ModuleWrapPolicy({Block}))", CODE),
        ("FSDP(Block())", CODE),
        ("FSDP(build(), auto_wrap_policy=policy)", CODE),  # which may name it
        ("FSDP(build(), auto_wrap_policy=ModuleWrapPolicy({Other}))", set()),
        ("FSDP(Other())", set()),
    ],
)
def test_a_class_of_another_file(wrapped: str, found: set[str], tmp_path: Path) -> None:
    files = {
        "train.py": f"{HEAD}from model import Block, Other\nmodel = {wrapped}\n",
        "model.py": f"from torch import nn\n{METHOD.format(name='reshard')}\nclass Other(nn.Module): ...\n",
    }
    assert analysed(tmp_path, files, "torch").codes("FSDP(") & CODE == found


def test_what_is_no_module_is_left_alone(tmp_path: Path) -> None:
    program = f"{HEAD}class Pool:\n    def reshard(self): ...\n{WRAP}"
    assert not analysed(tmp_path, program, "torch").codes("def reshard") & CODE


PAIR = """\
class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.size = Block(), 3

    def encode(self, x):
        return self.image(x)

    def measure(self, x):
        return self.resized(x) * self.size

    def resized(self, x):
        return x
"""
LOW = f"{HEAD}{PAIR}model = FSDP(Pair(), auto_wrap_policy=policy, mixed_precision=MixedPrecision(dtype))\n"


@pytest.mark.parametrize(
    ("program", "forms"),
    [
        (f"{LOW}y = model.encode(x)", {"torch"}),
        (f"{LOW}y = model.measure(x)", set()),
        (f"{LOW}z = model(x)\ny = model.encode(x)", set()),  # it has but one root
        (f"{LOW}y = other.encode(x)", set()),
        (f"{HEAD}{PAIR}model = FSDP(Pair())\ny = model.encode(x)", set()),
    ],
)
@pytest.mark.parametrize("form", ["bridge", "auto", "torch"])
def test_methods_that_run_units(program: str, forms: set[str], form: str, tmp_path: Path) -> None:
    found = analysed(tmp_path, f"{program}\n", form).codes("y = ")
    assert found & CODE == (CODE if form in forms else set())


def test_the_names_are_those_of_fsdp2() -> None:
    module = pytest.importorskip("torch.distributed.fsdp").FSDPModule
    own = {name for name in vars(module) if not name.startswith("_")}
    assert {"reshard", "unshard"} <= NAMES & own
    assert {name for name in own if name.startswith(("set_requires", "set_reshard"))} <= NAMES
