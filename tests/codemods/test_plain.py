"""One decision for the files that can share a model: all constructors become plain, or all stay on the bridge."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from fsdp_migrate.engine import analyse
from fsdp_migrate.facts.program import Program
from fsdp_migrate.report import Report
from fsdp_migrate.settings import Options

TRAIN = """\
import torch
from model import Net
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    model = Net()
    model = FSDP(model)
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer)
"""
MODEL = """\
import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 8)

    def forward(self, x):
        return self.head(x)
"""

_UNIT = (
    "class Block(torch.nn.Module):\n    def __init__(self):\n        self.act = torch.nn.ReLU(inplace=True)\n"
    "        self.stem = torch.nn.Sequential(torch.nn.ReLU(True), torch.nn.Linear(8, 8))\n"
    "        self.layer = torch.nn.Linear(8, 8)\n\n    def forward(self, x):\n"
)

_UNITS = "def f(p):\n    model = FSDP(Net())\n    for i, layer in enumerate(model.layers):\n"

# What makes the models of a run depend on FSDP1's interface or structure, in a function of the same file.
DEPENDENT = {
    "a method of FSDP1": "def f(model):\n    return model.check_is_root()",
    "two forwards in one region of autocast": (
        "def f(x):\n    with torch.autocast('cuda'):\n        return model(x) - model(x).detach()"
    ),
    "a loop in a region of autocast": (
        "def f(xs):\n    with torch.autocast('cuda'):\n        for x in xs:\n            model(x).backward()"
    ),
    "functions in a region of autocast": (
        "def loss(m, x):\n    return m(x)\n\n\ndef f(x):\n    with torch.autocast('cuda'):\n"
        "        return loss(model, x) + loss(model, x)"
    ),
    "two forwards in a region of autocast with a name": (
        "def f(x):\n    amp = torch.autocast('cuda')\n    with amp:\n        return model(x) - model(x).detach()"
    ),
    "a region of autocast that is handed on": "def f(g):\n    amp = torch.autocast\n    return g(amp)",
    "autocast that is kept": "def f():\n    region = torch.autocast('cuda')\n    return region",
    "hooks that may see shards": (
        "def f(hook):\n    for m in model.modules():\n        m.register_forward_hook(hook)"
    ),
    "a transposed parameter": "def f(w):\n    return nn.Parameter(w.t())",
    "a parameter of no elements": "def f():\n    return nn.Parameter(torch.empty(0, 8))",
    "a layout that FSDP2 refuses": "def f():\n    return FSDP(Net().to(memory_format=torch.channels_last))",
    "a unit that changes its input": f"{_UNIT}        x += self.bias\n        return self.layer(x)",
    "a unit that adds to a list": f"{_UNIT.replace('x):', 'x, *, seen):')}        seen.append(x)\n        return self.layer(x)",
    "a unit that adds to a list that it may have made": (
        f"{_UNIT.replace('x):', 'x, seen=None):')}        if seen is None:\n            seen = []\n"
        "        seen.append(x)\n        return self.layer(x)"
    ),
    "a unit that adds to a list or another": (
        f"{_UNIT.replace('x):', 'x, seen=None):')}        seen = seen or []\n        seen.append(x)\n"
        "        return self.layer(x)"
    ),
    "a unit whose method adds to a list": (
        f"{_UNIT}        return self.run(x, [])\n\n    def run(self, x, seen):\n        seen.append(x)\n        return x"
    ),
    "a unit that fills a dict": f"{_UNIT.replace('x):', 'x, kept):')}        kept['x'] = x\n        return self.layer(x)",
    "a unit that adds to one of its options": (
        f"{_UNIT.replace('x):', 'x, **kw):')}        kw['seen'].append(x)\n        return self.layer(x)"
    ),
    "a unit's own attribute": f"{_UNITS}        layer.drop = p",
    "an attribute of what a base class calls its model": "class Base:\n    def f(self, p):\n        self.model.drop = p",
    "a unit's own attribute by its index": "def f(p):\n    model = FSDP(Net())\n    model.layers[0].drop = p",
    "a unit's own attribute by its name": f"{_UNITS}        setattr(layer, 'drop', p)",
    "a unit that calls a method which changes its input": f"{_UNIT}        return self.layer(x.mul_(2))",
    "a unit that calls what changes its input": f"{_UNIT}        return self.layer(self.act(x))",
    "a unit that begins with what changes its input": f"{_UNIT}        return self.stem(x)",
    "no_sync of a model of an unknown origin": "def f(m):\n    with m.no_sync():\n        pass",
    "clipping by an unknown object": "def f(engine):\n    engine.clip_grad_norm_(1.0)",
    "the inner module": "def f(model):\n    return model.module",
    "the inner module behind a test of the class": "def f(m):\n    return m.module if isinstance(m, (DDP, FSDP)) else m",
    "an inner module that is asked for by an exception": (
        "def f(m):\n    try:\n        return m._fsdp_wrapped_module\n    except AttributeError:\n        return m"
    ),
    "names outside of summon_full_params, which were made inside": (
        "def f(model):\n    with FSDP.summon_full_params(model):\n"
        "        return (n for n, _ in model.named_parameters())"
    ),
    "names inside of summon_full_params of another model": (
        "def f(model, other, shadow):\n    with FSDP.summon_full_params(other):\n"
        "        for n, p in model.named_parameters():\n            shadow[n].copy_(p)"
    ),
    "the first prefix of a name, which may have more": (
        "def f(model, shadow):\n    for n, p in model.named_parameters():\n"
        "        shadow[n.removeprefix('_fsdp_wrapped_module.')].copy_(p)"
    ),
    "a hook that sees what the model is given": "model = FSDP(Net())\nmodel.register_forward_pre_hook(show)",
    "a test for each of both versions": (
        "def f(m):\n    return 1 if isinstance(m, FSDP) else 2 if isinstance(m, FSDPModule) else 0"
    ),
    "a method by its name": 'def f(model):\n    return getattr(model, "no_sync")()',
    "a prefix in names": 'def f(names):\n    return [n for n in names if n.startswith("_fsdp_wrapped_module")]',
    "a name by position": (
        "def f(model):\n    for name, p in model.named_parameters():\n"
        '        if name.split(".")[0] == "head":\n            p.requires_grad = False'
    ),
    "a whole name": 'def f(model):\n    return [p for n, p in model.named_parameters() if n == "head.weight"]',
    "a part of a name over two modules": (
        'def f(model):\n    return [p for n, p in model.named_parameters() if "head.weight" in n]'
    ),
    "names as keys": "def f(model):\n    return dict(model.named_parameters())",
    "the class of a module": "def f(model):\n    return [m for m in model.modules() if type(m) is Net]",
    "the class of a module by its name": 'def f(m):\n    return m.__class__.__name__ == "Net"',
    "the class of the model": "def f():\n    model = FSDP(Net())\n    return isinstance(model, Net)",
    "the class of a unit": "def f():\n    model = FSDP(Net())\n    return [isinstance(m, Net) for m in model.layers]",
    "modules that are no wrappers": "def f(model):\n    return [m for m in model.modules() if not isinstance(m, FSDP)]",
    "a loop that passes over wrappers": (
        "def f(model):\n    for m in model.modules():\n        if isinstance(m, FSDP):\n            continue\n"
        "        m.count = 0"
    ),
    "another name of the class, which is also printed": "Sharded = FSDP\nmodel = Sharded(Net())\nprint(Sharded)",
    "the class in a table": "TABLE = {'fsdp': FSDP}",
    "a subclass": "class Own(FSDP):\n    pass",
    "a private part": "from torch.distributed.fsdp._runtime_utils import _lazy_init",
    "a forward that is called directly": "def f(model, x):\n    return model.forward(x)",
    "apply": "def f(model, g):\n    model.apply(g)",
    "a copy": "import copy\n\n\ndef f(model):\n    return copy.deepcopy(model)",
    "a model that is saved whole": "def f(path):\n    model = FSDP(Net())\n    torch.save(model, path)",
    "the model's children": "def f():\n    model = FSDP(Net())\n    return list(model.children())[0]",
    "names that are compared with those of a file": (
        "def f(model, wanted):\n    params = dict(model.named_parameters())\n    return [params[n] for n in wanted]"
    ),
    "names that are taken apart before they are cleaned": (
        "def f(model):\n    for name, p in model.named_parameters():\n        depth = name.count('.')\n"
        "        name = name.replace('_fsdp_wrapped_module.', '')"
    ),
    "a class by its name": "def f(model):\n    return [m for m in model.modules() if type(m).__name__ == 'Block']",
    "data of a parameter": "def f(p, x):\n    p.data = x",
    "a model on the meta device": 'def f():\n    with torch.device("meta"):\n        return Net()',
    "parameters of an average": (
        "def f(model, ema):\n    for p, e in zip(model.parameters(), ema.parameters()):\n        e.lerp_(p, 0.1)"
    ),
    "the inner module behind a test of another model": (
        "def f(m, other):\n    if isinstance(other, FSDP):\n        return m.module"
    ),
    "the inner module behind one test of two": (
        "def f(m, wrapped):\n    if isinstance(m, FSDP) or wrapped:\n        return m.module"
    ),
    "a model that is built without memory": (
        "def f():\n    with init_empty_weights():\n        model = Net()\n    return FSDP(model)"
    ),
    "a model that a library saves": (
        "import storage\n\n\ndef f(path):\n    model = FSDP(Net())\n    storage.open(path).save(model)"
    ),
    "another constructor that stays": "def f(options):\n    return FSDP(Net(), **options)",
}
# What may save or load a model by its own state dict, which the runtime keeps whole.
STATES = {
    "a bare state dict": "def f(model):\n    return model.state_dict()",
    "loading into a model": "def f(model, state):\n    model.load_state_dict(state)",
    "a model that is wrapped behind the test": (
        "def f(m):\n    if not isinstance(m, FSDP):\n        m = wrap(m)\n        return m.state_dict()"
    ),
    "a model among the results of a function": (
        "def make():\n    return FSDP(Net()), 0\n\n\ndef f():\n    opt, step = make()\n    return opt.state_dict()"
    ),
    "loading in a function that makes a model, which others call, too": (
        "def make():\n    model = Net()\n    model.load_state_dict(old)\n    return model\n\n\n"
        "def f():\n    model = make()\n    model = FSDP(model)\n    return model, make()"
    ),
    "a state dict of what may hold the model, behind a test of its class": (
        "def f(trainer):\n    trainer.net = FSDP(Net())\n    save(trainer)\n\n\n"
        "def save(m):\n    if not isinstance(m, FSDP):\n        return m.state_dict()"
    ),
    "a state dict of a compiled model, which is not of the class": (
        "def f():\n    model = FSDP(Net())\n    model = torch.compile(model)\n    save(model)\n\n\n"
        "def save(m):\n    if not isinstance(m, FSDP):\n        return m.state_dict()"
    ),
    "a state dict of a module around the model": (
        "class Loss(torch.nn.Module):\n    pass\n\n\ndef f():\n    net = FSDP(Net())\n    save(Loss(net))\n\n\n"
        "def save(m):\n    if not isinstance(m, FSDP):\n        return m.state_dict()"
    ),
}
# What makes an optimizer, or clears gradients, where FSDP2 would have left the root's parameters gathered.
GATHERED = {
    "an optimizer after an evaluation": (
        "def f(loader):\n    model = FSDP(Net())\n    evaluate(model, loader)\n"
        "    return torch.optim.AdamW(model.parameters())"
    ),
    "gradients that the model clears after its forward": (
        "def f(x):\n    loss = model(x)\n    model.zero_grad()\n    loss.backward()"
    ),
    "an optimizer after the model has run": (
        "def f(x):\n    model = build()\n    print(model(x))\n    return torch.optim.AdamW(model.parameters())\n\n\n"
        "def build():\n    return FSDP(Net())"
    ),
    "an optimizer after a function that runs the model": (
        "def f(x):\n    model = FSDP(Net())\n    flops(x, model=model)\n"
        "    return make(model)\n\n\n"
        "def make(net):\n    return torch.optim.AdamW(net.parameters())\n\n\n"
        "def flops(x, model):\n    with counter:\n        model(x)"
    ),
    "a function that makes an optimizer, called after an evaluation": (
        "def make_optimizer(model):\n    return torch.optim.AdamW(model.parameters())\n\n\n"
        "def f(model, loader):\n    validate(model, loader)\n    return make_optimizer(model)"
    ),
}
# What looks like it and is not.
INDEPENDENT = {
    "attributes that modules have inside and outside": (
        "def f(p):\n    model = FSDP(Net())\n    model.config.use_cache = False\n"
        "    for m in model.modules():\n        m.drop = p"
    ),
    "tests of modules in a loop": (
        "def f(model):\n    if not any(isinstance(m, FSDP) for m in model.modules()):\n        return 0\n"
        "    for m in model.modules():\n        if isinstance(m, FSDP) and not m.training:\n            print(m)\n"
        "    return [m for m in model.modules() if isinstance(m, torch.nn.Dropout)]"
    ),
    "a unit in what is around it": (
        "class Trainer:\n    def put(self):\n        model = FSDP(Net())\n        self.model.student = model"
    ),
    "what other methods of a unit change": (
        f"{_UNIT}        return self.layer(x)\n\n    def add(self, x):\n        x += 1\n\n"
        "    def load_old_state_dict(self, state):\n        state.pop('x')"
    ),
    "a list that a unit makes anew": (
        f"{_UNIT.replace('x):', 'x, seen):')}        seen = [x]\n        seen.append(x)\n        return self.layer(x)"
    ),
    "a list of a unit's own": (
        f"{_UNIT.replace('x):', 'x, cache, **kw):')}        seen = []\n        seen.append(self.layer(x))\n"
        "        cache.update(x, x, 0)\n        kw['x'] = x\n        return seen[0]"
    ),
    "a unit that changes what it computes": (
        f"{_UNIT}        x = self.act(self.layer(x))\n        x += 1\n        return self.act(x)"
    ),
    "checkpointing afterwards": "def f(model):\n    apply_activation_checkpointing(model)",
    "a state dict of an optimizer": "def f(optimizer):\n    return optimizer.state_dict()",
    "another name of the class": (
        "Sharded = FSDP\n\n\ndef f():\n    model = Net()\n    return Sharded(model)"
    ),
    "torch's function to load": (
        "import torch.distributed.checkpoint as cp\n\n\ndef f(s, r):\n    cp.load_state_dict(s, r)"
    ),
    "torch's clipping": "def f(model):\n    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
    "asking for the inner module": 'def f(m):\n    return m.module if hasattr(m, "module") else m',
    "a word in a name": 'def f(model):\n    return [p for n, p in model.named_parameters() if "bias" in n]',
    "a prefix that is taken off": 'def f(name):\n    return name.replace("_fsdp_wrapped_module.", "")',
    "names inside of summon_full_params": (
        "def f(model, shadow):\n    with FSDP.summon_full_params(model):\n"
        "        for n, p in model.named_parameters():\n            shadow[n].copy_(p)"
    ),
    "names as keys, without the prefix": (
        "def f(model, shadow):\n    for n, p in model.named_parameters():\n"
        "        shadow[n.replace('_fsdp_wrapped_module.', '')].copy_(p)"
    ),
    "a class that no module has": "def f(x):\n    return type(x) is dict",
    "a class in a message": 'def f(m):\n    raise ValueError(f"{type(m).__name__} is not known")',
    "an average of parameters": (
        "def f(ema, model):\n    a = dict(ema.named_parameters())\n    b = dict(model.named_parameters())\n"
        "    assert set(a.keys()) == set(b.keys())\n    for n, p in b.items():\n        a[n].mul_(0.9).add_(p, alpha=0.1)"
    ),
    "names without the wrapper's parts": (
        "def f(model, dims):\n    for name, p in model.named_parameters():\n"
        "        name = '.'.join(x for x in name.split('.') if not x.startswith('_'))\n        print(dims[name])"
    ),
    "a state dict of a type": (
        "from torch.distributed.fsdp import StateDictType\n\n\ndef f():\n    model = FSDP(Net())\n"
        "    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n        state = model.state_dict()"
    ),
    "a copy of the bare model, and its names": (
        "from copy import deepcopy\n\n\ndef f():\n    model = Net()\n    names = list_names(model)\n"
        "    other = deepcopy(model)\n"
        "    model = wrap(model)\n    return names\n\n\ndef wrap(model):\n    return FSDP(model)\n\n\n"
        "def list_names(model):\n    return [n.split('.')[0] for n, _ in model.named_modules()]"
    ),
    "a region of autocast around one forward": (
        "def loss(m, x):\n    return m(x)\n\n\ndef f(x):\n    with torch.autocast('cuda'):\n        return loss(model, x)"
    ),
    "a region of autocast without gradients": (
        "@torch.no_grad()\ndef f(xs):\n    with torch.autocast('cuda'):\n        return [model(x) for x in xs]"
    ),
    "regions of autocast with a name": (
        "def f(xs, half):\n    amp = torch.autocast if half else lambda _: null\n    for x in xs:\n"
        "        with amp('cuda'):\n            y = model(x)\n        y.backward()"
    ),
    "a function made in a region of autocast": (
        "def f(x):\n    with torch.autocast('cuda'):\n        def run():\n            return model(x)\n\n"
        "        return loss(run) + model(x)"
    ),
    "autocast switched off": (
        "def f(x):\n    with torch.autocast('cuda', enabled=False):\n        return model(x) + model(x)"
    ),
    "a count": "def f(model):\n    return sum(p.numel() for p in model.parameters())",
    "the inner module behind a test of the class alone": (
        "def f(m):\n    if not isinstance(m, FSDP):\n        return m\n    return m.module"
    ),
    "a state dict behind a test that says it is another model": (
        "def f(m):\n    if isinstance(m, FSDP):\n        return None\n    return m.state_dict()"
    ),
    "an optimizer among the results of a function": (
        "def make():\n    model = FSDP(Net())\n    return model, torch.optim.AdamW(model.parameters())\n\n\n"
        "def f():\n    net, opt = make()\n    return opt.state_dict()"
    ),
    "loading in a function that makes the model": (
        "def make():\n    model = Net()\n    model.load_state_dict(old)\n    return model\n\n\n"
        "def f():\n    model = make()\n    model = FSDP(model)\n    return model"
    ),
    "saving by a method of the program": (
        "class Folder:\n    def save(self, model):\n        print(model)\n\n\ndef f():\n    model = FSDP(Net())\n"
        "    folder = Folder()\n    folder.save(model)"
    ),
    "a state dict of the bare model": (
        "def f():\n    model = Net()\n    model.load_state_dict(old)\n    model = FSDP(model)\n    return model"
    ),
}


def migrated(
    folder: Path, files: dict[str, str], form: str = "auto"
) -> tuple[dict[str, str], Report]:
    """What becomes of a program of several files, by name."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    report = analyse([folder / name for name in files], Options(form))
    assert not report.errors
    changed = {
        change.path.relative_to(folder).as_posix(): change.after.decode()
        for change in report.changes
    }
    return {**files, **changed}, report


