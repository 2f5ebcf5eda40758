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


@pytest.mark.parametrize("is_package", [True, False])
def test_a_policy_is_found_from_tests_that_mirror_its_package(
    is_package: bool, tmp_path: Path
) -> None:
    """In a package of tests the module `pkg` is not the folder `tests/pkg`."""
    test = """\
        from model import Net
        from pkg import policies
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        policy = policies.make()  # not size_based_auto_wrap_policy
        model = FSDP(Net(), auto_wrap_policy=policy)
        """
    files = {
        "pkg/__init__.py": "",
        "pkg/policies/__init__.py": """\
            from model import Block

            def by_class(module, recurse, nonwrapped_numel):
                return recurse or isinstance(module, Block)


            def make():
                return by_class
            """,
        "tests/pkg/__init__.py": "",
        "tests/pkg/policies/__init__.py": "",
        "tests/pkg/policies/test_policies.py": test,
    }
    if is_package:
        files["tests/__init__.py"] = ""
    after = analysed(tmp_path, files, "torch").after["tests/pkg/policies/test_policies.py"]
    assert ("nonwrapped_numel=0" in after) is is_package
