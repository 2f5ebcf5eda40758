"""Constructors whose plain form would do something else: they go to the runtime, or are left alone."""

from __future__ import annotations

import ast

import pytest

from .test_examples import analyse

HEAD = """\
import torch
import torch.nn as nn
from model import Block, Net
from torch.distributed.fsdp import (
    CPUOffload, FullyShardedDataParallel as FSDP, MixedPrecision, ShardingStrategy
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.device_mesh import init_device_mesh

"""
PLAIN_NET = """\
class Seen(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Sequential(nn.Linear(8, 8))

"""
HYBRID = "sharding_strategy=ShardingStrategy.HYBRID_SHARD"
BF16 = "mixed_precision=MixedPrecision(param_dtype=torch.bfloat16)"

RUNTIME = {
    "mesh of two dimensions": "mesh = init_device_mesh('cuda', (2, 4))\nmodel = FSDP(model, device_mesh=mesh)\n",
    "hybrid mesh without names for two constructors": (
        f"mesh = init_device_mesh('cuda', (2, 4))\na = FSDP(a, device_mesh=mesh, {HYBRID})\n"
        f"b = FSDP(b, device_mesh=mesh, {HYBRID})\n"
    ),
    "hybrid mesh without names in the call": f"model = FSDP(m, {HYBRID}, device_mesh=init_device_mesh('cuda', (2, 4)))\n",
    "hybrid mesh of one dimension": f"mesh = init_device_mesh('cuda', (8,))\nmodel = FSDP(m, {HYBRID}, device_mesh=mesh)\n",
    "hybrid mesh whose names are out of sight": (
        f"mesh = init_device_mesh('cuda', (2, 4), mesh_dim_names=names)\nmodel = FSDP(m, {HYBRID}, device_mesh=mesh)\n"
    ),
    "hybrid mesh that can be None": (
        f"mesh = init_device_mesh('cuda', (2, 4)) if many else None\nmodel = FSDP(m, {HYBRID}, device_mesh=mesh)\n"
    ),
    "offload in a condition": "model = FSDP(model, cpu_offload=CPUOffload(True) if low else None)\n",
    "offload by a flag": "model = FSDP(model, cpu_offload=CPUOffload(offload_params=low))\n",
    "offload changed on the way": "c = CPUOffload()\nc.offload_params = True\nmodel = FSDP(model, cpu_offload=c)\n",
    "broadcast of a model that may be on meta": (
        "with torch.device('meta'):\n    model = Net()\nmodel = FSDP(model, sync_module_states=True)\n"
    ),
    "broadcast in a loop": "for m in models:\n    FSDP(m, sync_module_states=True)\n",
    "broadcast inside an expression": "train(FSDP(model, sync_module_states=True))\n",
    "broadcast over a mesh": "model = FSDP(model, device_mesh=mesh['dp'], sync_module_states=True)\n",
    "broadcast of replicas": (
        "model = FSDP(model, sharding_strategy=ShardingStrategy.NO_SHARD, sync_module_states=True)\n"
    ),
    "broadcast without what is ignored": "model = FSDP(model, ignored_modules=[model.a], sync_module_states=True)\n",
    "broadcast to a device that nobody made current": "model = FSDP(model, device_id=r, sync_module_states=True)\n",
    "mesh of a shape out of sight": "model = FSDP(model, device_mesh=init_device_mesh('cuda', shape))\n",
    "mesh of two names": "model = FSDP(model, device_mesh=mesh['a', 'b'])\n",
    "mixed precision in a loop": f"for m in models:\n    m = FSDP(m, {BF16})\n",
    "mixed precision in a comprehension": f"models = [FSDP(m, {BF16}) for m in models]\n",
    "mixed precision in a function called twice": f"def wrap(m):\n    return FSDP(m, {BF16})\na = wrap(a)\nb = wrap(b)\n",
    "mixed precision in a function called in a loop": (
        f"def wrap(m):\n    return FSDP(m, {BF16})\ndef setup(m):\n    return wrap(m)\nfor m in models:\n    setup(m)\n"
    ),
    "mixed precision in a function handed on": f"def wrap(m):\n    return FSDP(m, {BF16})\nmodels = map(wrap, models)\n",
    "mixed precision in a method called twice": (
        f"class T:\n    def wrap(self, m):\n        return FSDP(m, {BF16})\n"
        "    def go(self):\n        self.wrap(1)\n        self.wrap(2)\n"
    ),
    "BatchNorm put in from outside": (
        f"{PLAIN_NET}model = Seen()\nmodel.bn = nn.BatchNorm1d(8)\n"
        f"model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({{nn.Linear}}), {BF16})\n"
    ),
    "policy that is a call's result": "model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({type(model.a)}))\n",
    "policy of a name out of sight": "model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({x}))\n",
    "policy changed on the way": (
        "p = ModuleWrapPolicy({Block})\np._module_classes.add(Net)\nmodel = FSDP(model, auto_wrap_policy=p)\n"
    ),
    "policy in a class body": "class T:\n    model = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({Block}))\n",
    "another isinstance": (
        "def isinstance(*_): ...\nmodel = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}))\n"
    ),
    "offload named in the call": "model = FSDP(model, cpu_offload=(c := CPUOffload(False)))\nprint(c)\n",
    "strategy named in the call": "model = FSDP(model, sharding_strategy=(s := ShardingStrategy.FULL_SHARD))\nprint(s)\n",
    "device set below": "model = FSDP(model, device_id=rank)\ntorch.cuda.set_device(rank)\n",
    "another device set": "torch.cuda.set_device(1)\nmodel = FSDP(model, device_id=0)\n",
    "a method called set_device": "self.set_device(rank)\nmodel = FSDP(model, device_id=rank)\n",
}
PLAIN = {
    "mesh of one dimension": "mesh = init_device_mesh('cuda', (8,))\nmodel = FSDP(model, device_mesh=mesh)\n",
    "hybrid mesh without names": f"mesh = init_device_mesh('cuda', (2, 4))\nmodel = FSDP(m, {HYBRID}, device_mesh=mesh)\n",
    "hybrid mesh of two names": f"model = FSDP(m, {HYBRID}, device_mesh=mesh['a', 'b'])\n",
    "offload by a name inside an expression": "c = CPUOffload(True)\ntrain(FSDP(model, cpu_offload=c))\n",
    "no types by a name inside an expression": "c = MixedPrecision()\ntrain(FSDP(model, mixed_precision=c))\n",
    "no types twice": "a = FSDP(a, mixed_precision=MixedPrecision())\nb = FSDP(b)\n",
    "mesh of one name": "model = FSDP(model, device_mesh=mesh['dp'])\n",
    "mixed precision in a function called once": f"def wrap(m):\n    return FSDP(m, {BF16})\na = wrap(a)\n",
    "nothing put in from outside": (
        f"{PLAIN_NET}model = Seen()\nmodel.flag = True\n"
        f"model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({{nn.Linear}}), {BF16})\n"
    ),
    "policy of two constructors": (
        "p = ModuleWrapPolicy({Block})\na = FSDP(a, auto_wrap_policy=p)\nb = FSDP(b, auto_wrap_policy=p)\n"
    ),
    "policy beside another statement": "p = ModuleWrapPolicy({Block}); y = 1\nmodel = FSDP(model, auto_wrap_policy=p)\n",
    "model over several lines": "model = FSDP(\n    self  # a\n    .model, auto_wrap_policy=ModuleWrapPolicy({Block}))\n",
    "model of several lines": "model = FSDP(\n    Net()\n    .cuda(), auto_wrap_policy=ModuleWrapPolicy({Block}))\n",
    "device set above": "torch.cuda.set_device(rank)\nmodel = FSDP(model, device_id=rank)\n",
    "device set by its own name": "from torch.cuda import set_device\nset_device(0)\nmodel = FSDP(model, device_id=0)\n",
    "device set in another function": "model = FSDP(model, device_id=rank)\ndef setup():\n    torch.cuda.set_device(rank)\n",
}


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in RUNTIME.items()])
def test_goes_to_the_runtime(text: str) -> None:
    _, after = analyse(HEAD + text)
    assert "shard_model(" in after
    assert "fully_shard(" not in after
    ast.parse(after)


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in PLAIN.items()])
def test_becomes_plain(text: str) -> None:
    _, after = analyse(HEAD + text)
    assert "fully_shard(" in after
    assert "shard_model" not in after
    assert not _unbound(after), "an import went away with a use still there"


