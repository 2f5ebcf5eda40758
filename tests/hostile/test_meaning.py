"""Programs that are run before and after: either they do the same, or the tool leaves them alone and says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from .known import params
from .programs import FSDP, POLICY, Outcome, run, run_project
from .stage import record

OPTIONS = f"{POLICY}from torch.distributed.fsdp import CPUOffload, MixedPrecision, ShardingStrategy\nimport torch\n"
SAVE = "from torch.distributed.fsdp import FullStateDictConfig, StateDictType\n"
MESH = "from torch.distributed.device_mesh import init_device_mesh\n"
BF16 = "MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32"

SOUND = {
    "classes that nest": f"{POLICY}model = Net()\nmodel = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({{Block}}))\n",
    "two classes that nest": (
        f"{POLICY}from m import Norm\nmodel = Net()\nmodel = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({{Block, Norm}}))\n"
    ),
    "root of the policy's class": f"{POLICY}model = Block(Block(), Block())\nmodel = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({{Block}}))\n",
    "model built in the call, once": (
        f"{POLICY}def build():\n    print('built')\n    return Net()\nmodel = FSDP(build(), auto_wrap_policy=ModuleWrapPolicy({{Block}}))\n"
    ),
    "model built in the call and returned": (
        f"{POLICY}def f():\n    return FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({{Block}}))\nmodel = f()\nmodel.clip_grad_norm_(1.0)\n"
    ),
    "every option": (
        f"{OPTIONS}model = Net()\nmodel = FSDP(model, None, ShardingStrategy.SHARD_GRAD_OP, CPUOffload(True), "
        f"ModuleWrapPolicy({{Block}}), mixed_precision={BF16}))\n"
    ),
    "inputs cast everywhere": (
        f"{OPTIONS}model = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({{Block}}), mixed_precision={BF16}, cast_forward_inputs=True))\n"
    ),
    "inputs cast nowhere": (
        f"{OPTIONS}model = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({{Block}}), mixed_precision={BF16}, cast_root_forward_inputs=False))\n"
    ),
    "one unit, inputs cast nowhere": f"{OPTIONS}mp = {BF16}, cast_root_forward_inputs=False)\nmodel = FSDP(Net(), mixed_precision=mp)\n",
    "a policy used by two constructors": (
        f"{POLICY}policy = ModuleWrapPolicy({{Block}})\na, b = Net(), Net()\na.rename('a')\n"
        "a = FSDP(a, auto_wrap_policy=policy)\nb = FSDP(b, auto_wrap_policy=policy)\n"
    ),
    "a MixedPrecision used by two constructors": (
        f"{OPTIONS}mp = {BF16})\na, b = Net(), Net()\na.rename('a')\na = FSDP(a, mixed_precision=mp)\nb = FSDP(b, mixed_precision=mp)\n"
    ),
    "a MixedPrecision read elsewhere": f"{OPTIONS}mp = {BF16})\nmodel = FSDP(Net(), mixed_precision=mp)\nprint(mp.buffer_dtype)\n",
    "a MixedPrecision that changes": (
        f"{OPTIONS}mp = {BF16})\nmp.reduce_dtype = torch.bfloat16\nmodel = FSDP(Net(), mixed_precision=mp)\n"
    ),
    "nested constructors with mixed precision": (
        f"{OPTIONS}model = Net()\nmodel.layers[0] = FSDP(model.layers[0], mixed_precision={BF16}))\nmodel.head.cuda()\n"
    ),
    "strategy in branches": (
        f"{OPTIONS}s = ShardingStrategy.FULL_SHARD\nif len('x'):\n    s = ShardingStrategy.SHARD_GRAD_OP\n"
        "model = FSDP(Net(), sharding_strategy=s)\n"
    ),
    "no shard": f"{OPTIONS}model = FSDP(Net(), sharding_strategy=ShardingStrategy.NO_SHARD)\n",
    "mesh made in the call": (
        f"{POLICY}{MESH}model = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({{Block}}), device_mesh=init_device_mesh('cuda', (8,)))\n"
    ),
    "called at once": f"{POLICY}y = FSDP(Net())(3)\n",
    "model in a branch": f"{POLICY}model = Net()\nif len('x'):\n    model = FSDP(model)\nmodel.state_dict()\n",
    "one-line suite": f"{POLICY}model = Net()\nif len('x'): model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({{Block}}))\nmodel.state_dict()\n",
    "state dicts before and after": f"{POLICY}model = Net()\nmodel.load_state_dict(0)\nmodel = FSDP(model)\nmodel.load_state_dict(1)\nmodel.state_dict()\n",
    "a model in place of another": f"{POLICY}model = FSDP(Net())\nmodel.state_dict()\nmodel = Net()\nmodel.state_dict()\n",
    "saved by a function above": f"{POLICY}def save(m):\n    return m.state_dict()\nmodel = FSDP(Net())\nsave(model)\nsave(Net())\n",
    "saved by a closure": f"{POLICY}def save():\n    return model.state_dict()\nmodel = FSDP(Net())\nsave()\n",
    "global": f"{POLICY}model = None\ndef setup():\n    global model\n    model = FSDP(Net())\nsetup()\nmodel.state_dict()\n",
    "attributes of self across methods": (
        f"{POLICY}class T:\n    def __init__(self):\n        self.setup()\n        self.save()\n"
        "    def setup(self):\n        self.model = FSDP(Net())\n    def save(self):\n        self.model.state_dict()\nT()\n"
    ),
    "methods of a base class": (
        f"{POLICY}class B:\n    def save(self):\n        self.model.state_dict()\n"
        "class T(B):\n    def __init__(self):\n        self.model = FSDP(Net())\nT().save()\n"
    ),
    "tuple from a function": f"{POLICY}def f():\n    m = FSDP(Net())\n    return m, 1\nmodel, n = f()\nmodel.state_dict()\nf()[0].clip_grad_norm_(2.0)\n",
    "chain of methods": f"{POLICY}model = FSDP(Net()).cuda().train()\nmodel.state_dict()\n",
    "context for saving": (
        f"{POLICY}{SAVE}model = FSDP(Net())\nwith FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n    s = model.state_dict()\n"
    ),
    "no_sync in a conditional": (
        f"{POLICY}from contextlib import nullcontext\nmodel = FSDP(Net())\nfor i in range(3):\n"
        "    with nullcontext() if i == 2 else model.no_sync():\n        model(1)\n"
    ),
    "a local called no_sync, in a loop": (
        f"{POLICY}from contextlib import nullcontext\nmodel = FSDP(Net())\nfor i in range(3):\n"
        "    no_sync = nullcontext if i == 2 else model.no_sync\n    with no_sync():\n        model(1)\n"
    ),
    "torch's clipping beside the method": (
        f"{POLICY}from torch.nn.utils import clip_grad_norm_\nmodel = FSDP(Net())\nn = model.clip_grad_norm_(1.0)\n"
        "clip_grad_norm_(model.parameters(), 2.0)\n"
    ),
    "a function called shard_model": (
        f"{POLICY}from torch.distributed.fsdp import ShardingStrategy\ndef shard_model(m, s):\n    return FSDP(m, sharding_strategy=s)\n"
        "shard_model(Net(), ShardingStrategy.NO_SHARD)\n"
    ),
    "a parameter called fully_shard": (
        f"{POLICY}def f(m, fully_shard=True):\n    if fully_shard:\n        m = FSDP(m)\n    return m\nf(Net()).state_dict()\n"
    ),
    "optimizer after": f"{POLICY}import torch\nmodel = FSDP(Net())\nopt = torch.optim.SGD(model.parameters(), 0.1)\n",
    "optimizer before": f"{POLICY}import torch\nmodel = Net()\nopt = torch.optim.SGD(model.parameters(), 0.1)\nmodel = FSDP(model)\n",
    "isinstance before and after": (
        f"{POLICY}model = Net()\nprint(isinstance(model, FSDP))\nif not isinstance(model, FSDP):\n    model = FSDP(model)\nassert isinstance(model, FSDP)\n"
    ),
    "import torch.distributed.fsdp": (
        "import torch.distributed.fsdp\nfrom m import Net\nmodel = torch.distributed.fsdp.FullyShardedDataParallel(Net())\nmodel.state_dict()\n"
    ),
    "from torch.distributed import fsdp": (
        "from torch.distributed import fsdp\nfrom m import Net\nmodel = fsdp.FullyShardedDataParallel(Net(), cpu_offload=fsdp.CPUOffload(True))\n"
    ),
    "lazy import": f"from m import Net\ndef f():\n    {FSDP}    return FSDP(Net())\nf().state_dict()\n",
    "guarded import": f"from m import Net\ntry:\n    {FSDP}except ImportError:\n    FSDP = None\nmodel = FSDP(Net())\n",
    "star import": "from torch.distributed.fsdp import *\nfrom m import Net\nmodel = FullyShardedDataParallel(Net())\n",
}


def outcome_is_sound(before: object, after: object, outcomes: list[Outcome]) -> bool:
    """Whether the program does the same, or the findings say of what is left that it is left."""
    said = any(outcome.errors or outcome.by_hand - {"FSDP001"} for outcome in outcomes)
    return before == after or said


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in SOUND.items()])
def test_does_the_same(text: str) -> None:
    outcome = run(text)
    before = record(text)
    assert before["error"] is None, "the program itself must run"
    if outcome.changed:
        assert record(outcome.after) == before
    else:
        assert outcome.by_hand - {"FSDP001"}


TRAPS = {
    # an optimizer that trains nothing
    "optimizer before, through a list": (
        f"{POLICY}import torch\nmodel = Net()\nparams = [p for p in model.parameters() if p.requires_grad]\n"
        "opt = torch.optim.AdamW(params)\nmodel = FSDP(model, use_orig_params=True)\n"
    ),
    "optimizer before, in a helper": (
        f"{POLICY}import torch\ndef build(m):\n    return torch.optim.SGD(m.parameters(), 0.1)\nmodel = Net()\nopt = build(model)\n"
        "model = FSDP(model, use_orig_params=True)\n"
    ),
    "optimizer before, the model wrapped in a helper": (
        f"{POLICY}import torch\ndef wrap(m):\n    return FSDP(m, use_orig_params=True)\nmodel = Net()\n"
        "opt = torch.optim.SGD(model.parameters(), 0.1)\nmodel = wrap(model)\n"
    ),
    "optimizer before, in another method": (
        f"{POLICY}import torch\nclass T:\n    def __init__(self):\n        self.model = Net()\n"
        "        self.opt = torch.optim.SGD(self.model.parameters(), 0.1)\n        self.setup()\n"
        "    def setup(self):\n        self.model = FSDP(self.model, use_orig_params=True)\nT()\n"
    ),
    "optimizer before, the model by another name": (
        f"{POLICY}import torch\nnet = Net()\nmodel = net\nopt = torch.optim.SGD(net.parameters(), 0.1)\nmodel = FSDP(model, use_orig_params=True)\n"
    ),
    "optimizer before, of a part of the model": (
        f"{POLICY}import torch\nmodel = Net()\nopt = torch.optim.SGD(model.head.parameters(), 0.1)\nmodel = FSDP(model, use_orig_params=True)\n"
    ),
    "optimizer before, on the same line": (
        f"{POLICY}import torch\nmodel = Net()\nopt = torch.optim.SGD(model.parameters(), 0.1); model = FSDP(model, use_orig_params=True)\n"
    ),
    "optimizer of a name that says nothing": (
        f"{POLICY}from torch.optim import SGD as Lion\nmodel = Net()\nbuild = Lion\nopt = build(model.parameters())\nmodel = FSDP(model, use_orig_params=True)\n"
    ),
    # a state dict of shards
    "state dict from a list": f"{POLICY}models = [FSDP(m) for m in [Net()]]\nfor m in models:\n    m.state_dict()\n",
    "state dict from a tuple in a loop": f"{POLICY}for m in (FSDP(Net()),):\n    m.state_dict()\n",
    "state dict from a list by index": f"{POLICY}models = []\nmodels.append(FSDP(Net()))\nmodels[0].state_dict()\n",
    "state dict from a dictionary": f"{POLICY}models = {{'g': FSDP(Net())}}\nmodels['g'].state_dict()\n",
    "state dict from a list in self": (
        f"{POLICY}class T:\n    def __init__(self):\n        self.models = [FSDP(Net())]\n        [m.state_dict() for m in self.models]\nT()\n"
    ),
    "state dict from a generator": f"{POLICY}def build():\n    yield FSDP(Net())\nfor m in build():\n    m.state_dict()\n",
    "state dict from a lambda": f"{POLICY}wrap = lambda m: FSDP(m)\nmodel = wrap(Net())\nmodel.state_dict()\n",
    "state dict from a partial": (
        f"{POLICY}from functools import partial\nwrap = partial(FSDP, use_orig_params=True)\nmodel = wrap(Net())\nmodel.state_dict()\n"
    ),
    "state dict through a property": (
        f"{POLICY}class T:\n    def __init__(self):\n        self._m = FSDP(Net())\n    @property\n    def model(self):\n"
        "        return self._m\n    def save(self):\n        self.model.state_dict()\nT().save()\n"
    ),
    "state dict through setattr": (
        f"{POLICY}class T:\n    def __init__(self):\n        setattr(self, 'model', FSDP(Net()))\n        self.model.state_dict()\nT()\n"
    ),
    "state dict through getattr": f"{POLICY}model = FSDP(Net())\ngetattr(model, 'inner', model).state_dict()\n",
    "state dict of a field of a dataclass": (
        f"{POLICY}from dataclasses import dataclass\n@dataclass\nclass C:\n    model: object\nc = C(model=FSDP(Net()))\nc.model.state_dict()\n"
    ),
    "state dict of an attribute of a parameter": (
        f"{POLICY}class A: pass\ndef setup(a):\n    a.model = FSDP(Net())\ndef save(a):\n    a.model.state_dict()\na = A()\nsetup(a)\nsave(a)\n"
    ),
    "state dict of an attribute of an attribute": (
        f"{POLICY}class Core:\n    def __init__(self):\n        self.model = FSDP(Net())\nclass App:\n    def __init__(self):\n"
        "        self.core = Core()\n    def save(self):\n        self.core.model.state_dict()\nApp().save()\n"
    ),
    "state dict of an attribute of an argument": (
        f"{POLICY}class Core:\n    def __init__(self):\n        self.model = FSDP(Net())\ndef save(t):\n    t.model.state_dict()\nsave(Core())\n"
    ),
    "state dict of an attribute of a new object": (
        f"{POLICY}class T:\n    def __init__(self):\n        self.model = FSDP(Net())\nmodel = T().model\nmodel.state_dict()\n"
    ),
    "state dict of a keyword argument": f"{POLICY}def save(**kw):\n    kw['model'].state_dict()\nsave(model=FSDP(Net()))\n",
    "state dict of a starred argument": f"{POLICY}def save(*models):\n    models[0].state_dict()\nsave(FSDP(Net()))\n",
    "state dict of a default argument": f"{POLICY}def save(model=FSDP(Net())):\n    model.state_dict()\nsave()\n",
    "state dict of a nonlocal": (
        f"{POLICY}def outer():\n    model = None\n    def setup():\n        nonlocal model\n        model = FSDP(Net())\n"
        "    setup()\n    model.state_dict()\nouter()\n"
    ),
    "state dict behind a walrus": f"{POLICY}if (m := FSDP(Net())) is not None:\n    m.state_dict()\n",
    "state dict of the model around a unit": (
        f"{POLICY}model = Net()\nmodel.children_[0] = FSDP(model.children_[0])\nmodel.state_dict()\n"
    ),
    "state dict of an attribute's owner": f"{POLICY}model = Net()\nmodel.encoder = FSDP(model.layers[0])\nmodel.state_dict()\n",
    "state dict not called at once": f"{POLICY}model = FSDP(Net())\nsave = model.state_dict\nsave()\n",
    "state dict of an Optional parameter": (
        f"{POLICY}from typing import Optional\ndef save(model: Optional[FSDP]):\n    model.state_dict()\n"
        "for m in [FSDP(Net())]:\n    save(m)\n"
    ),
    "state dict of a mixin": (
        f"{POLICY}class Mixin:\n    def save(self):\n        self.model.state_dict()\nclass Core:\n    def __init__(self):\n"
        "        self.model = FSDP(Net())\nclass T(Core, Mixin): pass\nT().save()\n"
    ),
    # names that mean something else
    "FSDP bound to a partial of itself": (
        f"{OPTIONS}from functools import partial\nFSDP = partial(FSDP, sharding_strategy=ShardingStrategy.NO_SHARD)\nmodel = FSDP(Net())\n"
    ),
    "FSDP bound by a loop": f"{POLICY}for FSDP in (lambda m: m,):\n    model = FSDP(Net())\n",
    "FSDP bound by a comprehension": f"{POLICY}models = [FSDP(Net()) for FSDP in (lambda m: m,)]\n",
    "FSDP bound to a call": f"{POLICY}def plain(_):\n    return lambda m: m\nFSDP = plain(FSDP)\nmodel = FSDP(Net())\n",
    "the class beside a rewritten test": (
        f"{POLICY}def make(cls, m):\n    return cls(m)\nmodel = Net()\nmodel = model if isinstance(model, FSDP) else make(FSDP, model)\nassert isinstance(model, FSDP)\n"
    ),
    "the class beside a constructor": f"{POLICY}def reg(c): return c\nc = reg(FSDP); a = FSDP(Net())\nassert isinstance(a, c)\n",
    "the class's name as text": (
        f"{POLICY}model = FSDP(Net())\nif type(model).__name__ == 'FullyShardedDataParallel':\n    model.clip_grad_norm_(1.0)\n"
    ),
    "import torch.distributed.fsdp as fsdp": (
        "import torch.distributed.fsdp as fsdp\nfrom m import Net\nmodel = fsdp.FullyShardedDataParallel(Net())\n"
    ),
    "grouped import of the package": (
        "import os, torch.distributed.fsdp as fsdp, sys\nfrom m import Net\nmodel = fsdp.FullyShardedDataParallel(Net())\n"
    ),
    "del FSDP": f"{POLICY}model = FSDP(Net())\ndel FSDP\n",
    "__all__ with a type": f"{FSDP}__all__: list[str] = ['FSDP']\nexec('FSDP')\n",
    "__all__ that grows": f"{FSDP}__all__ = []\n__all__ += ['FSDP']\nexec('FSDP')\n",
    "__all__ in parts": f"{FSDP}__all__ = ['FSDP'] + ['x']\nexec('FSDP')\n",
    "the class as a class attribute by import": (
        f"from m import Net\nclass T:\n    {FSDP}    def go(self):\n        return self.FSDP(Net())\nT().go()\n"
    ),
    "used above the import that stays": (
        "from torch.distributed.fsdp import MixedPrecision\nimport torch\nfrom m import Net\nmp = MixedPrecision(param_dtype=torch.bfloat16)\n"
        f"{FSDP}model = FSDP(Net(), mixed_precision=mp)\n"
    ),
    # expressions
    "the class of a layer": f"{POLICY}model = Net()\nmodel = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({{type(model.layers[-1])}}))\n",
    "a class made by a call": (
        f"{POLICY}seen = []\ndef layer():\n    seen.append(1)\n    return Block\nmodel = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({{layer()}}))\nassert len(seen) == 1\n"
    ),
    "a class read from what is built": (
        f"{POLICY}class Plan:\n    block = Block\n    def build(self):\n        return Net()\nmodel = Plan()\n"
        "model = FSDP(model.build(), auto_wrap_policy=ModuleWrapPolicy({model.block}))\n"
    ),
    "a policy that grows": (
        f"{POLICY}from m import Norm\npolicy = ModuleWrapPolicy({{Block}})\npolicy.add(Norm)\nmodel = FSDP(Net(), auto_wrap_policy=policy)\n"
    ),
    "a policy named in the call": f"{POLICY}model = FSDP(Net(), auto_wrap_policy=(p := ModuleWrapPolicy({{Block}})))\nprint(p)\n",
    "a strategy named in the call": f"{OPTIONS}model = FSDP(Net(), sharding_strategy=(s := ShardingStrategy.SHARD_GRAD_OP))\nprint(s)\n",
    "a MixedPrecision named in the call": f"{OPTIONS}model = FSDP(Net(), mixed_precision=(p := {BF16})))\nprint(p)\n",
    "a None named in the call": f"{POLICY}model = FSDP(Net(), process_group=(g := None), cpu_offload=(c := None))\nprint(g, c)\n",
    "behind hasattr": f"{POLICY}model = Net()\nmodel = FSDP(model)\nif hasattr(model, 'no_sync'):\n    model.clip_grad_norm_(1.0)\n",
    "a list called list": f"{POLICY}def f(list):\n    m = FSDP(list, auto_wrap_policy=ModuleWrapPolicy({{Block}}))\nf(Net())\n",
    "root of a subclass of the policy's class": (
        f"{POLICY}class Big(Block):\n    pass\nmodel = Big(Block())\nmodel = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({{Block}}))\n"
    ),
    "root of a subclass of an external class": (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nfrom torch.distributed.fsdp.wrap import ModuleWrapPolicy\n"
        "from torch import nn\nclass Net(nn.Linear):\n    pass\nmodel = Net()\nmodel = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}))\n"
    ),
    "a device set later": (
        f"{POLICY}import torch\nfor rank in (3,):\n    model = FSDP(Net(), device_id=rank)\ntorch.cuda.set_device(0)\n"
    ),
}


@pytest.mark.parametrize("text", params(TRAPS))
def test_trap_does_the_same_or_is_named(text: str) -> None:
    outcome = run(text)
    before = record(text)
    assert before["error"] is None, before["error"]
    assert outcome_is_sound(before, record(outcome.after), [outcome])


PROJECTS: dict[str, dict[str, str]] = {
    "wrapped by a helper in another file": {
        "h": f"{FSDP}def wrap(m):\n    return FSDP(m)\n",
        "main": "from h import wrap\nfrom m import Net\nmodel = wrap(Net())\nmodel.state_dict()\nmodel.clip_grad_norm_(1.0)\n",
    },
    "policy in another file": {
        "pol": "from torch.distributed.fsdp.wrap import ModuleWrapPolicy\nfrom m import Block\npolicy = ModuleWrapPolicy({Block})\n",
        "main": f"{FSDP}from m import Net\nfrom pol import policy\nmodel = FSDP(Net(), auto_wrap_policy=policy)\n",
    },
    "class from a file that exports it": {
        "dist": f"{FSDP}__all__ = ['FSDP']\n",
        "main": "from dist import *\nfrom m import Net\nmodel = FSDP(Net())\nmodel.state_dict()\n",
    },
    "class through a module": {
        "dist": FSDP,
        "main": "import dist\nfrom m import Net\nmodel = dist.FSDP(Net())\nmodel.state_dict()\n",
    },
    "two files that import each other": {
        "a": f"{FSDP}def wrapped(m):\n    return isinstance(m, FSDP)\nfrom b import wrap\n",
        "b": f"import a\n{FSDP}def wrap(m):\n    if not a.wrapped(m):\n        m = FSDP(m)\n    return m\n",
        "main": "import a\nfrom m import Net\nmodel = a.wrap(Net())\nassert a.wrapped(model)\nmodel.state_dict()\n",
    },
    "a base class in another file": {
        "base": "class Base:\n    def save(self):\n        return self.model.state_dict()\n",
        "main": f"{FSDP}from m import Net\nfrom base import Base\nclass T(Base):\n    def __init__(self):\n        self.model = FSDP(Net())\nT().save()\n",
    },
    "a MixedPrecision that others import": {
        "cfg": f"{FSDP}import torch\nfrom torch.distributed.fsdp import MixedPrecision\nbf16 = {BF16})\ndef wrap(m):\n    return FSDP(m, mixed_precision=bf16)\n",
        "main": "from cfg import bf16, wrap\nfrom m import Net\nwrap(Net())\nprint(bf16.buffer_dtype)\n",
    },
    "a MixedPrecision that others import by a star": {
        "cfg": f"{FSDP}import torch\nfrom torch.distributed.fsdp import MixedPrecision\nbf16 = {BF16})\ndef wrap(m):\n    return FSDP(m, mixed_precision=bf16)\n",
        "main": "from cfg import *\nfrom m import Net\nwrap(Net())\nprint(bf16.buffer_dtype)\n",
    },
}
PROJECT_TRAPS: dict[str, dict[str, str]] = {
    "a strategy set from outside": {
        "config": "from torch.distributed.fsdp import ShardingStrategy\nSTRATEGY = ShardingStrategy.FULL_SHARD\n",
        "main": (
            f"{OPTIONS}import config\nconfig.STRATEGY = ShardingStrategy.SHARD_GRAD_OP\nmodel = FSDP(Net(), sharding_strategy=config.STRATEGY)\n"
        ),
    },
    "a policy read through its module": {
        "cfg": f"{POLICY}pol = ModuleWrapPolicy({{Block}})\ndef wrap(m):\n    return FSDP(m, auto_wrap_policy=pol)\n",
        "main": "import cfg\nfrom m import Net\ncfg.wrap(Net())\nprint(cfg.pol)\n",
    },
    "a MixedPrecision read through its module": {
        "cfg": f"{FSDP}import torch\nfrom torch.distributed.fsdp import MixedPrecision\nbf16 = {BF16})\ndef wrap(m):\n    return FSDP(m, mixed_precision=bf16)\n",
        "main": "import cfg\nfrom m import Net\ncfg.wrap(Net())\nprint(cfg.bf16.buffer_dtype)\n",
    },
    "the class replaced from outside": {
        "dist": FSDP,
        "main": "import dist\nfrom m import Net\ndist.FSDP = lambda m: m\nmodel = dist.FSDP(Net())\n",
    },
    "an optimizer before, wrapped in another file": {
        "h": f"{FSDP}def wrap(m):\n    return FSDP(m, use_orig_params=True)\n",
        "main": "import torch\nfrom h import wrap\nfrom m import Net\nmodel = Net()\nopt = torch.optim.SGD(model.parameters(), 0.1)\nmodel = wrap(model)\n",
    },
}


def play(folder: Path, files: dict[str, str]) -> tuple[object, object, list[Outcome]]:
    outcomes = run_project(folder, {f"{name}.py": text for name, text in files.items()})
    after = {name: outcomes[f"{name}.py"].after for name in files}
    before = record(files)
    assert before["error"] is None, before["error"]
    return before, record(after), list(outcomes.values())


@pytest.mark.parametrize("files", [pytest.param(f, id=name) for name, f in PROJECTS.items()])
def test_project_does_the_same(files: dict[str, str], tmp_path: Path) -> None:
    before, after, outcomes = play(tmp_path, files)
    assert before == after
    assert any(outcome.changed for outcome in outcomes)


@pytest.mark.parametrize("files", params(PROJECT_TRAPS))
def test_project_trap_does_the_same_or_is_named(files: dict[str, str], tmp_path: Path) -> None:
    before, after, outcomes = play(tmp_path, files)
    assert outcome_is_sound(before, after, outcomes)