def is_plain(after: str) -> bool:
    return "fully_shard(" in after and "FullyShardedDataParallel" not in after


def test_a_program_becomes_plain(tmp_path: Path) -> None:
    after, _ = migrated(tmp_path, {"train.py": TRAIN, "model.py": MODEL})
    assert is_plain(after["train.py"])
    assert after["model.py"] == MODEL


@pytest.mark.parametrize("use", DEPENDENT)
def test_stays_on_the_bridge(tmp_path: Path, use: str) -> None:
    text = f"{TRAIN}\n\n{DEPENDENT[use]}\n"
    after, report = migrated(tmp_path, {"train.py": text, "model.py": MODEL})
    assert "fully_shard(" not in after["train.py"]
    assert "model = FSDP(model)" in after["train.py"]
    reasons = [f.message for f in report.findings if f.code == "FSDP002"]
    known = ("train.py:", "another constructor", "some arguments come from an unpacked")
    assert reasons
    assert all(any(words in reason for words in known) for reason in reasons), reasons


@pytest.mark.parametrize("use", STATES)
def test_a_models_own_state_dicts_stay_whole(tmp_path: Path, use: str) -> None:
    text = f"{TRAIN}\n\n{STATES[use]}\n"
    after, report = migrated(tmp_path, {"train.py": text, "model.py": MODEL})
    assert "    fully_shard(model)\n    use_full_state_dicts(model)\n" in after["train.py"]
    assert STATES[use].splitlines()[-1] in after["train.py"]  # what saves or loads stays
    said = [f.message for f in report.findings if f.code == "FSDP002"]
    assert all("keeps its own state dicts whole" in message for message in said)


