"""What would change in silence without FSDP1's wrapper: each kind of place, and its twins, which mean nothing."""

from pathlib import Path

import pytest

from .programs import MODEL, Analysed, analysed

HEAD = """\
import copy
import torch
from torch import nn
from model import Block, Net
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def main():
    model = Net()
    model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}))
    run(model)


"""
BLOCK = MODEL.replace("class Net", "class Block(nn.Linear):\n    pass\n\n\nclass Net")

# A function that gets the model, and what the finding says of it.
HITS = {
    "a prefix that is asked for": (
        "def run(model):\n    return [n for n in model.state_dict() if n.startswith('_fsdp_wrapped_module')]\n",
        "looks for the name of FSDP1's wrapper",
    ),
    "a name with the wrapper": (
        "def run(model):\n    return dict(model.named_parameters())['_fsdp_wrapped_module.head.weight']\n",
        "looks for the name of FSDP1's wrapper",
    ),
    "the name of the class": (
        "def run(model):\n    return type(model).__name__ == 'FullyShardedDataParallel'\n",
        "compares the class name with FSDP1's",
    ),
    "the class of a module": (
        "def run(model):\n    return [m for m in model.modules() if type(m) == Block]\n",
        "compares the exact class with Block",
    ),
    "the class of a module, among several": (
        "def run(model):\n    return [m for m in model.modules() if type(m) in (nn.ReLU, Block)]\n",
        "compares the exact class with Block, ReLU",
    ),
    "FSDP1's class itself": (
        "def run(model):\n    return type(model) is FSDP\n",
        "compares the exact class with FSDP",
    ),
    "FSDP1's class among others": (
        "def run(model):\n    return model.__class__ in (FSDP, nn.Linear)\n",
        "compares the exact class with FSDP, Linear",
    ),
    "the first child": (
        "def run(model):\n    return list(model.children())[0]\n",
        "accesses parts by their position in FSDP1's wrapper",
    ),
    "children with a name": (
        "def run(model):\n    return dict(model.named_children())\n",
        "accesses parts by their position in FSDP1's wrapper",
    ),
}
# A comparison of classes, and the test that the finding says to write.
TESTS = {
    "type(model) is not FSDP": "not isinstance(model, FSDPModule)",
    "model.__class__ in (FSDP, nn.Linear)": "isinstance(model, (FSDPModule, nn.Linear))",
    "type(model[0]) not in (Block,)": "not isinstance(model[0], Block)",
    "Block == type(model)": "isinstance(model, Block)",
    "type(model).__name__ != 'FSDP'": "not isinstance(model, FSDPModule)",
    "'FullyShardedDataParallel' in str(model.__class__)": "isinstance(model, FSDPModule)",
}
# The same words about something else, or to no effect.
TWINS = {
    "a prefix that is taken off": (
        "def run(model):\n    return [n.replace('_fsdp_wrapped_module.', '') for n, _ in model.named_parameters()]\n"
    ),
    "a prefix that is taken off by a pattern": (
        "import re\n\n\ndef run(model):\n"
        "    return [re.sub(r'_fsdp_wrapped_module\\.', '', n) for n in model.state_dict()]\n"
    ),
    "a prefix with a name that is taken off": (
        "PREFIX = '_fsdp_wrapped_module.'\n\n\n"
        "def run(model):\n    return [n.replace(PREFIX, '') for n in model.state_dict()]\n"
    ),
    "an attribute that may be missing": (
        "def run(model):\n    return getattr(model, '_fsdp_wrapped_module', model)\n"
    ),
    "a list with and without the wrapper": (
        "HEADS = ['head', '_fsdp_wrapped_module.head']\n\n\n"
        "def run(model):\n    return [n for n in model.state_dict() if n in HEADS]\n"
    ),
    "a text that explains": 'def run(model):\n    """Drops _fsdp_wrapped_module."""\n',
    "a mode of that name": "def run(model, mode):\n    return mode == 'FSDP'\n",
    "the class of a parameter": (
        "def run(model):\n    return [p for p in model.parameters() if type(p) == nn.Parameter]\n"
    ),
    "the class of a configuration": (
        "from dataclasses import dataclass\n\n\n@dataclass\nclass Config:\n    a: int\n\n\n"
        "def run(c):\n    return type(c) == Config\n"
    ),
    "the class of a number": "def run(x):\n    return type(x) == int or x.__class__ is float\n",
    "a class that is no unit": (
        "def run(model):\n    return [m for m in model.modules() if type(m) == nn.LayerNorm]\n"
    ),
    "children that are walked": "def run(model):\n    for name, child in model.named_children():\n        print(name)\n",
}


def _analysed(folder: Path, text: str, form: str = "auto", **more: str) -> Analysed:
    files = {f"{name}.py": each for name, each in more.items()}
    return analysed(folder, {"train.py": HEAD + text, "model.py": BLOCK, **files}, form)