def _unbound(text: str) -> set[str]:
    """FSDP1's options that are used and not imported."""
    tree = ast.parse(text)
    imported = {
        a.asname or a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names
    }
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return (
        used & {"CPUOffload", "MixedPrecision", "ShardingStrategy", "ModuleWrapPolicy"}
    ) - imported


@pytest.mark.parametrize(
    ("device", "sent_from"),
    [
        ("", ""),
        ("device_id=None, ", ""),
        ("device_id=torch.cuda.current_device(), ", ", device=torch.cuda.current_device()"),
    ],
)
def test_broadcast_goes_by_the_device_that_fsdp1_moved_to(device: str, sent_from: str) -> None:
    _, after = analyse(f"{HEAD}model = FSDP(model, {device}sync_module_states=True)\n")
    assert f"\nbroadcast_module_states(model{sent_from})\nfully_shard(model)\n" in after


def test_names_of_a_mesh_are_given_once() -> None:
    text = f"{HEAD}mesh = init_device_mesh('cuda', (2, 4))\nmodel = FSDP(m, {HYBRID}, device_mesh=mesh)\nprint(mesh)\n"
    _, after = analyse(text)
    assert after.count('mesh_dim_names=("replicate", "shard")') == 1
    assert analyse(after)[1] == after


@pytest.mark.parametrize(
    ("classes", "root", "skipped"),
    [
        ("Block", "class Root(nn.Module): ...", False),
        ("Block", "class Root(Block): ...", True),
        ("nn.Sequential", "class Root(nn.Sequential): ...", True),
        ("nn.Linear", "class Root(nn.LazyLinear): ...", True),
        ("Block", "class Base(nn.Module): ...\nclass Root(Base): ...", False),
        ("Base", "class Base(nn.Module): ...\nclass Root(Base): ...", True),
        ("Block", "class Root(make()): ...", True),
    ],
)
def test_root_of_the_policys_classes_is_skipped(classes: str, root: str, skipped: bool) -> None:
    call = (
        f"model = Root()\nmodel = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({{{classes}}}))\n"
    )
    _, after = analyse(f"{HEAD}{root}\n{call}")
    assert "for module in reversed" in after
    assert ("module is not model" in after) is skipped


