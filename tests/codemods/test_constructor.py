"""Constructors and each of their arguments: what a file shows, what the runtime reads, and what is said of every one."""

import ast
from textwrap import indent

import pytest

from fsdp_migrate.codemods.constructor.construction import SIGNATURE
from fsdp_migrate.codemods.constructor.rows import ROWS

from .constructors import HEAD, without_imports
from .programs import table
from .test_examples import analyse

BF16 = "mixed_precision=MixedPrecision(param_dtype=torch.bfloat16)"
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
# Programs behind the head, and what they become; without the comment at the line with `like_fsdp1`.
WRITTEN = table(
    """\
=== a broadcast from a device
model = FSDP(model, sync_module_states=True, device_id=torch.cuda.current_device())
---
# Every rank begins with rank 0's values
for tensor in [*model.parameters(), *model.buffers()]:
    value = tensor.detach().to(torch.cuda.current_device())
    torch.distributed.broadcast(value, src=0)
    tensor.detach().copy_(value)
with like_fsdp1(model):
    fully_shard(model)
=== a name that something else reads
c = CPUOffload(True)
model = FSDP(model, cpu_offload=c)
print(c)
---
c = CPUOffload(True)
with like_fsdp1(model):
    fully_shard(model, offload_policy=CPUOffloadPolicy())
print(c)
=== names that the new code reads
low = torch.bfloat16
p = MixedPrecision(param_dtype=low)
model = FSDP(model, mixed_precision=p)
---
low = torch.bfloat16
p = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=low)
with like_fsdp1(model):
    fully_shard(model, mp_policy=p)
=== a device that is set in another function
def main(d):
    FSDP(model, device_id=d)
def setup(d):
    torch.cuda.set_device(d)
---
def main(d):
    with like_fsdp1(model):
        fully_shard(model)
def setup(d):
    torch.cuda.set_device(d)
=== a device that can be the CPU
model = FSDP(model, device_id=torch.device('cuda' if gpu else 'cpu'))
---
with like_fsdp1(model):
    fully_shard(model)
=== a device that nothing sets
model = FSDP(model, device_id=device)
---
torch.cuda.set_device(device)
with like_fsdp1(model):
    fully_shard(model)
=== broadcast by what a call gives
model = FSDP(model, sync_module_states=is_low())
---
# Every rank begins with rank 0's values
if is_low():
    for tensor in [*model.parameters(), *model.buffers()]:
        torch.distributed.broadcast(tensor.detach(), src=0)
with like_fsdp1(model):
    fully_shard(model)
=== prefetching off
model = FSDP(model, backward_prefetch=None)
---
with like_fsdp1(model):
    fully_shard(model)
=== prefetching in forward
model = FSDP(model, forward_prefetch=True)
---
with like_fsdp1(model):
    fully_shard(model)
=== ignored modules
model = FSDP(model, ignored_modules=[model.head])
---
ignored_params = {p for m in [model.head] for p in m.parameters()}
with like_fsdp1(model):
    fully_shard(model, ignored_params=ignored_params)
=== an argument that something changes
model = FSDP(model, use_orig_params=settings.pop('x'))
---
settings.pop('x')
with like_fsdp1(model):
    fully_shard(model)
=== offload changed on the way
c = CPUOffload()
c.offload_params = True
model = FSDP(model, cpu_offload=c)
---
c = CPUOffload()
c.offload_params = True
with like_fsdp1(model):
    fully_shard(
        model,
        offload_policy=(
            CPUOffloadPolicy() if c and c.offload_params else OffloadPolicy()
        ),
    )
=== device set below
model = FSDP(model, device_id=d)
torch.cuda.set_device(d)
---
torch.cuda.set_device(d)
with like_fsdp1(model):
    fully_shard(model)
torch.cuda.set_device(d)
=== an unpacked dictionary
options = {'cpu_offload': CPUOffload(offload), 'limit_all_gathers': True}
model = FSDP(model, **options)
---
with like_fsdp1(model):
    fully_shard(
        model, offload_policy=CPUOffloadPolicy() if offload else OffloadPolicy()
    )
=== an unpacked dictionary that grows
options = {}
if node:
    options['device_mesh'] = mesh
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), **options)
---
options = {}
if node:
    options['device_mesh'] = mesh
mesh_ = options.get("device_mesh")
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            fully_shard(module, mesh=mesh_)
    fully_shard(model, mesh=mesh_)
=== a broadcast behind a condition, over a group
model = FSDP(model, process_group=group, sync_module_states=sync)
---
# Every rank begins with rank 0's values
if sync:
    for tensor in [*model.parameters(), *model.buffers()]:
        torch.distributed.broadcast(tensor.detach(), group_src=0, group=group)
with like_fsdp1(model):
    fully_shard(model, mesh=DeviceMesh.from_group(group, "cuda"))
=== prefetching in forward, of units
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), forward_prefetch=True)
---
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            fully_shard(module)
    fully_shard(model)
fsdp_modules = [m for m in model.modules() if isinstance(m, FSDPModule)]
for unit, following in zip(fsdp_modules[1:], fsdp_modules[2:]):
    unit.set_modules_to_forward_prefetch([following])
=== ignored modules and units
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), ignored_modules=[model.head])
---
ignored_params = {p for m in [model.head] for p in m.parameters()}
ignored = {part for m in [model.head] for part in m.modules()}
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if module not in ignored and isinstance(module, Block):
            fully_shard(module, ignored_params=ignored_params)
    fully_shard(model, ignored_params=ignored_params)
=== ignored parameters
model = FSDP(model, ignored_states=list(model.head.parameters()))
---
ignored_params = set(list(model.head.parameters()))
with like_fsdp1(model):
    fully_shard(model, ignored_params=ignored_params)
"""
)
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


