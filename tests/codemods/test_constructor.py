"""Constructors and each of their arguments: what a file shows, what the runtime reads, and what is said of every one."""

import ast
from textwrap import indent

import pytest

from fsdp_migrate.codemods.constructor.construction import SIGNATURE
from fsdp_migrate.codemods.constructor.rows import ROWS

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

# In torch's words: the call, and what takes its place under `with like_fsdp1(model):`, or without it where that is last.
SHOWN = {
    "nothing but None": (
        "FSDP(model, None, None, None, None, ignored_states=None)",
        "fully_shard(model)",
    ),
    "what has no effect": (
        "FSDP(model, use_orig_params=x.y, limit_all_gathers=False, forward_prefetch=False, ignored_modules=None)",
        "fully_shard(model)",
    ),
    "prefetching in backward": (
        "FSDP(model, backward_prefetch=BackwardPrefetch.BACKWARD_POST)",
        "fully_shard(model)",
    ),
    "zero 2": (
        "FSDP(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)",
        "fully_shard(model, reshard_after_forward=False)",
    ),
    "mixed precision": (
        f"FSDP(model, {BF16})",
        "fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16))",
    ),
    "classes": (
        f"FSDP(model, {BY_BLOCK})",
        "for module in reversed(list(model.modules())):\n    if isinstance(module, Block):\n        fully_shard(module)\n"
        "fully_shard(model)",
    ),
    "classes of which nothing is known": (
        "FSDP(model, auto_wrap_policy=ModuleWrapPolicy(set([x])))",
        "for module in reversed(list(model.modules())):\n    if isinstance(module, x):\n        fully_shard(module)\n"
        "fully_shard(model)",
    ),
}
# As SHOWN, with what is above the `with`.
ABOVE = {
    "several options of every unit": (
        f"FSDP(model, {BY_BLOCK}, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, cpu_offload=CPUOffload(True))",
        "fsdp_kwargs = dict(reshard_after_forward=False, offload_policy=CPUOffloadPolicy())",
        "fully_shard(model, **fsdp_kwargs)",
    ),
    "mixed precision of units": (
        f"FSDP(model, {BY_BLOCK}, {BF16})",
        "mp_policy = MixedPrecisionPolicy(\n    param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16\n)",
        "fully_shard(module, mp_policy=replace(mp_policy, cast_forward_inputs=False))",
    ),
    "a broadcast from a device": (
        "FSDP(model, sync_module_states=True, device_id=torch.cuda.current_device())",
        "broadcast_module_states(model, device=torch.cuda.current_device())",
        "fully_shard(model)",
    ),
    "buffers": (
        "FSDP(model, mixed_precision=MixedPrecision(buffer_dtype=torch.float16))",
        "with like_fsdp1(model, buffer_dtype=torch.float16):",
        "fully_shard(model)",
    ),
}
# Values behind a name, with the whole code.
NAMED = {
    "a name that something else reads": (
        "c = CPUOffload(True)\nmodel = FSDP(model, cpu_offload=c)\nprint(c)\n",
        "c = CPUOffload(True)\nwith like_fsdp1(model):\n    fully_shard(model, offload_policy=CPUOffloadPolicy())\nprint(c)\n",
    ),
    "names that the new code reads": (
        "low = torch.bfloat16\np = MixedPrecision(param_dtype=low)\nmodel = FSDP(model, mixed_precision=p)\n",
        "low = torch.bfloat16\nwith like_fsdp1(model):\n"
        "    fully_shard(\n        model, mp_policy=MixedPrecisionPolicy(param_dtype=low, reduce_dtype=low)\n    )\n",
    ),
    "a class behind a name": (
        "Unit = Block\np = ModuleWrapPolicy({Unit})\nmodel = FSDP(model, auto_wrap_policy=p)\n",
        "Unit = Block\nwith like_fsdp1(model):\n    for module in reversed(list(model.modules())):\n"
        "        if isinstance(module, Unit):\n            fully_shard(module)\n    fully_shard(model)\n",
    ),
    "a policy of two calls": (
        "p = ModuleWrapPolicy({Block})\nmodel = FSDP(model, auto_wrap_policy=p)\nb = FSDP(model.b, auto_wrap_policy=p)\n",
        "with like_fsdp1(model):\n    for module in reversed(list(model.modules())):\n"
        "        if isinstance(module, Block):\n            fully_shard(module)\n    fully_shard(model)\n"
        "with like_fsdp1(model.b):\n    for module in reversed(list(model.b.modules())):\n"
        "        if isinstance(module, Block):\n            fully_shard(module)\n    fully_shard(model.b)\nb = model.b\n",
    ),
    "a device that is set in another function": (
        "def main(d):\n    FSDP(model, device_id=d)\ndef setup(d):\n    torch.cuda.set_device(d)\n",
        "def main(d):\n    with like_fsdp1(model):\n        fully_shard(model)\ndef setup(d):\n    torch.cuda.set_device(d)\n",
    ),
}
# What only a run knows, or only the runtime does: arguments of `units`, as they are written.
READ = {
    "a mesh": "device_mesh=init_device_mesh('cuda', (8,))",
    "hybrid without a mesh": f"{HYBRID}, {BY_BLOCK}",
    "a strategy by a condition": "sharding_strategy=ShardingStrategy.FULL_SHARD if a else ShardingStrategy.SHARD_GRAD_OP",
    "a condition": f"auto_wrap_policy={LAMBDA.format('m in model.layers')}",
    "precision that casts no inputs": "mixed_precision=MixedPrecision(torch.float16, cast_root_forward_inputs=False)",
    "replicas": "sharding_strategy=ShardingStrategy.NO_SHARD",
    "gradients in low precision": "mixed_precision=MixedPrecision(keep_low_precision_grads=True)",
    "policy that asks the model": "auto_wrap_policy=ModuleWrapPolicy({type(model.a)})",
    "policy of a container": "auto_wrap_policy=ModuleWrapPolicy({nn.ModuleList})",
    "policy of every module": "auto_wrap_policy=ModuleWrapPolicy({nn.Module})",
    "a device that can be the CPU": "device_id=torch.device('cuda' if gpu else 'cpu')",
    "a device that nothing sets": "device_id=device",
    "broadcast by what a call gives": "sync_module_states=is_low()",
    "prefetching off": "backward_prefetch=None",
    "prefetching in forward": "forward_prefetch=True",
    "ignored modules": "ignored_modules=[model.head]",
    "an initializer": "param_init_fn=init",
    "an argument that something changes": "use_orig_params=settings.pop('x')",
}
# Programs in which a name does not have the value that it seems to have.
CHANGED = {
    "offload changed on the way": "c = CPUOffload()\nc.offload_params = True\nmodel = FSDP(model, cpu_offload=c)\n",
    "policy changed on the way": (
        "p = ModuleWrapPolicy({Block})\np._module_classes.add(Net)\nmodel = FSDP(model, auto_wrap_policy=p)\n"
    ),
    "a class that is another at the call": (
        "p = ModuleWrapPolicy({Block})\nBlock = Net\nmodel = FSDP(model, auto_wrap_policy=p)\n"
    ),
    "device set below": "model = FSDP(model, device_id=d)\ntorch.cuda.set_device(d)\n",
    "BatchNorm in the model": f"model.bn = nn.BatchNorm1d(8)\nmodel = FSDP(model, {BY_BLOCK}, {BF16})\n",
    "a model on the meta device": f"with torch.device('meta'):\n    model = Net()\nmodel = FSDP(model, {BY_BLOCK})\n",
}
# What keeps its constructor on the bridge.
STAYS = {
    "super of a subclass": "class Own(FSDP):\n    def __init__(self, m):\n        super().__init__(m)\n",
    "an argument that FSDP1 does not have": "model = FSDP(model, mesh=mesh)\n",
    "a name with the wrapper": "model = FSDP(model)\nprint('_fsdp_wrapped_module' in name)\n",
    "a silenced call": "model = FSDP(model)  # fsdp-migrate: ignore[FSDP002]\n",
}