@pytest.mark.parametrize("use", GATHERED)
def test_the_root_frees_its_parameters_for_an_optimizer(tmp_path: Path, use: str) -> None:
    text = f"{TRAIN}\n\n{GATHERED[use]}\n"
    after, _ = migrated(tmp_path, {"train.py": text, "model.py": MODEL})
    assert "    fully_shard(model, reshard_after_forward=True)\n" in after["train.py"]
    assert "FSDP(" not in after["train.py"]

    zero2 = text.replace(
        "FSDP(model)", "FSDP(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)"
    )
    zero2 = zero2.replace("as FSDP\n", "as FSDP, ShardingStrategy\n")
    after, report = migrated(tmp_path, {"train.py": zero2, "model.py": MODEL})
    assert "fully_shard" not in after["train.py"]
    assert any("its strategy keeps them" in f.message for f in report.findings)


def test_an_optimizer_of_another_file_is_seen(tmp_path: Path) -> None:
    main = (
        "import torch\nfrom model import Net\nfrom wrapping import fsdp\n\nmodel = fsdp(Net())\n"
        "print(model(torch.ones(2, 8)))\noptimizer = torch.optim.AdamW(model.parameters())\n"
    )
    wrapping = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
        "def fsdp(model):\n    return FSDP(model)\n"
    )
    files = {"train.py": main, "wrapping.py": wrapping, "model.py": MODEL}
    after, _ = migrated(tmp_path, files)
    assert "    return fully_shard(model, reshard_after_forward=True)\n" in after["wrapping.py"]


