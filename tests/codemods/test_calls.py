"""Calls that make units in other ways: inside an expression, by a `partial`, by `wrap`."""

from __future__ import annotations

import pytest

from .test_examples import analyse

HEAD = """\
import functools
import torch.nn as nn
from model import Block, Net
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, enable_wrap, wrap


"""
BY_BLOCK = "auto_wrap_policy=ModuleWrapPolicy({Block})"
ZERO2 = "sharding_strategy=ShardingStrategy.SHARD_GRAD_OP"
PARTIAL = f"shard = functools.partial(FSDP, {ZERO2})\n"
WITH = "with enable_wrap(wrapper_cls=FSDP, use_orig_params=True):\n"

PART = """\
class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        return self.used(x)


"""

# Programs with what they become, behind their imports.
BECOMES = {
    "a dictionary that is only unpacked": (
        f"options = dict({BY_BLOCK}, {ZERO2})\na = FSDP(Net(), **options)\nb = FSDP(Net(), **options, cpu_offload=None)\n",
        """\
a = Net()
for module in reversed(list(a.modules())):
    if module is not a and isinstance(module, Block):
        fully_shard(module, reshard_after_forward=False)
fully_shard(a, reshard_after_forward=False)
b = Net()
for module in reversed(list(b.modules())):
    if module is not b and isinstance(module, Block):
        fully_shard(module, reshard_after_forward=False)
fully_shard(b, reshard_after_forward=False)
""",
    ),
    "a dictionary with a path of a package imported twice": (
        "import torch\nimport torch.distributed.fsdp\n"
        "options = dict(sharding_strategy=torch.distributed.fsdp.ShardingStrategy.SHARD_GRAD_OP)\na = FSDP(Net(), **options)\n",
        "a = fully_shard(Net(), reshard_after_forward=False)\n",
    ),
    "a dictionary that something else unpacks, too": (
        "options = {'use_orig_params': True}\na = FSDP(Net(), **options)\nlog(**options)\n",
        "options = {'use_orig_params': True}\na = fully_shard(Net())\nlog(**options)\n",
    ),
    "another name of the class": (
        "A = FSDP\nnet = A(Net())\nprint(isinstance(net, A))\n",
        "net = fully_shard(Net())\nprint(isinstance(net, FSDPModule))\n",
    ),
    "a key of a dictionary": (
        f"def build(net):\n    # sharded\n    return {{'net': FSDP(net, {BY_BLOCK})}}\n\n\nbuild(Net())\n",
        """\
def build(net):
    # sharded
    def shard(model):
        for module in reversed(list(model.modules())):
            if module is not model and isinstance(module, Block):
                fully_shard(module)
        return fully_shard(model)

    return {'net': shard(net)}


build(Net())
""",
    ),
    "two alike share a function": (
        f"a, b = Net(), Net()\na, b = FSDP(a, {BY_BLOCK}), FSDP(b, {BY_BLOCK})\n",
        """\
a, b = Net(), Net()


def shard(model):
    for module in reversed(list(model.modules())):
        if module is not model and isinstance(module, Block):
            fully_shard(module)
    return fully_shard(model)


a, b = shard(a), shard(b)
""",
    ),
    "two that differ have one each": (
        f"models = [FSDP(Net(), {BY_BLOCK}), FSDP(Net(), {BY_BLOCK}, {ZERO2})]\n",
        """\
def shard(model):
    for module in reversed(list(model.modules())):
        if module is not model and isinstance(module, Block):
            fully_shard(module)
    return fully_shard(model)


def shard_2(model):
    for module in reversed(list(model.modules())):
        if module is not model and isinstance(module, Block):
            fully_shard(module, reshard_after_forward=False)
    return fully_shard(model, reshard_after_forward=False)


models = [shard(Net()), shard_2(Net())]
""",
    ),
    "a statement on the line of its if": (
        f"net = Net()\nif True: net = FSDP(net, {BY_BLOCK})\n",
        """\
net = Net()


def shard(model):
    for module in reversed(list(model.modules())):
        if module is not model and isinstance(module, Block):
            fully_shard(module)
    return fully_shard(model)


if True: net = shard(net)
""",
    ),
    "a model without a name, which is returned": (
        f"def build(model):\n    return FSDP(Net(model), {BY_BLOCK})\n\n\nbuild(1)\n",
        """\
def build(model):
    model_ = Net(model)
    for module in reversed(list(model_.modules())):
        if module is not model_ and isinstance(module, Block):
            fully_shard(module)
    return fully_shard(model_)


build(1)
""",
    ),
    "a call whose result nothing keeps": (
        f"FSDP(Net(), {BY_BLOCK})\n",
        """\
model = Net()
for module in reversed(list(model.modules())):
    if module is not model and isinstance(module, Block):
        fully_shard(module)
fully_shard(model)
""",
    ),
    "one of two models": (
        f"a, b = Net(), Net()\nnet = FSDP(a if first else b, {BY_BLOCK})\n",
        """\
a, b = Net(), Net()
net = a if first else b
for module in reversed(list(net.modules())):
    if module is not net and isinstance(module, Block):
        fully_shard(module)
fully_shard(net)
""",
    ),
    "a function beside a module called model": (
        "from nets import model\nnets = [FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({model.Block}))]\n",
        """\
def shard(model_):
    for module in reversed(list(model_.modules())):
        if module is not model_ and isinstance(module, model.Block):
            fully_shard(module)
    return fully_shard(model_)


nets = [shard(Net())]
""",
    ),
    "an attribute called model": (
        "import nets\nboth = [FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({nets.model.Block}))]\n",
        """\
def shard(model):
    for module in reversed(list(model.modules())):
        if module is not model and isinstance(module, nets.model.Block):
            fully_shard(module)
    return fully_shard(model)


both = [shard(Net())]
""",
    ),
    "no loop, where list is another": (
        "list = [1]\nnet = FSDP(Net())\n",
        "list = [1]\nnet = fully_shard(Net())\n",
    ),
    "no loop in a class body": (
        f"class Holder:\n    net = FSDP(Net(), {ZERO2})\n",
        "class Holder:\n    net = fully_shard(Net(), reshard_after_forward=False)\n",
    ),
    "a condition of elif": (
        f"x = 1\nif False:\n    pass\nelif x and FSDP(Net(), {BY_BLOCK}):\n    pass\n",
        """\
x = 1


def shard(model):
    for module in reversed(list(model.modules())):
        if module is not model and isinstance(module, Block):
            fully_shard(module)
    return fully_shard(model)


if False:
    pass
elif x and shard(Net()):
    pass
""",
    ),
    **{
        f"a result for {targets}": (
            f"{targets} = FSDP(nn.Sequential(Net(), Net()), {BY_BLOCK})\n",
            f"""\
def shard(model):
    for module in reversed(list(model.modules())):
        if module is not model and isinstance(module, Block):
            fully_shard(module)
    return fully_shard(model)


{targets} = shard(nn.Sequential(Net(), Net()))
""",
        )
        for targets in ("a = b", "a, b", "nets[pick()]")
    },
    "one call takes one expression": (
        f"models = {{n: FSDP(Net(), {ZERO2}) for n in 'ab'}}\n",
        "models = {n: fully_shard(Net(), reshard_after_forward=False) for n in 'ab'}\n",
    ),
    "a partial with a policy": (
        f"def build():\n    make = functools.partial(FSDP, {BY_BLOCK})\n    return make(Net())\n\n\nbuild()\n",
        """\
def build():
    def make(model):
        for module in reversed(list(model.modules())):
            if module is not model and isinstance(module, Block):
                fully_shard(module)
        return fully_shard(model)

    return make(Net())


build()
""",
    ),
    "a partial with a policy that has a name": (
        "policy = ModuleWrapPolicy({Block})\nshard = functools.partial(FSDP, auto_wrap_policy=policy)\nnet = shard(Net())\n",
        """\
def shard(model):
    for module in reversed(list(model.modules())):
        if module is not model and isinstance(module, Block):
            fully_shard(module)
    return fully_shard(model)

net = shard(Net())
""",
    ),
    "a partial, and a blank line": (
        f"shard = functools.partial(FSDP, {BY_BLOCK})\n\nnet = shard(Net())\n",
        """\
def shard(model):
    for module in reversed(list(model.modules())):
        if module is not model and isinstance(module, Block):
            fully_shard(module)
    return fully_shard(model)

net = shard(Net())
""",
    ),
    "a partial, and a comment": (
        f"shard = functools.partial(FSDP, {BY_BLOCK})  # by block\nnet = shard(Net())\n",
        """\
def shard(model):
    for module in reversed(list(model.modules())):
        if module is not model and isinstance(module, Block):
            fully_shard(module)
    return fully_shard(model)  # by block
net = shard(Net())
""",
    ),
    "a partial for a model that leaves parameters unused": (
        PART + "shard = functools.partial(FSDP)\nnet = shard(Part())\n",
        PART
        + """\
def shard(model):
    fully_shard(model)
    fill_unused_gradients(model)
    return model

net = shard(Part())
""",
    ),
    "a model that leaves parameters unused": (
        PART + "net = FSDP(Part())\n",
        PART + "net = Part()\nfully_shard(net)\nfill_unused_gradients(net)\n",
    ),
    "calls around a call": (
        PART + "net = [FSDP(Part())][0]\nsave(net.state_dict())\n",
        PART
        + "net = [use_full_state_dicts(fill_unused_gradients(fully_shard(Part())))][0]\nsave(net.state_dict())\n",
    ),
    "a function in a function, behind a blank line": (
        f"def build():\n    x = 1\n\n    return [FSDP(Net(), {BY_BLOCK}), x]\n\n\nbuild()\n",
        """\
def build():
    x = 1

    def shard(model):
        for module in reversed(list(model.modules())):
            if module is not model and isinstance(module, Block):
                fully_shard(module)
        return fully_shard(model)

    return [shard(Net()), x]


build()
""",
    ),
    "a partial whose result has the name that its function gives a model": (
        f"shard = functools.partial(FSDP, {BY_BLOCK})\n\nmodel = shard(Net())\nmodel = shard(Net())\n",
        """\
def shard(model):
    for module in reversed(list(model.modules())):
        if module is not model and isinstance(module, Block):
            fully_shard(module)
    return fully_shard(model)

model = shard(Net())
model = shard(Net())
""",
    ),
    **{
        f"an optimizer behind an evaluation, by {before}": (
            f"{before}\nnet(1)\noptimizer = torch.optim.SGD(net.parameters(), 0.1)\n",
            f"{after}\nnet(1)\noptimizer = torch.optim.SGD(net.parameters(), 0.1)\n",
        )
        for before, after in (
            (
                "shard = functools.partial(FSDP)\nnet = shard(Net())",
                "shard = functools.partial(fully_shard, reshard_after_forward=True)\nnet = shard(Net())",
            ),
            (
                "net = other = FSDP(Net())",
                "net = other = fully_shard(Net(), reshard_after_forward=True)",
            ),
        )
    },
    "a name with two values, which the call reads": (
        f"low = True\nif x:\n    low = False\nnets = [FSDP(Net(low), {BY_BLOCK}, cpu_offload=CPUOffload(low))]\n",
        """\
low = True
if x:
    low = False


def shard(model):
    for module in reversed(list(model.modules())):
        if module is not model and isinstance(module, Block):
            fully_shard(
                module, offload_policy=CPUOffloadPolicy() if low else OffloadPolicy()
            )
    return fully_shard(
        model, offload_policy=CPUOffloadPolicy() if low else OffloadPolicy()
    )


nets = [shard(Net(low))]
""",
    ),
    "two arguments of every unit": (
        f"net = FSDP(Net(), {BY_BLOCK}, {ZERO2}, cpu_offload=CPUOffload(True))\n",
        """\
net = Net()
fsdp_kwargs = dict(reshard_after_forward=False, offload_policy=CPUOffloadPolicy())
for module in reversed(list(net.modules())):
    if module is not net and isinstance(module, Block):
        fully_shard(module, **fsdp_kwargs)
fully_shard(net, **fsdp_kwargs)
""",
    ),
    "a model over two lines": (
        "net = FSDP(\n    Net()\n    if big else Net(1),\n    cpu_offload=None,\n)\n",
        "net = fully_shard(Net() if big else Net(1))\n",
    ),
    "a partial with nothing to say": (
        "shard = functools.partial(FSDP, use_orig_params=True)\nnet = shard(Net())\n",
        "shard = fully_shard\nnet = shard(Net())\n",
    ),
    "a unit around a unit is none": (
        WITH + "    net = Net()\n    net.head = wrap(wrap(net.head))\n    net = wrap(net)\n",
        "net = Net()\nnet.head = fully_shard(net.head)\nnet = fully_shard(net)\n",
    ),
    "a name that is the same where wrap is called": (
        "low = read()\nwith enable_wrap(wrapper_cls=FSDP, cpu_offload=CPUOffload(low)):\n    net = wrap(Net())\n",
        "low = read()\nnet = fully_shard(Net(), offload_policy=CPUOffloadPolicy() if low else OffloadPolicy())\n",
    ),
    "clipping before each step only": (
        "import torch\nnet = FSDP(Net())\nfor step, x in data:\n    with net.no_sync():\n        net(x).backward()\n"
        "    if step % 2:\n        net.clip_grad_norm_(1.0)\n",
        "net = fully_shard(Net())\nfor step, x in data:\n    with no_sync(net):\n        net(x).backward()\n"
        "    if step % 2:\n        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n",
    ),
    "clipping after the backward of each part": (
        "import torch\nnet = FSDP(Net())\nwhile True:\n    for part in data:\n        with net.no_sync():\n"
        "            net(part).backward()\n    net.clip_grad_norm_(1.0)\n",
        "net = fully_shard(Net())\nwhile True:\n    for part in data:\n        with no_sync(net):\n"
        "            net(part).backward()\n    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n",
    ),
    "an argument of wrap comes first": (
        f"with enable_wrap(wrapper_cls=FSDP, {ZERO2}):\n    net = Net()\n"
        "    net.head = wrap(net.head, sharding_strategy=ShardingStrategy.FULL_SHARD)\n    net = wrap(net)\n",
        "net = Net()\nnet.head = fully_shard(net.head)\nnet = fully_shard(net, reshard_after_forward=False)\n",
    ),
}
OWN = """\
class Trainer:
    def __init__(self, no_sync):
        self.no_sync = no_sync
        net = Net()
        self.net = FSDP(net)
        self.clip_grad_norm_ = self.clip

    def clip(self, limit):
        self.net.clip_grad_norm_(limit)


trainer = Trainer(True)
print(trainer.no_sync)
trainer.clip_grad_norm_(1.0)
"""
STAYS = {
    "a method of a parameter": OWN + "def step(trainer):\n    trainer.clip_grad_norm_(1.0)\n",
    "a dictionary that changes": (
        "options = dict(use_orig_params=True)\noptions['cpu_offload'] = low\nnet = FSDP(Net(), **options)\n"
    ),
    "a dictionary that is handed on": (
        "options = dict(use_orig_params=True)\nupdate(options)\nnet = FSDP(Net(), **options)\n"
    ),
    "a dictionary that is an argument": (
        "options = dict(use_orig_params=True)\nupdate(given=options)\nnet = FSDP(Net(), **options)\n"
    ),
    "a dictionary of two values": (
        "options = dict(use_orig_params=True)\nif low:\n    options = dict(cpu_offload=CPUOffload(True))\n"
        "net = FSDP(Net(), **options)\n"
    ),
    "a dictionary of two names": "options = more = dict(use_orig_params=True)\nnet = FSDP(Net(), **options)\n",
    "a dictionary that a function makes": "options = read(use_orig_params=True)\nnet = FSDP(Net(), **options)\n",
    "a dictionary that shares its line": "options = dict(use_orig_params=True); x = 1\nnet = FSDP(Net(), **options)\n",
    "a dictionary with another in it": "options = dict(more, use_orig_params=True)\nnet = FSDP(Net(), **options)\n",
    "a dictionary with more in it": "options = dict(use_orig_params=True, **more)\nnet = FSDP(Net(), **options)\n",
    "a dictionary of a name that is another there": (
        "low = True\noptions = dict(cpu_offload=CPUOffload(low))\n\n\ndef build(low):\n"
        "    return FSDP(Net(), **options)\n\n\nbuild(1)\n"
    ),
    **{
        f"a dictionary of two imports, {one} and {other}": (
            f"if first:\n    {one}\nelse:\n    {other}\noptions = dict(cpu_offload=CPUOffload(low))\n"
            "net = FSDP(Net(), **options)\n"
        )
        for one, other in (
            ("from one import low", "from other import low"),
            ("from one import a as low", "from one import b as low"),
            ("import one as low", "import other as low"),
        )
    },
    "a dictionary of a name that changes": (
        "low = True\noptions = dict(cpu_offload=CPUOffload(low))\nlow = False\nnet = FSDP(Net(), **options)\n"
    ),
    "another name that may be another class": "A = FSDP\nif x:\n    A = Other\nnet = A(Net())\n",
    "another name that is handed on": "A = FSDP\nnet = A(Net())\nclasses = [A]\n",
    "a name of the comprehension": f"models = [FSDP(Net(), {BY_BLOCK}, cpu_offload=CPUOffload(low)) for low in lows]\n",
    "a name of the comprehension, and of the file": (
        f"low = True\nmodels = [FSDP(Net(), {BY_BLOCK}, cpu_offload=CPUOffload(low)) for low in lows]\n"
    ),
    "a name of the lambda": (
        f"low = True\nmake = lambda low: FSDP(Net(), {BY_BLOCK}, cpu_offload=CPUOffload(low))\nmake(1)\n"
    ),
    "a function on one line": f"def build(): return 1, FSDP(Net(), {BY_BLOCK})\n\n\nbuild()\n",
    **{
        f"a decorator of {head}": f"@log(FSDP(Net(), {BY_BLOCK}))\n{head}:\n    pass\n"
        for head in ("def show()", "async def show()", "class Shown")
    },
    "a comment in the call": f"models = [FSDP(Net(),  # this one\n    {BY_BLOCK})]\n",
    "a class body": f"class Holder:\n    models = [FSDP(Net(), {BY_BLOCK})]\n",
    "a partial that is handed on": PARTIAL + "models = map(shard, [Net()])\nnet = shard(Net())\n",
    "a partial with two values": PARTIAL + f"if x:\n    {PARTIAL}net = shard(Net())\n",
    "a partial that is called with more": PARTIAL + "net = shard(Net(), device_id=None)\n",
    "a partial of a name that changes": (
        f"low = True\nshard = functools.partial(FSDP, {BY_BLOCK}, cpu_offload=CPUOffload(low))\nlow = False\n"
        "net = shard(Net())\n"
    ),
    "a partial that binds the model": "shard = functools.partial(FSDP, Net())\nnet = shard(None)\n",
    "a partial of a subclass": (
        "class Own(FSDP):\n    pass\n\n\nshard = functools.partial(Own)\nnet = shard(Net())\n"
    ),
    "wrap by a subclass": (
        "class Own(FSDP):\n    pass\n\n\nwith enable_wrap(wrapper_cls=Own):\n    net = wrap(Net())\n"
    ),
    "a name that changes under enable_wrap": (
        "low = True\nwith enable_wrap(wrapper_cls=FSDP, cpu_offload=CPUOffload(low)):\n    low = False\n    net = wrap(Net())\n"
    ),
    "a type that changes under enable_wrap": (
        "low = read()\n"
        "with enable_wrap(wrapper_cls=FSDP, mixed_precision=MixedPrecision(low)):\n    low = None\n    net = wrap(Net())\n"
    ),
    "a name of the comprehension under enable_wrap": (
        "low = read()\nwith enable_wrap(wrapper_cls=FSDP, cpu_offload=CPUOffload(low)):\n"
        "    nets = [wrap(Net(low)) for low in (True, False)]\n"
    ),
    "wrap in a function": "def build():\n    return wrap(Net())\n\n\n"
    + WITH
    + "    net = build()\n",
    "wrap handed on": WITH + "    models = [*map(wrap, [Net()])]\n    net = wrap(Net())\n",
    "wrap without enable_wrap": "net = wrap(Net())\n" + WITH + "    other = wrap(Net())\n",
    "wrap in a generator": WITH + "    nets = (wrap(net) for net in [Net()])\nnets = [*nets]\n",
    "a silenced call of wrap": (
        WITH
        + "    net = Net()\n    net.head = wrap(net.head)  # fsdp-migrate: ignore\n    net = wrap(net)\n"
    ),
    "a silenced partial": (
        f"shard = functools.partial(FSDP, {ZERO2})  # fsdp-migrate: ignore\nnet = shard(Net())\n"
    ),
    "enable_wrap beside another context": (
        "with lock, enable_wrap(wrapper_cls=FSDP):\n    net = wrap(Net())\n"
    ),
    "enable_wrap with a policy": (
        f"with enable_wrap(wrapper_cls=FSDP, {BY_BLOCK}):\n    net = wrap(Net())\n"
    ),
}


