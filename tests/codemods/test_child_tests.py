"""Tests for the class of a child: a unit was found as FSDP1's wrapper, which is of no other class."""

from pathlib import Path

import pytest

from .programs import analysed

HEAD = """\
import functools

from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import (
    ModuleWrapPolicy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)


class Block(nn.Module):
    pass


class Wide(Block):
    pass


class Other(nn.Module):
    pass


"""
BLOCKS = "auto_wrap_policy=ModuleWrapPolicy({Block})"


def found_in(folder: Path, code: str, policy: str, form: str = "auto") -> set[str]:
    """The first words of the findings on the lines that are marked."""
    program = f"{HEAD}model = FSDP(build(), {policy}, use_orig_params=True)\n{code}\n"
    found = analysed(folder, program, form)
    lines = [n for n, line in enumerate(program.splitlines(), 1) if "HERE" in line]
    assert lines
    marked = [f for f in found.findings if f.code == "FSDP529" and f.line in lines]
    return {" ".join(f.message.split()[:3]) for f in marked}


@pytest.mark.parametrize(
    "code",
    [
        "for child in model.blocks:\n    slow = isinstance(child, Block)  # HERE",
        "for name, child in model.named_children():\n    slow = isinstance(child, Block)  # HERE",
        "kept = [m for m in model.blocks.children() if not isinstance(m, (Block, nn.Linear))]  # HERE",
        "def rate(m):\n    return 0.1 if isinstance(m, Block) else 1  # HERE\n"
        "rates = [rate(m) for m in (model.embed, *model.blocks, model.head)]",
        "def rate(m):\n    match m:  # HERE\n        case Block(norm=nn.LayerNorm()):\n            return 0.1\n"
        "rates = [rate(m) for m in list(model.blocks)]",
        "@functools.singledispatch\ndef rate(m):\n    return 1\n@rate.register\ndef _(m: Block):\n    return 2\n"
        "rates = [rate(child) for child in model.blocks]  # HERE",
        "@functools.singledispatch\ndef rate(m):\n    return 1\nrate.register(Block, lambda m: 2)\n"
        "rates = list(map(rate, model.blocks))\nlast = rate(model.blocks[-1])  # HERE",
        "tested = isinstance(model.blocks[0], Block | Other)  # HERE",
        "names = [m._get_name() == 'Block' for m in model.blocks]  # HERE",
        "for m in model.blocks:\n    slow = type(m).__name__ in ('Block', 'Other')  # HERE",
        "slow = model.blocks[0].__class__.__name__ == 'Block'  # HERE",
    ],
)
def test_a_child_that_was_a_wrapper(code: str, tmp_path: Path) -> None:
    assert found_in(tmp_path, code, BLOCKS) == {"This test now"}
    assert found_in(tmp_path / "plain", code, "auto_wrap_policy=None") == set()


def test_a_child_in_an_attribute_keeps_the_wrappers_in_the_default_form(tmp_path: Path) -> None:
    code = (
        "class Rates:\n    def __init__(self, model):\n        self.parts = list(model.children())\n"
        "    def of(self):\n        return [isinstance(m, Block) for m in self.parts]  # HERE\nRates(model)"
    )
    assert found_in(tmp_path / "torch", code, BLOCKS, "torch") == {"This test now"}
    assert found_in(tmp_path / "auto", code, BLOCKS) == set()
    program = f"{HEAD}model = FSDP(build(), {BLOCKS})\n{code}\n"
    (kept,) = [f for f in analysed(tmp_path / "kept", program).findings if f.code == "FSDP002"]
    assert "Keeps FSDP1's interface" in kept.message
    assert "by their position in FSDP1's wrapper" in kept.message


@pytest.mark.parametrize(
    "code",
    [
        "for m in model.modules():\n    slow = isinstance(m, Block)  # HERE",
        "blocks = [m for _, m in model.named_modules() if isinstance(m, Block)]  # HERE",
        "for child in model.blocks:\n    slow = isinstance(child, nn.Linear)  # HERE",
        "for child in model.blocks:\n    slow = isinstance(child, Other)  # HERE",
        "for child in model.blocks:\n    slow = isinstance(child, nn.Module)  # HERE",
        "def walk(m):\n    for child in m.children():\n        if isinstance(child, Block):  # HERE\n"
        "            change(child)\n        else:\n            walk(child)\nwalk(model)",
        "same = isinstance(model.config, Block)  # HERE",
        "for m in model.blocks:\n    slow = type(m).__name__ == 'Linear'  # HERE",
        "for m in model.modules():\n    slow = type(m).__name__ == 'Block'  # HERE",
        "def rate(m):\n    match m:  # HERE\n        case Other():\n            return 0.1\n"
        "rates = [rate(m) for m in list(model.blocks)]",
    ],
)
def test_a_test_that_gives_the_same(code: str, tmp_path: Path) -> None:
    assert found_in(tmp_path, code, BLOCKS) == set()


@pytest.mark.parametrize(
    ("policy", "cls", "is_found"),
    [
        (BLOCKS, "Wide", True),
        ("auto_wrap_policy=ModuleWrapPolicy({Wide})", "Block", True),
        ("auto_wrap_policy=ModuleWrapPolicy({Other})", "Block", False),
        ("auto_wrap_policy=policy_of(args)", "Block", True),
        ("auto_wrap_policy=policy_of(args)", "nn.Linear", False),
        ("auto_wrap_policy=size_based_auto_wrap_policy", "nn.Linear", True),
        ("**options", "Block", True),
    ],
)
def test_what_a_policy_makes_units_of(
    policy: str, cls: str, is_found: bool, tmp_path: Path
) -> None:
    code = f"for child in model.blocks:\n    slow = isinstance(child, {cls})  # HERE"
    assert found_in(tmp_path, code, policy) == ({"This test now"} if is_found else set())