@pytest.mark.parametrize("name", WRITTEN)
def test_an_argument_by_its_expression(name: str) -> None:
    before, expected = WRITTEN[name]
    report, after = analyse(HEAD + before)
    assert without_imports(after) == expected
    found = [each.action.value for each in report.findings if each.code == "FSDP002"]
    assert set(found) == ({"runtime"} if "units(" in after else {"rewrite"})


def test_what_torch_has_no_expression_for() -> None:
    report, after = analyse(
        f"{HEAD}model = FSDP(model, param_init_fn=init, limit_all_gathers=True)\n"
    )
    assert "in units(model, param_init_fn=init):" in after
    assert "param_init_fn" in next(f.message for f in report.findings if f.code == "FSDP002")
    text = f"{HEAD}model = FSDP(model, **options_from(elsewhere))\n"
    assert "in units(model, **options_from(elsewhere)):" in analyse(text)[1]
    report, after = analyse(text, "torch")
    assert after.endswith("model = FSDP(model, **options_from(elsewhere))\n")
    assert [f.action.value for f in report.findings if f.code == "FSDP002"] == ["manual"]


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


def test_a_cpu_is_not_made_current() -> None:
    call = "FSDP(model, device_id=torch.device('cpu'), sync_module_states=True)"
    _, after = analyse(f"{HEAD}model = {call}\n", "torch")
    assert "fully_shard(model" in after
    assert "set_device" not in after


@pytest.mark.parametrize("form", ["auto", "torch"])
@pytest.mark.parametrize(
    ("above", "device", "is_cpu"),
    [
        ("", "torch.device('cpu')", True),
        ("torch.cuda.set_device(0)\n", "'cpu'", True),
        ("device = torch.device('cpu')\n", "device", True),
        (
            "device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')\n",
            "device",
            False,
        ),
        ("", "torch.device(args.device)", False),
        ("", "0", False),
    ],
)
def test_a_cpu_has_a_mesh_of_cpus(above: str, device: str, is_cpu: bool, form: str) -> None:
    report, after = analyse(f"{HEAD}{above}model = FSDP(model, device_id={device})\n", form)
    made = 'mesh=init_device_mesh("cpu", (torch.distributed.get_world_size(),))'
    assert (made in after) is is_cpu
    said = [each.message for each in report.findings if each.code == "FSDP207"]
    assert said[0].startswith("Replaced by a mesh of CPUs") is is_cpu


def test_device_0_is_a_device() -> None:
    report, _ = analyse(f"{HEAD}model = FSDP(model, device_id=0, param_init_fn=f)\n")
    said = [each.message for each in report.findings if each.code == "FSDP207"]
    assert said == [
        "Still works: `fsdp_migrate.runtime` makes this the current device and moves the model to it."
    ]


def test_a_key_of_a_dictionary_is_said_once() -> None:
    text = "options = {'use_orig_params': True}\na = FSDP(model, **options)\nb = FSDP(model, **options)\n"
    report, _ = analyse(HEAD + text)
    assert [each.code for each in report.findings].count("FSDP206") == 1


def test_what_a_growing_dictionary_gives_is_read_from_it() -> None:
    grown = "options = {}\nif a:\n    options['backward_prefetch'] = b\noptions['use_orig_params'] = c\n"
    marked = "for p in model.parameters():\n    p.mine = True\n"
    report, text = analyse(f"{HEAD}{grown}{marked}model = FSDP(model, **options)\n")
    said = [each.construct for each in report.findings if each.code in ("FSDP203", "FSDP206")]
    orig = 'options.get("use_orig_params")'
    assert said == ['backward_prefetch=options.get("backward_prefetch")', f"use_orig_params={orig}"]
    assert f"parameter_attributes={orig}" in text


def test_what_fsdp2_does_not_have_is_for_a_person() -> None:
    given = "mixed_precision=MixedPrecision(keep_low_precision_grads=True)"
    report, _ = analyse(f"{HEAD}model = FSDP(model, {given})\n")
    assert [each.code for each in report.findings if each.action == "manual"] == ["FSDP216"]


def test_wrap_shards_nothing_where_enable_wrap_stays() -> None:
    head = f"{HEAD}from torch.distributed.fsdp.wrap import CustomPolicy, enable_wrap, wrap\n"
    given = "auto_wrap_policy=CustomPolicy(lambda m: isinstance(m, Block))"
    text = f"with enable_wrap(wrapper_cls=FSDP, {given}):\n    model = wrap(model)\n"
    found = [f for f in analyse(head + text, "torch")[0].findings if f.code == "FSDP002"]
    assert [each.action for each in found] == ["manual", "manual"]
    found = [f for f in analyse(head + text)[0].findings if f.code == "FSDP002"]
    assert "manual" not in [each.action for each in found]
