"""Policies beside FSDP1 on models at random: the loops that are written for them make units of the same modules."""

from functools import cache
from random import Random
from typing import Any

import pytest
import torch.distributed.fsdp as fsdp
from torch import nn
from torch.distributed.fsdp import FSDPModule

from ..behaviour.areas.programs import migrated

PROGRAM = """\
from functools import partial

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import (
    ModuleWrapPolicy,
    _or_policy,
    lambda_auto_wrap_policy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)


class Block(nn.Module):
    def __init__(self, *parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.named = nn.ModuleDict({"last": nn.LayerNorm(4)})


class Pair(Block):
    pass


def large(module):
    if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
        return False  # has no forward: FSDP1 never gathers such a unit
    return sum(p.numel() for p in module.parameters()) > 60


def own_policy(module, recurse, nonwrapped_numel):
    return recurse or isinstance(module, Block) and large(module)


def policy_of(kind):
    if kind == "blocks":
        return ModuleWrapPolicy([Block])
    return partial(lambda_auto_wrap_policy, lambda_fn=large)


def shard(model):
    blocks = [m for m in model.modules() if isinstance(m, Block)]
    return FSDP(model, auto_wrap_policy=POLICY, device_id=torch.device("cpu"))
"""
POLICIES = {
    "classes": "partial(transformer_auto_wrap_policy, transformer_layer_cls={Block, nn.Linear})",
    "a derived class": "ModuleWrapPolicy({Pair, nn.LayerNorm})",
    "a container": "ModuleWrapPolicy({nn.Sequential})",  # a ModuleList has no forward to hook: fully_shard refuses it
    "a lambda": "partial(lambda_auto_wrap_policy, lambda_fn=lambda m: isinstance(m, Block) and large(m))",
    "modules of a list": "partial(lambda_auto_wrap_policy, lambda_fn=lambda m: m in blocks)",
    "a function": "partial(lambda_auto_wrap_policy, lambda_fn=large)",
    "one of several": (
        "partial(_or_policy, policies=[partial(lambda_auto_wrap_policy, lambda_fn=large), "
        "partial(transformer_auto_wrap_policy, transformer_layer_cls={nn.Embedding})])"
    ),
    "the program's own": "own_policy",
    "a function's result": "policy_of('blocks')",
    "another result": "policy_of('large')",
    **{
        f"size of {size}": f"partial(size_based_auto_wrap_policy, min_num_params={size})"
        for size in (1, 20, 60, 150, 400)
    },
    "torch's own size": "size_based_auto_wrap_policy",
}


def model_of(seed: int, names: dict[str, Any]) -> nn.Module:
    """A model at random, of layers in containers in containers."""
    random = Random(seed)
    leaves = (
        lambda: nn.Linear(4, random.choice([1, 4, 16])),
        lambda: nn.LayerNorm(4),
        lambda: nn.Embedding(random.choice([3, 30]), 4),
        lambda: nn.MultiheadAttention(4, 2),
        lambda: nn.ReLU(),
    )

    def part(depth: int) -> nn.Module:
        if depth == 0 or random.random() < 0.2:
            module = random.choice(leaves)()
        else:
            parts = [part(depth - 1) for _ in range(random.randint(1, 3))]
            kind = random.choice(["Sequential", "ModuleList", "ModuleDict", "Block", "Pair"])
            if kind == "ModuleDict":
                module = nn.ModuleDict({f"part{n}": each for n, each in enumerate(parts)})
            elif kind == "ModuleList":
                module = nn.ModuleList(parts)
            else:
                module = {**names, "Sequential": nn.Sequential}[kind](*parts)
        return module

    return nn.Sequential(*(part(3) for _ in range(random.randint(1, 4))))


@cache
def program(policy: str, form: str) -> dict[str, Any]:
    source = PROGRAM.replace("POLICY", POLICIES[policy])
    if form:
        source = migrated(source, form)
        assert "units(" not in source
    names: dict[str, Any] = {}
    exec(compile(source, "program", "exec"), names)
    return names


@cache
def units(policy: str, form: str, seed: int) -> set[str]:
    """The names of modules that are units, without those of wrappers."""
    names = program(policy, form)
    model = names["shard"](model_of(seed, names))
    kind = FSDPModule if form else fsdp.FullyShardedDataParallel
    found = (name for name, module in model.named_modules() if isinstance(module, kind))
    return {
        name.replace("_fsdp_wrapped_module.", "").removesuffix("_fsdp_wrapped_module")
        for name in found
    }


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(8), id="few"),
        pytest.param(range(50), id="many", marks=pytest.mark.thorough),
    ],
)
@pytest.mark.parametrize("form", ["auto", "torch"])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_modules_are_units(policy: str, form: str, seeds: range) -> None:
    numbers = set()
    for seed in seeds:
        expected = units(policy, "", seed)
        numbers.add(len(expected))
        assert units(policy, form, seed) == expected, f"model {seed}"
    assert len(numbers) > 1 or policy == "torch's own size", "no policy chose anything"