@pytest.mark.parametrize(
    "text",
    [
        "model = FSDP(FSDP(model))\n",
        "model = FSDP(model)\nmodel = FSDP(model)\n",
        "model = FSDP(model)\nmodel = FSDP(model.module)\n",
        "def wrap(m):\n    return FSDP(m)\nmodel = FSDP(wrap(model))\n",
    ],
)
def test_wrapped_twice_is_left_alone(text: str) -> None:
    report, after = analyse(HEAD + text)
    assert "fully_shard(" not in after
    assert all(f"{line}\n" in after for line in text.splitlines())
    assert any("already" in finding.message for finding in report.findings)


def test_two_ways_to_wrap_an_attribute_are_migrated() -> None:
    methods = "".join(
        f"    def {name}(self):\n        self.model = FSDP(self.model)\n" for name in "ab"
    )
    _, after = analyse(f"{HEAD}class T:\n{methods}")
    assert after.count("fully_shard(self.model)") == 2


def test_braces_of_the_program_stay() -> None:
    policy = "auto_wrap_policy=ModuleWrapPolicy({Block})"
    _, after = analyse(f"{HEAD}model = FSDP(Net({{'a': 1}}), {policy})\n")
    assert "model = Net({'a': 1})\n" in after


def test_partial_application_of_no_call() -> None:
    text = f"{HEAD}from functools import partial\nwrap = partial(FSDP, use_orig_params=True)\nmodel = FSDP(model)\n"
    _, after = analyse(text)
    assert "wrap = partial(shard_model, use_orig_params=True)\nfully_shard(model)\n" in after