@pytest.mark.parametrize("use", INDEPENDENT)
def test_does_not_keep_it_there(tmp_path: Path, use: str) -> None:
    text = f"{TRAIN}\n\n{INDEPENDENT[use]}\n"
    after, report = migrated(tmp_path, {"train.py": text, "model.py": MODEL})
    assert is_plain(after["train.py"]), [f.message for f in report.findings]


@pytest.mark.parametrize("form", ["from helper import save", "import helper"])
def test_a_file_without_fsdp_counts(tmp_path: Path, form: str) -> None:
    helper = "def save(model):\n    return model.module.state_dict()\n"
    files = {"train.py": f"{form}\n{TRAIN}", "model.py": MODEL, "helper.py": helper}
    after, report = migrated(tmp_path, files)
    assert not is_plain(after["train.py"])
    assert any("helper.py:2" in finding.message for finding in report.findings)


def test_a_file_that_nothing_connects_does_not(tmp_path: Path) -> None:
    other = "def save(model):\n    return model.module.state_dict()\n"
    files = {"a/train.py": TRAIN, "a/model.py": MODEL, "b/other.py": other}
    assert is_plain(migrated(tmp_path, files)[0]["a/train.py"])


def test_programs_are_decided_each_by_itself(tmp_path: Path) -> None:
    dynamic = TRAIN.replace("FSDP(model)", "FSDP(model, sharding_strategy=config.strategy)")
    files = {"a/train.py": TRAIN, "a/model.py": MODEL, "b/train.py": dynamic, "b/model.py": MODEL}
    after, _ = migrated(tmp_path, files)
    assert is_plain(after["a/train.py"])
    assert not is_plain(after["b/train.py"])


