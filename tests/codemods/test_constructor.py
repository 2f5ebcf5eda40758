"""Constructors and each of their arguments: which are plain by what a file shows, and what is said of every one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from fsdp_migrate.codemods.constructor.arguments import ARGUMENTS
from fsdp_migrate.codemods.constructor.construction import SIGNATURE
from fsdp_migrate.engine import analyse_source
from fsdp_migrate.settings import Options
from fsdp_migrate.source import Source

from .test_examples import analyse

HEAD = """\
import torch
import torch.nn as nn
from functools import partial
from model import Block, Net
from torch.distributed.fsdp import (
    BackwardPrefetch, CPUOffload, FullyShardedDataParallel as FSDP, MixedPrecision, ShardingStrategy
)
from torch.distributed.fsdp.wrap import (
    ModuleWrapPolicy, lambda_auto_wrap_policy, transformer_auto_wrap_policy
)
from torch.distributed.device_mesh import init_device_mesh


class Seen(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Sequential(nn.Linear(8, 8))

    def forward(self, x):
        return self.a(x)


model = Net()
"""
HYBRID = "sharding_strategy=ShardingStrategy.HYBRID_SHARD"
BF16 = "mixed_precision=MixedPrecision(param_dtype=torch.bfloat16)"
LAMBDA = "partial(lambda_auto_wrap_policy, lambda_fn=lambda m: {})"
BY_BLOCK = "auto_wrap_policy=ModuleWrapPolicy({Block})"

STAYS = {
    "mesh of two dimensions": "mesh = init_device_mesh('cuda', (2, 4))\nmodel = FSDP(model, device_mesh=mesh)\n",
    "mesh of a shape from elsewhere": "model = FSDP(model, device_mesh=init_device_mesh('cuda', shape))\n",
    "hybrid mesh without names": f"mesh = init_device_mesh('cuda', (2, 4))\nmodel = FSDP(model, {HYBRID}, device_mesh=mesh)\n",
    "hybrid mesh of one dimension": f"model = FSDP(model, {HYBRID}, device_mesh=init_device_mesh('cuda', (8,)))\n",
    "hybrid without a mesh": f"model = FSDP(model, {HYBRID}, {BY_BLOCK})\n",
    "strategy of a configuration": "model = FSDP(model, sharding_strategy=config.strategy)\n",
    "strategy named in the call": "model = FSDP(model, sharding_strategy=(s := ShardingStrategy.FULL_SHARD))\nprint(s)\n",
    "group that may be None": "model = FSDP(model, process_group=group, device_id=0)\n",
    "group on an unknown device": "model = FSDP(model, process_group=new_group(), device_id=device)\n",
    "strategy by a call": "model = FSDP(model, sharding_strategy=pick(config))\n",
    "strategy of branches, one unknown": (
        "model = FSDP(model, sharding_strategy=ShardingStrategy.FULL_SHARD if a else config.strategy)\n"
    ),
    "strategy read elsewhere, too": (
        "s = ShardingStrategy.FULL_SHARD\nif zero2:\n    s = ShardingStrategy.SHARD_GRAD_OP\n"
        "print(s)\nmodel = FSDP(model, sharding_strategy=s)\n"
    ),
    "branches of precision that differ in flags": (
        "a = MixedPrecision(torch.bfloat16, cast_forward_inputs=True) if x else MixedPrecision(torch.float16)\n"
        "model = FSDP(model, mixed_precision=a)\n"
    ),
    "a condition that asks the module": f"model = FSDP(model, auto_wrap_policy={LAMBDA.format('m.numel() > 3')})\n",
    "a condition that is negated": f"model = FSDP(model, auto_wrap_policy={LAMBDA.format('m not in model.layers')})\n",
    "a condition of another function": (
        f"def wrap(m, p):\n    return FSDP(m, auto_wrap_policy=p)\n"
        f"wrap(Net(), {LAMBDA.format('m in xs')})\n"
    ),
    "offload changed on the way": "c = CPUOffload()\nc.offload_params = True\nmodel = FSDP(model, cpu_offload=c)\n",
    "broadcast in a loop": "for m in models:\n    FSDP(m, sync_module_states=True)\n",
    "broadcast inside an expression": "train(FSDP(Net(), sync_module_states=True))\n",
    "mixed precision in a loop": f"for m in models:\n    m = FSDP(m, {BF16})\n",
    "mixed precision beside another constructor": f"model.a = FSDP(model.a, {BF16})\nmodel = FSDP(model, {BF16})\n",
    "mixed precision, two calls": f"def wrap(m):\n    return FSDP(m, {BF16})\na, b = wrap(Net()), wrap(Net())\n",
    "mixed precision in a function handed on": f"def wrap(m):\n    return FSDP(m, {BF16})\nmodels = map(wrap, models)\n",
    "mixed precision that may be None, and BatchNorm": (
        "p = MixedPrecision(torch.bfloat16)\nif x:\n    p = None\n"
        f"model = FSDP(model, {BY_BLOCK}, mixed_precision=p)\n"
    ),
    "gradients in low precision": "model = FSDP(model, mixed_precision=MixedPrecision(keep_low_precision_grads=True))\n",
    "policy that asks the model": "model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({type(model.a)}))\n",
    "policy of an unknown name": "model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({x}))\n",
    "policy of a container": "model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({nn.ModuleList}))\n",
    "policy changed on the way": (
        "p = ModuleWrapPolicy({Block})\np._module_classes.add(Net)\nmodel = FSDP(model, auto_wrap_policy=p)\n"
    ),
    "policy that is also printed": (
        "p = ModuleWrapPolicy({Block})\na = FSDP(model, auto_wrap_policy=p)\n"
        "b = FSDP(Net(), auto_wrap_policy=p)\nprint(p)\n"
    ),
    "policy in a class body": f"class T:\n    model = FSDP(Net(), {BY_BLOCK})\n",
    "another isinstance": f"def isinstance(*_): ...\nmodel = FSDP(model, {BY_BLOCK})\n",
    "another fully_shard": "from composable import fully_shard\nmodel = FSDP(model)\n",
    "device set below": "model = FSDP(model, device_id=d)\ntorch.cuda.set_device(d)\n",
    "a device that can be the CPU": "d = torch.device('cuda' if gpu else 'cpu')\nmodel = FSDP(model, device_id=d)\n",
    "prefetching off": "model = FSDP(model, backward_prefetch=None)\n",
    "a popped argument": "model = FSDP(model, use_orig_params=options.pop('x'))\n",
    "an initializer": "model = FSDP(model, param_init_fn=init)\n",
    "a star": "model = FSDP(*arguments)\n",
}
PLAIN = {
    "mixed precision and a model of another package": f"model = FSDP(model, {BY_BLOCK}, {BF16})\n",
    "BatchNorm in the model's function": (
        f"def build():\n    model = Seen()\n    model.bn = nn.BatchNorm1d(8)\n    return FSDP(model, {BY_BLOCK}, {BF16})\n"
    ),
    "policy inside an expression": f"train(FSDP(Net(), {BY_BLOCK}))\n",
    "broadcast beside another constructor": "a = FSDP(model, sync_module_states=True)\nb = FSDP(Net())\n",
    "broadcast over a mesh": "model = FSDP(model, device_mesh=mesh['dp'], sync_module_states=True)\n",
    "broadcast by a flag": "model = FSDP(model, sync_module_states=low)\n",
    "offload by a flag": "model = FSDP(model, cpu_offload=CPUOffload(offload_params=low))\n",
    "offload in a condition": "model = FSDP(model, cpu_offload=CPUOffload(True) if low else None)\n",
    "strategy bound twice": (
        "s = ShardingStrategy.FULL_SHARD\nif zero2:\n    s = ShardingStrategy.SHARD_GRAD_OP\n"
        "model = FSDP(model, sharding_strategy=s)\n"
    ),
    "mesh of one dimension": "mesh = init_device_mesh('cuda', (8,))\nmodel = FSDP(model, device_mesh=mesh)\n",
    "hybrid mesh of two names": f"model = FSDP(model, {HYBRID}, device_mesh=mesh['a', 'b'])\n",
    "strategy by a name": "s = ShardingStrategy.SHARD_GRAD_OP\nmodel = FSDP(model, sharding_strategy=s)\n",
    "offload by a name": "c = CPUOffload(True)\nmodel = FSDP(model, cpu_offload=c)\n",
    "mixed precision in a function called once": f"def wrap(m):\n    return FSDP(m, {BF16})\na = wrap(Net())\n",
    "mixed precision with classes of this program": (
        f"def build():\n    model = Seen()\n    return FSDP(model, auto_wrap_policy=ModuleWrapPolicy({{nn.Linear}}), {BF16})\n"
    ),
    "policy behind a list": "model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy(set([Block])))\n",
    "policy of two": (
        "p = ModuleWrapPolicy({Block})\na = FSDP(model, auto_wrap_policy=p)\nb = FSDP(Net(), auto_wrap_policy=p)\n"
    ),
    "model over several lines": f"model = FSDP(\n    model\n    .net, {BY_BLOCK})\n",
    "model made in the call": f"model = FSDP(\n    Net()\n    .cuda(), {BY_BLOCK})\n",
    "several arguments for every unit": (
        f"model = FSDP(model, {BY_BLOCK}, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, cpu_offload=CPUOffload(True))\n"
    ),
    "device set above": "torch.cuda.set_device(rank)\nmodel = FSDP(model, device_id=rank)\n",
    "device set by its own name": "from torch.cuda import set_device\nset_device(0)\nmodel = FSDP(model, device_id=0)\n",
    "device set in another function": "model = FSDP(model, device_id=d)\ndef setup():\n    torch.cuda.set_device(d)\n",
    "nothing but None": "model = FSDP(model, None, None, None, None, ignored_states=None)\n",
}


def constructors(text: str) -> list[str]:
    """The names of the functions that take a model in a program."""
    return [
        node.func.id
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id in {"FSDP", "fully_shard"}
    ]


@pytest.mark.parametrize("name", STAYS)
def test_stays_on_the_bridge(name: str) -> None:
    report, after = analyse(HEAD + STAYS[name])
    assert "fully_shard" not in constructors(after)
    found = [each for each in report.findings if each.code == "FSDP002"]
    assert found
    assert [each for each in found if each.action != "runtime"] == []


@pytest.mark.parametrize("name", PLAIN)
def test_becomes_plain(name: str) -> None:
    _, after = analyse(HEAD + PLAIN[name])
    assert "FSDP" not in constructors(after), after
    assert "fully_shard" in constructors(after)


def test_a_policy_of_two_goes_with_them_but_not_from_one_that_nothing_calls() -> None:
    two = HEAD + PLAIN["policy of two"]
    assert "ModuleWrapPolicy" not in analyse(two)[1]
    third = "def old(m):\n    return FSDP(m, auto_wrap_policy=p)\nif __name__ == '__main__':\n    print(a)\n"
    assert "p = ModuleWrapPolicy({Block})" in analyse(two + third)[1]


CODES = {
    "process_group": "FSDP106",
    "sharding_strategy": "FSDP105",
    "auto_wrap_policy": "FSDP152",
    "mixed_precision": "FSDP213",
    "device_mesh": "FSDP107",
} | {name: meaning.rule.code for name, meaning in ARGUMENTS.items()}
VALUES = {name: f"config.{name}" for name in SIGNATURE[1:]}
SPELLED = {
    "by keyword": "FSDP(model, {keywords})",
    "by position": "FSDP(model, {values})",
    "in a dictionary": "options = dict({keywords})\nFSDP(model, **options)",
    "in a dictionary that grows": "options = {{}}\n{stored}\nFSDP(model, **options)",
    "in a partial": "partial(FSDP, {keywords})",
    "in enable_wrap": "enable_wrap(wrapper_cls=FSDP, {keywords})",
    "in a call of a subclass": "class Own(FSDP): ...\nOwn(model, {keywords})",
    "in a subclass": "class Own(FSDP):\n    def __init__(self, m):\n        super().__init__(m, {keywords})",
}


def test_every_argument_has_a_rule() -> None:
    assert VALUES.keys() == CODES.keys()


@pytest.mark.parametrize("name", SPELLED)
def test_each_argument_has_a_finding(name: str) -> None:
    keywords = ", ".join(f"{key}={value}" for key, value in VALUES.items())
    values = ", ".join(VALUES.values())
    stored = "\n".join(f'options["{key}"] = {value}' for key, value in VALUES.items())
    text = SPELLED[name].format(keywords=keywords, values=values, stored=stored)
    report, _ = analyse(f"{HEAD}from torch.distributed.fsdp.wrap import enable_wrap\n{text}\n")
    found = [each for each in report.findings if each.construct.split("=")[0] in VALUES]
    assert sorted(each.code for each in found) == sorted(CODES.values())
    assert [each for each in found if each.action != "runtime"] == []


def test_device_0_is_a_device() -> None:
    report, _ = analyse(f"{HEAD}model = FSDP(model, device_id=0, param_init_fn=f)\n")
    said = [each.message for each in report.findings if each.code == "FSDP207"]
    assert said == ["the runtime makes this device the current one and moves the model there"]


def test_a_key_of_a_dictionary_is_said_once() -> None:
    text = "options = {'use_orig_params': True}\na = FSDP(model, **options)\nb = FSDP(model, **options)\n"
    report, _ = analyse(HEAD + text)
    assert [each.code for each in report.findings].count("FSDP206") == 1


def test_what_the_bridge_refuses_is_for_a_person() -> None:
    report, _ = analyse(HEAD + STAYS["gradients in low precision"])
    assert [each.code for each in report.findings if each.action == "manual"] == ["FSDP216"]


def test_the_root_is_skipped_where_it_may_be_of_the_classes() -> None:
    known = "def build():\n    model = Seen()\n    return FSDP(model, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}))\n"
    assert "if isinstance(module, nn.Linear):" in analyse(HEAD + known)[1]
    itself = known.replace("nn.Linear", "Seen")
    assert "if module is not model and isinstance(module, Seen):" in analyse(HEAD + itself)[1]
    unknown = f"model = FSDP(model, {BY_BLOCK})\n"
    assert "if module is not model and isinstance(module, Block):" in analyse(HEAD + unknown)[1]


def test_a_condition_inside_of_a_branch_keeps_its_brackets() -> None:
    text = "model = FSDP(model, cpu_offload=CPUOffload(offload_params=low) if save else None)\n"
    _, after = analyse(HEAD + text)
    assert "(CPUOffloadPolicy() if low else OffloadPolicy()) if save else OffloadPolicy()" in after


def test_the_device_is_current_before_a_mesh_is_made_on_it() -> None:
    text = (
        "model = FSDP(model, process_group=new_group(), device_id=rank, sync_module_states=True)\n"
    )
    _, after = analyse(HEAD + text)
    assert (
        """\
torch.cuda.set_device(rank)
mesh = DeviceMesh.from_group(new_group(), "cuda")
broadcast_module_states(model, mesh=mesh)
fully_shard(model, mesh=mesh)
"""
        in after
    )


def test_a_strategy_of_several_names_is_called_what_it_is() -> None:
    text = (
        "s = ShardingStrategy.FULL_SHARD\nif zero2:\n    s = ShardingStrategy.SHARD_GRAD_OP\n"
        "model = FSDP(model, sharding_strategy=s)\n"
    )
    assert analyse(HEAD + text)[1].endswith("""\
reshard_after_forward = None
if zero2:
    reshard_after_forward = False
fully_shard(model, reshard_after_forward=reshard_after_forward)
""")


TOLD = """\
from dataclasses import dataclass
@dataclass
class Output:
    x: object
class Told(Seen):
    def forward(self, x):
        found = Output(super().forward(x))
        return found
model = Told()
model = FSDP(model)
"""


@pytest.mark.parametrize(("target", "plain"), [((2, 12), False), ((2, 13), True)])
def test_plain_fsdp2_looks_into_dataclasses_from_torch_2_13_on(
    target: tuple[int, ...], plain: bool
) -> None:
    source = Source(Path("/nowhere/told.py"), "told.py", (HEAD + TOLD).encode())
    report = analyse_source(source, Options(target_torch=target))
    assert ("fully_shard" in constructors(report.changes[0].after.decode())) is plain
