"""Policies that become functions of one module where they are made, and those that stay FSDP1's."""

from pathlib import Path

import pytest

from .programs import analysed

POLICIES = """\
from functools import partial

from torch.distributed.fsdp.wrap import ModuleWrapPolicy, transformer_auto_wrap_policy

from model import Block, Head


def policy(name):
    if name == "none":
        return None
    if name == "both":
        return ModuleWrapPolicy([Block, Head])
    return partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
"""
TRAIN = """\
from policies import policy
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model, name):
    chosen = policy(name)
    return FSDP(model, auto_wrap_policy=chosen)
"""


@pytest.mark.parametrize("form", ["auto", "torch"])
def test_policies_of_another_file_become_functions(form: str, tmp_path: Path) -> None:
    program = analysed(tmp_path, {"policies.py": POLICIES, "train.py": TRAIN}, form)
    made = program.after["policies.py"]
    assert "        return None\n" in made
    assert "        return lambda module: isinstance(module, (Block, Head))\n" in made
    assert "    return lambda module: isinstance(module, Block)\n" in made
    assert "torch" not in made
    assert "if chosen is not None and chosen(module):" in program.after["train.py"]


STAYS = {
    "one by size": (
        "policies.py",
        "        return None\n",
        "        return partial(size_based_auto_wrap_policy, min_num_params=100)\n",
    ),
    "a docstring that names it": (
        "policies.py",
        "def policy(name):\n",
        'def policy(name):\n    """Return a `ModuleWrapPolicy`."""\n',
    ),
    "a class that changes": ("policies.py", "def policy", "Block = Block or Head\n\n\ndef policy"),
    "read by something else": ("train.py", "    return", "    print(chosen)\n    return"),
    "named, not called": ("train.py", "def shard", "print(policy)\n\n\ndef shard"),
    "with a comment": ("policies.py", "[Block, Head]", "[  # both\n        Block, Head]"),
    "a constructor that stays": (
        "train.py",
        "    return",
        "    FSDP(model, auto_wrap_policy=chosen, unknown=1)\n    return",
    ),
}


@pytest.mark.parametrize("case", STAYS)
def test_policies_stay(case: str, tmp_path: Path) -> None:
    file, old, new = STAYS[case]
    files = {"policies.py": POLICIES, "train.py": TRAIN}
    assert old in files[file]
    files[file] = files[file].replace(old, new)
    program = analysed(tmp_path, files, "torch")
    assert "lambda" not in program.after["policies.py"]
    assert "isinstance" not in program.after["policies.py"]
    assert "recurse=False" in program.after["train.py"]