def test_a_dynamic_import_connects_everything(tmp_path: Path) -> None:
    other = "def save(model):\n    return model.module\n"
    start = f"import importlib\n{TRAIN}\nplugin = importlib.import_module(name)\n"
    files = {"a/train.py": start, "a/model.py": MODEL, "b/other.py": other}
    assert not is_plain(migrated(tmp_path, files)[0]["a/train.py"])


def test_uses_change_with_their_constructor(tmp_path: Path) -> None:
    uses = """\


def train(model: FSDP, optimizer):
    assert isinstance(model, FSDP)
    with model.no_sync():
        model(1).backward()
    model.clip_grad_norm_(1.0)
    with FSDP.summon_full_params(model):
        print(model)
"""
    after, _ = migrated(tmp_path, {"train.py": TRAIN + uses, "model.py": MODEL})
    assert after["train.py"].endswith("""\


def train(model: FSDPModule, optimizer):
    assert isinstance(model, FSDPModule)
    with no_sync(model):
        model(1).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with summon_full_params(model):
        print(model)
""")
    stays = TRAIN.replace("FSDP(model)", "FSDP(model, **options)") + uses
    (tmp_path / "again").mkdir()
    after, _ = migrated(tmp_path / "again", {"train.py": stays, "model.py": MODEL})
    assert after["train.py"].endswith(uses)


def test_the_bridge_form_changes_imports_only(tmp_path: Path) -> None:
    after, _ = migrated(tmp_path, {"train.py": TRAIN, "model.py": MODEL}, "bridge")
    changed = set(after["train.py"].splitlines()) ^ set(TRAIN.splitlines())
    assert changed
    assert all("import" in line for line in changed)


_LOOP = "for layer in self.head:\n            "
_METHOD = "return self.{}(x)\n\n    def {}(self, x):\n        return self.head(x)"
# Bodies of a forward that may not use `self.head`, or do not train it.
NOT_ALWAYS = (
    "return x",
    "return self.head(x) if x.any() else x",
    "return x.any() and self.head(x)",
    "if x.any():\n            return x\n        return self.head(x)",
    "if x.any():\n            x = self.head(x)\n        return x",
    "while x.any():\n            x = self.head(x)\n        return x",
    f"{_LOOP}if x.any():\n                continue\n            x = layer(x)\n        return x",
    f"{_LOOP}if x.any():\n                x = layer(x)\n        return x",
    "for i, layer in enumerate(self.head):\n            x = i\n        return x",
    "for layer in self.head[:depth]:\n            x = layer(x)\n        return x",
    "return sum(layer(x) for layer in self.head if x.any())",
    "return self.head[self.task](x)",
    "return self.head(x).detach()",
    "with torch.no_grad():\n            x = self.head(x)\n        return x",
    "return self.head(x), x",
    "return {'x': x, 'y': self.head(x)}",
    "return Output(x, self.head(x))",
    "y = {'x': x, 'y': self.head(x)}\n        return y",
    "y = {}\n        y['y'] = self.head(x)\n        return y",
    "return x + self.head(x).argmax()",
    "self.kept = self.head(x)\n        return x",
    _METHOD.format("run", "other"),
    _METHOD.format("run", "run").replace("    def", "    @torch.no_grad()\n    def"),
)
# Those that always do.
ALWAYS = (
    _METHOD.format("run", "run"),
    "if x.any():\n            return self.head(x)\n        return self.head(-x)",
    "if x.any():\n            x = self.head(x)\n        else:\n            x = self.head(-x)\n        return x",
    "if x.any():\n            raise ValueError\n        return self.head(x)",
    "return self.head(x) if x.any() else -self.head(x)",
    "with torch.autocast('cpu'):\n            return self.head(x)",
    f"{_LOOP}if x.any():\n                x = run(layer, x)\n            else:\n                x = layer(x)\n        return x",
    "for i in range(3):\n            x = self.head[i](x)\n        return x",
    "for i, layer in enumerate(self.head):\n            x = layer(x)\n        return x",
    "for layer, _ in zip(self.head, x):\n            x = layer(x)\n        return x",
    "return self.head[0](x)",
    "x = self.head(x)\n        return x, loss(x)",
)


@pytest.mark.parametrize(
    ("use", "stays"),
    [
        ("self.drop = p", False),
        ("for i, m in enumerate(self.layers):\n            m.drop = p", True),
    ],
)
def test_a_method_of_the_model_that_sets_attributes_of_its_units(
    tmp_path: Path, use: str, stays: bool
) -> None:
    model = f"{MODEL}\n    def set_drop(self, p):\n        {use}\n"
    for call, is_late in (("model.set_drop(1)", True), ("other.set_drop(1)", False)):
        (tmp_path / call).mkdir()
        text = f"{TRAIN}    {call}\n"
        after, _ = migrated(tmp_path / call, {"train.py": text, "model.py": model})
        assert ("fully_shard(" in after["train.py"]) is not (stays and is_late)