def _decision(program: Analysed) -> tuple[str, str]:
    (found,) = [f for f in program.findings if f.code == "FSDP002" and f.construct == "FSDP(...)"]
    return found.action.value, found.message


@pytest.mark.parametrize("name", HITS)
def test_it_keeps_the_constructor_on_the_bridge(name: str, tmp_path: Path) -> None:
    text, what = HITS[name]
    action, message = _decision(_analysed(tmp_path, text))
    assert action == "runtime"
    assert message.startswith("Keeps FSDP1's interface")
    assert f" {what} (" in message
    line = HEAD.count("\n") + 2
    assert f"train.py:{line} " in message


@pytest.mark.parametrize("name", HITS)
def test_in_the_torch_form_it_is_for_a_person(name: str, tmp_path: Path) -> None:
    text, what = HITS[name]
    program = _analysed(tmp_path, text, "torch")
    assert _decision(program)[0] == "rewrite"
    found = [f for f in program.findings if f.code == "FSDP005"]
    assert [f.action.value for f in found] == ["manual"]
    assert what[1:] in found[0].message
    assert found[0].line == HEAD.count("\n") + 2


@pytest.mark.parametrize("comparison", TESTS)
def test_the_finding_has_the_test_to_write(comparison: str, tmp_path: Path) -> None:
    text = f"def run(model):\n    return {comparison}\n"
    program = _analysed(tmp_path, text, "torch")
    (found,) = [f for f in program.findings if f.code == "FSDP005"]
    assert f"write `{TESTS[comparison]}`" in found.message


@pytest.mark.parametrize("name", TWINS)
def test_it_keeps_nothing(name: str, tmp_path: Path) -> None:
    assert _decision(_analysed(tmp_path, TWINS[name]))[0] == "rewrite"


INITIALIZED = {
    "in __init__": "class Own(nn.Module):\n    def __init__(self, m):\n        self.plain = type(m) == Block\n",
    "handed to apply": (
        "class Own(nn.Module):\n    def __init__(self):\n        self.apply(self.init)\n\n"
        "    def init(self, m):\n        if type(m) == Block:\n            m.weight.zero_()\n"
    ),
}


@pytest.mark.parametrize("name", INITIALIZED)
def test_what_initializes_a_model_runs_before_it_is_wrapped(name: str, tmp_path: Path) -> None:
    text = INITIALIZED[name]
    assert _decision(_analysed(tmp_path, text))[0] == "rewrite"
    later = text.replace("__init__", "later")
    assert _decision(_analysed(tmp_path, later))[0] == "runtime"


def test_all_places_are_listed_at_once(tmp_path: Path) -> None:
    text = "".join(f"{text}\n\n" for text, _ in HITS.values())
    action, message = _decision(_analysed(tmp_path, text))
    assert action == "runtime"
    assert f" because of {len(HITS)} places: " in message
    assert all(f" {what} (" in message for _, what in HITS.values())
    assert message.count("; ") == len(HITS) - 1


def test_without_a_policy_the_root_alone_is_a_unit(tmp_path: Path) -> None:
    text, _ = HITS["the class of a module"]
    files = {"train.py": (HEAD + text).replace(", auto_wrap_policy=ModuleWrapPolicy({Block})", "")}
    assert _decision(analysed(tmp_path, {**files, "model.py": BLOCK}))[0] == "rewrite"


def test_a_policy_that_names_no_class_may_wrap_any(tmp_path: Path) -> None:
    text = HEAD.replace("ModuleWrapPolicy({Block})", "policy") + TWINS["a class that is no unit"]
    program = analysed(tmp_path, {"train.py": text, "model.py": BLOCK})
    assert _decision(program)[0] == "runtime"


def test_a_file_that_gets_the_model_counts(tmp_path: Path) -> None:
    text, what = HITS["the class of a module"]
    helper = f"from model import Block\n\n\n{text}"
    program = _analysed(tmp_path, "from helper import run\n", helper=helper)
    action, message = _decision(program)
    assert action == "runtime"
    assert "helper.py:5 " in message
    torchs = _analysed(tmp_path, "from helper import run\n", "torch", helper=helper)
    (found,) = [f for f in torchs.findings if f.code == "FSDP005"]
    assert "helper.py:5 " in found.message  # said at the constructor, whose file it is not in
    assert what in found.message


def test_a_file_that_nothing_connects_does_not_count(tmp_path: Path) -> None:
    text, _ = HITS["the class of a module"]
    other = f"from x import Block\n\n{text}"
    files = {"a/train.py": HEAD, "a/model.py": BLOCK, "b/other.py": other}
    assert _decision(analysed(tmp_path, files))[0] == "rewrite"


def test_a_test_of_the_program_does_not_count(tmp_path: Path) -> None:
    text, _ = HITS["the class of a module"]
    test = f"from model import Block\nfrom train import main\n\n\n{text}"
    files = {"train.py": HEAD, "model.py": BLOCK, "tests/test_train.py": test}
    assert _decision(analysed(tmp_path, files))[0] == "rewrite"
