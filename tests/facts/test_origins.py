"""Each step back from a value: to what can be there, and to nothing that cannot."""

import ast
from pathlib import Path

import pytest

from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.origins import Origins, of_assigned, reaching, returned, stored
from fsdp_migrate.facts.program import Program

TEXT = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net, rate=0.1):
    sharded = FSDP(net)
    if rate:
        return sharded, rate

    def inner():
        return 1

    return None


class Trainer:
    def __init__(self, net):
        self.model, self.rate = build(net)
        self.count: int = 0

    def wrapped(self, module):
        return self.wrap(module)

    def wrap(self, module):
        return module


class Other:
    def set(self):
        self.model = None


def run(flag):
    model = first()
    use(model)
    if flag:
        model = second()
    else:
        use(model)
        model, other = third(), fourth()
    for step in range(3):
        use(model)
    trainer = Trainer(model)
    build(model, rate=0)
    return lambda p: use(p)


square = lambda value: value
square(16)
"""


@pytest.fixture(scope="module")
def origins() -> Origins:
    return Origins(Program([File(Path("/nowhere/train.py"), "train.py", TEXT)]))


def file_of(origins: Origins) -> File:
    return origins.program.files[0]


def named(file: File, name: str, line: int) -> ast.Name:
    (found,) = [each for each in file.loads[name] if each.lineno == line]
    return found


@pytest.mark.parametrize(
    ("name", "line", "expected"),
    [
        ("model", 34, ["first()"]),
        ("model", 38, ["first()"]),
        ("model", 41, ["first()", "second()", "third()"]),
        ("net", 5, ["net", "model"]),
        ("rate", 6, ["0"]),
        ("module", 24, ["module"]),
        ("value", 47, ["16"]),
    ],
    ids=lambda value: str(value) if isinstance(value, int | str) else "",
)
def test_a_name_is_what_can_be_bound_to_it(
    name: str, line: int, expected: list[str], origins: Origins
) -> None:
    file = file_of(origins)
    found = origins.of_name(named(file, name, line), file)
    assert sorted(ast.unparse(each.value) for each in found) == sorted(expected)


def test_a_function_returns_what_itself_returns(origins: Origins) -> None:
    file = file_of(origins)
    (call,) = [each for each in file.calls["build"] if each.lineno == 17]
    made = origins.called(call, file)
    assert made is not None
    assert [ast.unparse(each.value) for each in returned(made)] == ["(sharded, rate)", "None"]
    assert [ast.unparse(each.value) for each in returned(made, (0,))] == ["sharded", "None"]


def test_a_method_of_self_is_that_of_its_class(origins: Origins) -> None:
    file = file_of(origins)
    made = origins.called(file.calls["wrap"][0], file)
    assert made is not None
    assert getattr(made.node, "name", "") == "wrap"


def test_an_attribute_is_what_its_class_sets(origins: Origins) -> None:
    file = file_of(origins)
    trainer, other = file.of(ast.ClassDef)
    (own,) = stored(file, "model", trainer)
    assert own.path == (0,)
    assert of_assigned(own, file).path == (0,)
    assert [ast.unparse(each.value) for each in stored(file, "model", other)] == ["None"]
    assert len([*stored(file, "model")]) == 2
    assert [ast.unparse(each.value) for each in stored(file, "count", trainer)] == ["0"]


def test_an_element_of_a_literal_is_its_own_origin(origins: Origins) -> None:
    file = file_of(origins)
    use = named(file, "model", 41)
    variable = file.variable(use)
    assert variable is not None
    found = [of_assigned(each, file) for each in reaching(file, variable.assigned, use)]
    assert [each.path for each in found] == [(), (), ()]


# What another method can read of `self.model`, as source.
LASTING = {
    "self.model = net\n        self.model = DDP(net)": ["DDP(net)"],
    "self.model = net\n        self.rank = rank()\n        self.model = DDP(self.model)": [
        "DDP(self.model)"
    ],
    "self.model = net\n        self.start()\n        self.model = DDP(net)": ["net", "DDP(net)"],
    "self.model = net\n        start(self)\n        self.model = DDP(net)": ["net", "DDP(net)"],
    "self.model = net\n        if net:\n            self.model = DDP(net)": ["net", "DDP(net)"],
    "self.model = net\n        use(self.model)": ["net"],
}


@pytest.mark.parametrize("body", LASTING)
def test_an_attribute_that_is_assigned_again_at_once(body: str) -> None:
    text = f"class T:\n    def __init__(self, net):\n        {body}\n\n    def run(self):\n        return self.model\n"
    file = File(Path("train.py"), "train.py", text)
    assigned = [*stored(file, "model")]
    use = file.attributes["model"][-1]
    assert [ast.unparse(each.value) for each in reaching(file, assigned, use)] == LASTING[body]