def test_a_callback_that_sets_attributes_of_units(tmp_path: Path) -> None:
    callback = "def f(trainer):\n    for layer in trainer.model.layers:\n        layer.drop = 1\n"
    text = TRAIN.replace("import torch\n", "import torch\nfrom callback import f\n", 1)
    after, _ = migrated(tmp_path, {"train.py": text, "model.py": MODEL, "callback.py": callback})
    assert "fully_shard(" not in after["train.py"]


@pytest.mark.parametrize("forward", NOT_ALWAYS)
def test_a_part_that_a_forward_may_not_use(tmp_path: Path, forward: str) -> None:
    """FSDP1 gave its parameters zero gradients, on which weight decay acts: the runtime goes on doing so."""
    assert (
        "fill_unused"
        not in migrated(tmp_path, {"train.py": TRAIN, "model.py": MODEL})[0]["train.py"]
    )
    model = MODEL.replace("return self.head(x)", forward)
    after, _ = migrated(tmp_path, {"train.py": TRAIN, "model.py": model})
    assert "    fully_shard(model)\n    fill_unused_gradients(model)\n" in after["train.py"]


@pytest.mark.parametrize(
    "made",
    [
        "setattr(self, name, nn.Linear(8, 8))",
        "self.add_module('norm', nn.LayerNorm(8))",
        "self.add_module(name='norm', module=nn.LayerNorm(8))",
        "self.add_module(*('norm', nn.LayerNorm(8)))",
    ],
)
def test_a_part_that_has_no_name_in_the_class(tmp_path: Path, made: str) -> None:
    model = MODEL.replace(
        "self.head = nn.Linear(8, 8)", f"self.head = nn.Linear(8, 8)\n        {made}"
    )
    after, _ = migrated(tmp_path, {"train.py": TRAIN, "model.py": model})
    assert "fill_unused_gradients(model)" in after["train.py"]


@pytest.mark.parametrize("forward", ALWAYS)
def test_a_part_that_every_forward_uses(tmp_path: Path, forward: str) -> None:
    model = MODEL.replace("return self.head(x)", forward)
    after, _ = migrated(tmp_path, {"train.py": TRAIN, "model.py": model})
    assert "fully_shard(model)" in after["train.py"]
    assert "fill_unused" not in after["train.py"]


BLOCKS = """\
import torch.nn as nn


class Block(nn.Linear):
    pass


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block(8, 8) for _ in range(2)])

    def units(self):
        return list(self.layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
"""
BY_LIST = TRAIN.replace(
    "FSDP(model)",
    "FSDP(model, auto_wrap_policy=partial(lambda_auto_wrap_policy, lambda_fn=lambda m: m in LIST))",
).replace(
    "import torch\n",
    "import torch\nfrom functools import partial\n"
    "from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy\n",
    1,
)


@pytest.mark.parametrize(
    ("named", "loop"),
    [
        ("list(model.layers)", "for module in model.layers:"),
        ("model.layers", "for module in model.layers:"),
        ("model.units()", "for module in model.units():"),
        ("[*model.layers]", "if module in [*model.layers]:"),
    ],
)
def test_a_list_of_blocks_is_looped_over(tmp_path: Path, named: str, loop: str) -> None:
    files = {"train.py": BY_LIST.replace("LIST", named), "model.py": BLOCKS}
    assert f"    {loop}\n" in migrated(tmp_path, files)[0]["train.py"]


BUILT = "self.layers = nn.ModuleList([Block(8, 8) for _ in range(2)])"
OTHERWISE = {
    "one block twice": "block = Block(8, 8)\n        self.layers = nn.ModuleList([block for _ in range(2)])",
    "by a function, which may return one twice": BUILT.replace("Block(8, 8)", "make(8)"),
    "of another package": BUILT.replace("Block(8, 8)", "library.Block(8)"),
    "no registered list": BUILT.replace("nn.ModuleList(", "list("),
    "added to": f"{BUILT}\n        self.layers.append(self.layers[0])",
    "in two ways": f"{BUILT}\n        if wide:\n            {BUILT}",
}


@pytest.mark.parametrize("built", OTHERWISE.values(), ids=OTHERWISE)
def test_a_list_built_otherwise_is_only_looked_up(tmp_path: Path, built: str) -> None:
    model = BLOCKS.replace(BUILT, built).replace("import torch", "import library\nimport torch")
    files = {"train.py": BY_LIST.replace("LIST", "model.units()"), "model.py": model}
    after = migrated(tmp_path, files)[0]["train.py"]
    assert "        if module in model.units():\n            fully_shard(module)\n" in after


ORIGINS = {
    "an optimizer before": (
        "def main():\n    model = Net()\n    optimizer = torch.optim.SGD(model.parameters())\n    model = FSDP(model)\n"
    ),
    "an optimizer before the call of a helper": (
        "def wrap(model):\n    return FSDP(model)\n\n\ndef main():\n    model = Net()\n"
        "    optimizer = torch.optim.SGD(model.parameters())\n    model = wrap(model)\n"
    ),
    "an optimizer that a function makes before": (
        "def build(model, lr):\n    groups = [p for p in model.parameters()]\n    return torch.optim.SGD(groups, lr)\n\n\n"
        "def main():\n    model = Net()\n    o = build(model, 0.1)\n    model = FSDP(model)\n"
    ),
    "an optimizer that the model makes before": (
        "def main():\n    model = Net()\n    o = model.configure_optimizers(0.1)\n    model = FSDP(model)\n"
    ),
    "an optimizer that a function of a function makes before": (
        "def groups(m):\n    return list(m.parameters())\n\n\ndef build(m):\n    return Kept(groups(m))\n\n\n"
        "def main():\n    model = Net()\n    kept = build(model)\n    model = FSDP(model)\n"
    ),
    "what keeps parameters, by a keyword": (
        "def build(m):\n    return Kept(m.parameters())\n\n\n"
        "def main():\n    model = Net()\n    kept = build(m=model)\n    model = FSDP(model)\n"
    ),
    "an optimizer beside the model": "def main():\n    model, optimizer = build()\n    model = FSDP(model)\n",
    "a helper that nothing calls": "def wrap(model):\n    return FSDP(model)\n",
    "an attribute that is made elsewhere": (
        "class Trainer:\n    def wrap(self):\n        self.model = FSDP(self.model)\n"
    ),
    "a name that nothing binds": "model = FSDP(model)\n",
}