def behind(text: str) -> str:
    """A program without the head, formatted as Black would: what is compared is the code, not where lines break."""
    made = ast.unparse(ast.parse(text.partition("model = Net()\n")[2]))
    return made + "\n"


@pytest.mark.parametrize("form", ["auto", "torch"])
@pytest.mark.parametrize("name", SHOWN)
def test_a_value_that_the_file_shows(name: str, form: str) -> None:
    call, code = SHOWN[name]
    _, after = analyse(f"{HEAD}model = {call}\n", form)
    if form == "auto":
        code = "with like_fsdp1(model):\n" + indent(code, "    ")
    assert behind(after) == ast.unparse(ast.parse(code)) + "\n"


@pytest.mark.parametrize("name", ABOVE)
def test_a_statement_above(name: str) -> None:
    call, above, last = ABOVE[name]
    _, after = analyse(f"{HEAD}model = {call}\n")
    start = after.partition("model = Net()\n")[2]
    assert start.startswith(above)
    assert ast.unparse(ast.parse(last)) in behind(after)


@pytest.mark.parametrize("name", NAMED)
def test_a_value_behind_a_name(name: str) -> None:
    before, expected = NAMED[name]
    _, after = analyse(HEAD + before)
    assert after.partition("model = Net()\n")[2] == expected


@pytest.mark.parametrize("name", READ)
def test_a_value_that_the_runtime_reads(name: str) -> None:
    given = READ[name]
    report, after = analyse(f"{HEAD}model = FSDP(model, {given})\n")
    (loop,) = [node for node in ast.walk(ast.parse(after)) if isinstance(node, ast.For)]
    assert ast.unparse(loop.iter) == ast.unparse(ast.parse(f"units(model, {given})"))
    found = [each.action.value for each in report.findings if each.code == "FSDP002"]
    assert found == ["rewrite"]


@pytest.mark.parametrize("name", CHANGED)
def test_a_name_whose_value_the_file_does_not_show(name: str) -> None:
    _, after = analyse(HEAD + CHANGED[name])
    assert "in units(" in after
    for line in CHANGED[name].splitlines():
        assert "FSDP(" in line or line in after


@pytest.mark.parametrize("name", STAYS)
def test_stays_on_the_bridge(name: str) -> None:
    report, after = analyse(HEAD + STAYS[name])
    assert after.endswith(STAYS[name])
    found = [each.action.value for each in report.findings if each.code == "FSDP002"]
    assert found == (["runtime"] if "silenced" not in name else [])


CODES = {
    "process_group": "FSDP106",
    "sharding_strategy": "FSDP105",
    "cpu_offload": "FSDP201",
    "auto_wrap_policy": "FSDP152",
    "backward_prefetch": "FSDP203",
    "mixed_precision": "FSDP213",
    "ignored_modules": "FSDP212",
    "param_init_fn": "FSDP210",
    "device_id": "FSDP207",
    "sync_module_states": "FSDP208",
    "forward_prefetch": "FSDP204",
    "limit_all_gathers": "FSDP205",
    "use_orig_params": "FSDP206",
    "ignored_states": "FSDP212",
    "device_mesh": "FSDP107",
}
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
    assert VALUES.keys() == CODES.keys() == ROWS.keys()


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
    report, _ = analyse(f"{HEAD}model = FSDP(model, {READ['gradients in low precision']})\n")
    assert [each.code for each in report.findings if each.action == "manual"] == ["FSDP216"]