def behind_imports(text: str) -> str:
    """A program without the lines at its top."""
    lines = text.splitlines(keepends=True)
    first = [n for n, line in enumerate(lines) if line.startswith(("import ", "from "))][-1] + 1
    return "".join(lines[first:]).lstrip("\n")


@pytest.mark.parametrize("name", BECOMES)
def test_it_becomes_plain(name: str) -> None:
    before, expected = BECOMES[name]
    _, after = analyse(HEAD + before)
    assert behind_imports(after) == expected
    assert analyse(after)[1] == after  # a second run changes nothing


def test_attributes_of_a_class_of_the_program_are_its_own() -> None:
    """Of an object that the class makes, and of `self`; `self.net` is a model."""
    _, after = analyse(HEAD + OWN)
    expected = OWN.replace("self.net = FSDP(net)", "self.net = fully_shard(net)")
    clip = "clip_grad_norm_(self.net.parameters(), limit)"
    assert behind_imports(after) == expected.replace("self.net.clip_grad_norm_(limit)", clip)


@pytest.mark.parametrize("name", STAYS)
def test_it_stays_on_the_bridge(name: str) -> None:
    report, after = analyse(HEAD + STAYS[name])
    assert behind_imports(after) == STAYS[name]
    assert {f.action.value for f in report.findings if f.code == "FSDP002"} == {"runtime"}


def test_a_comment_that_has_no_place_is_the_reason() -> None:
    report, _ = analyse(HEAD + STAYS["a comment in the call"])
    assert any("comments in the call would be lost" in each.message for each in report.findings)