@pytest.mark.parametrize("origin", ORIGINS)
def test_an_optimizer_may_be_older(tmp_path: Path, origin: str) -> None:
    head = TRAIN[: TRAIN.index("def main")]
    after, _ = migrated(tmp_path, {"train.py": head + ORIGINS[origin], "model.py": MODEL})
    assert not is_plain(after["train.py"])


@pytest.mark.parametrize("step", ["  ", "\t"])
def test_what_is_new_is_indented_as_the_file_is(step: str, tmp_path: Path) -> None:
    text = TRAIN.replace("FSDP(model)", "FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Net}))")
    head = "from torch.distributed.fsdp.wrap import ModuleWrapPolicy\n"
    files = {"train.py": head + text.replace("    ", step), "model.py": MODEL}
    after, _ = migrated(tmp_path, files)
    loop = after["train.py"].partition("for module")[2].splitlines()
    assert [line[: -len(line.lstrip())] for line in loop[1:3]] == [2 * step, 3 * step]


def test_a_helper_whose_callers_are_known(tmp_path: Path) -> None:
    body = "def wrap(model):\n    return FSDP(model)\n\n\ndef main():\n    model = wrap(Net())\n"
    head = TRAIN[: TRAIN.index("def main")]
    after, _ = migrated(tmp_path, {"train.py": head + body, "model.py": MODEL})
    assert "    return fully_shard(model)\n" in after["train.py"]


def test_the_class_of_a_model_counts(tmp_path: Path) -> None:
    """Its methods see the names of its parameters, also where the function that wraps it keeps it to itself."""
    model = MODEL + (
        "\n    def groups(self):\n"
        "        return [p for n, p in self.named_parameters() if n.split('.')[0] == 'head']\n"
    )
    body = "def main():\n    model = Net()\n    model = FSDP(model)\n    optimizer = torch.optim.SGD(model.groups())\n"
    text = TRAIN[: TRAIN.index("def main")] + body
    after, _ = migrated(tmp_path, {"train.py": text, "model.py": model})
    assert not is_plain(after["train.py"])


def test_a_model_of_another_package_that_goes_nowhere(tmp_path: Path) -> None:
    """No other file is asked, whatever it says of models."""
    text = (
        "import torch\nfrom helper import batches\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "from transformers import AutoModel\n\n\ndef main():\n    model = AutoModel.from_config(c)\n"
        "    model = FSDP(model)\n    print(model(batches()))\n"
    )
    helper = "def save(model):\n    return model.module.state_dict()\n"
    after, _ = migrated(tmp_path, {"train.py": text, "helper.py": helper})
    assert is_plain(after["train.py"])
    after, _ = migrated(tmp_path, {"train.py": text + "    keep(model)\n", "helper.py": helper})
    assert not is_plain(after["train.py"])


def test_a_norm_that_a_file_without_fsdp_takes_is_for_a_person(tmp_path: Path) -> None:
    helper = (
        "def norm_of(model):\n    total = torch.tensor(0.0)\n    for p in model.parameters():\n"
        "        total += p.grad.norm() ** 2\n    dist.all_reduce(total)\n    return total\n"
    )
    text = f"from helper import norm_of\n{TRAIN}    norm = norm_of(model)\n"
    files = {"train.py": text, "model.py": MODEL, "helper.py": helper}
    _, report = migrated(tmp_path, files)
    assert [f.construct for f in report.findings if f.action == "manual"] == ["norm_of(model)"]
    files["helper.py"] = helper.replace("p.grad.norm()", "p.grad")
    (tmp_path / "other").mkdir()
    _, report = migrated(tmp_path / "other", files)
    assert not [f for f in report.findings if f.action == "manual"]


@pytest.mark.parametrize("text", ['print("FSDP")', 'mode == "FSDP"', 'x: Literal["FSDP"] = y'])
def test_text_that_reads_like_the_class_keeps_nothing_on_the_bridge(
    tmp_path: Path, text: str
) -> None:
    assert "fully_shard(model)" in _beside(tmp_path, text)


def test_the_class_in_quotes_keeps_a_constructor_on_the_bridge(tmp_path: Path) -> None:
    assert "fully_shard(model)" not in _beside(tmp_path, 'y: "FSDP" = model')


def _beside(folder: Path, line: str) -> str:
    """A training program with one more line, migrated."""
    (folder / "train.py").write_text(f"{TRAIN}\n\n{line}\n")
    (change,) = analyse([folder / "train.py"], Options()).changes
    return change.after.decode()


def test_a_run_keeps_nothing_of_those_before(tmp_path: Path) -> None:
    kept = []
    for _ in range(3):
        _beside(tmp_path, "")
        gc.collect()
        kept.append(sum(isinstance(each, Program) for each in gc.get_objects()))
    assert kept[0] == kept[1] == kept[2]


LONG = """\
import torch
from model import Net
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def main(args, offload):
    model = FSDP(
        Net()
        .eval()
        .train(),
        auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear}),
        cpu_offload=(
            CPUOffload(offload_params=True)
            if offload
            else None
        ),
        sync_module_states=(
            args.low_memory
            and not offload
        ),
        use_orig_params=True,
    )
    return torch.optim.AdamW(model.parameters())
"""


def test_arguments_over_several_lines_become_statements_in_brackets(tmp_path: Path) -> None:
    after, report = migrated(tmp_path, {"train.py": LONG, "model.py": MODEL})
    assert [f.action.value for f in report.findings if f.code == "FSDP002"] == ["rewrite"]
    assert "    model = Net().eval().train()\n" in after["train.py"]
    assert (
        "    offload_policy = CPUOffloadPolicy() if offload else OffloadPolicy()\n"
        in after["train.py"]
    )
    assert "    if args.low_memory and not offload:\n" in after["train.py"]


def test_a_helper_that_looks_at_the_model_before_it_is_wrapped(tmp_path: Path) -> None:
    helper = """\
def named(model, name):
    for module in model.modules():
        if module.__class__.__name__ == name:
            return module
"""
    text = TRAIN.replace("    model = FSDP", '    named(model, "Linear").eval()\n    model = FSDP')
    text = f"from helper import named\n{text}"
    files = {"train.py": text, "model.py": MODEL, "helper.py": helper}
    after, _ = migrated(tmp_path, files)
    assert "    fully_shard(model)\n" in after["train.py"]
    files["train.py"] = f"{text}    named(model, 1)\n"
    after, _ = migrated(tmp_path, files)
    assert "fully_shard" not in after["train.py"]


LOOKED_UP = """\
import functools

import torch
from model import Net
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy


def main(args):
    model = Net()
    block = args.find(model, "Block")
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={block})
    model = FSDP(model, auto_wrap_policy=policy)
    return torch.optim.AdamW(model.parameters())
"""


def test_a_class_that_is_looked_up_may_be_the_models_own(tmp_path: Path) -> None:
    after, _ = migrated(tmp_path, {"train.py": LOOKED_UP, "model.py": MODEL})
    assert "        if module is not model and isinstance(module, block):\n" in after["train.py"]
    assert "functools" not in after["train.py"]
    twice = LOOKED_UP.replace("    model = FSDP", "    block = torch.nn.Linear\n    model = FSDP")
    after, _ = migrated(tmp_path, {"train.py": twice, "model.py": MODEL})
    assert "fully_shard" not in after["train.py"]


TRAINER = """\
import torch
from model import Net
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, model, lr):
        self.model = FSDP(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)


def main():
    model = Net()
    trainer = Trainer(model, 0.1)
    trainer.optimizer.step()
"""
CHILD = """\
class Child(Trainer):
    def __init__(self, lr, model):
        super().__init__(model, lr)


class Grandchild(Child):
    pass


def main():
    model = Net()
    trainer = Grandchild(0.1, model)
    trainer.optimizer.step()
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TRAINER, "becomes fully_shard"),
        (TRAINER[: TRAINER.index("def main")] + CHILD, "becomes fully_shard"),
        (
            TRAINER.replace("    trainer =", "    sgd = SGD(model)\n    trainer ="),
            "may already hold",
        ),
        (TRAINER.replace("(model, 0.1)", "(**options)"), "comes from"),
        (TRAINER.replace("Trainer(model, 0.1)", "make(Trainer)"), "no caller"),
    ],
    ids=["a class", "classes below it", "an optimizer before", "unpacked", "never made here"],
)
def test_a_model_that_a_class_gets_when_it_is_made(
    text: str, expected: str, tmp_path: Path
) -> None:
    _, report = migrated(tmp_path, {"train.py": text, "model.py": MODEL})
    (found,) = [f for f in report.findings if f.code == "FSDP002"]
    assert expected in found.message


@pytest.mark.parametrize(
    ("keeps", "expected"),
    [("use_orig_params=True", "becomes"), ("use_orig_params=keep", "may already hold")],
)
def test_an_older_optimizer_goes_along_where_its_parameters_were_kept(
    keeps: str, expected: str, tmp_path: Path
) -> None:
    optimizer = "    optimizer = torch.optim.AdamW(model.parameters())\n"
    text = TRAIN.replace(optimizer, "").replace("FSDP(model)", f"FSDP(model, {keeps})")
    text = text.replace("model = Net()\n", f"model = Net()\n    unsharded = 1\n{optimizer}")
    after, report = migrated(tmp_path, {"train.py": text, "model.py": MODEL})
    (found,) = [f for f in report.findings if f.code == "FSDP002"]
    assert expected in found.message
    assert ("replace_in_optimizers(unsharded_, model)" in after["train.py"]) is (
        expected == "becomes"
    )


TWO_WAYS = """\
import copy
import os
from model import Net
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

SHARDED = os.environ["WAY"] == "sharded"


class Average:
    def __init__(self, model):
        self.model = copy.deepcopy(model)


def main():
    model = Net()
    if SHARDED:
        model = FSDP(model)
    else:
        model = DDP(model)
    average = None if SHARDED else Average(model)
    train(model, average)
"""


@pytest.mark.parametrize(
    ("before", "after", "is_plain"),
    [
        ("", "", True),
        ("SHARDED else Average", "OTHER else Average", False),
        ("    else:\n", "    model = FSDP(Net())\n    if not SHARDED:\n", False),
        ("def main():\n", "def main(SHARDED):\n", False),
        ("class Average", "SHARDED = True\n\n\nclass Average", False),
        ("    train(", "    Average(model)\n    train(", False),
        ("    train(", "    train(Average, ", False),
    ],
    ids=["no", "a test", "a constructor", "a parameter", "a variable", "a call", "a use"],
)
def test_what_only_runs_where_no_model_is_wrapped_depends_on_nothing(
    before: str, after: str, is_plain: bool, tmp_path: Path
) -> None:
    text = TWO_WAYS.replace(before, after) if before else TWO_WAYS
    _, report = migrated(tmp_path, {"train.py": text, "model.py": MODEL})
    found = [f for f in report.findings if f.code == "FSDP002"]
    assert all(("copies a sharded model" not in f.message) is is_plain for f in found)
