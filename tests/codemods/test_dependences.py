"""What of a program depends on FSDP1's interface or structure and keeps its models on the bridge, and what only looks so; and
what a plain model needs because of it: whole state dicts, a root that frees its parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from .programs import MODEL, TRAIN, analysed, is_plain

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
    "an attribute of an optimizer's parameters": (
        "def f(optimizer):\n    for group in optimizer.param_groups:\n        for p in group['params']:\n"
        "            if hasattr(p, 'expert'):\n                return p"
    ),
    "an attribute that parameters are given": (
        "def f():\n    net = Net()\n    for p in net.parameters():\n        p.layer = 1\n    return net"
    ),
    "attributes of the model in its dict": (
        "def f(n):\n    model = FSDP(Net())\n    for key in n:\n        model.__dict__[key] = n[key]"
    ),
    "attributes of the model in its vars": (
        "def f(n):\n    model = FSDP(Net())\n    vars(model).update(n)"
    ),
    "forward of a layer": (
        "def f(net, x):\n    for layer in net.layers:\n        x = layer.forward(x)\n    return x"
    ),
    "a weight after an evaluation": (
        "def f(loader):\n    model = FSDP(Net())\n    evaluate(model, loader)\n    model.head.weight.mul_(0.5)"
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
    "an optimizer after a function that knows the model": (
        "def f(x):\n    model = FSDP(Net())\n\n    def warm():\n        model(x)\n\n    warm()\n"
        "    return torch.optim.AdamW(model.parameters())"
    ),
    "an optimizer after a method of an object that has the model": (
        "class Probe:\n    def __init__(self, net):\n        self.net = net\n\n    def run(self, x):\n"
        "        return self.net(x)\n\n\n"
        "def f(x):\n    model = FSDP(Net())\n    Probe(model).run(x)\n    return torch.optim.AdamW(model.parameters())"
    ),
    "an optimizer after an object that runs the model when it is made": (
        "class Probe:\n    def __init__(self, net, x):\n        self.mean = net(x)\n\n\n"
        "def f(x):\n    model = FSDP(Net())\n    Probe(model, x)\n    return torch.optim.AdamW(model.parameters())"
    ),
    "an optimizer after a function of functions": (
        "def deep(net, x):\n    return deeper(net, x)\n\n\ndef deeper(g, x):\n    return g(x)\n\n\n"
        "def f(x):\n    model = FSDP(Net())\n    deep(model, x)\n    return torch.optim.AdamW(model.parameters())"
    ),
    "an optimizer after a map": (
        "def f(x):\n    model = FSDP(Net())\n    list(map(model, x))\n    return torch.optim.AdamW(model.parameters())"
    ),
    "an optimizer after a loop over models by name": (
        "def f(x):\n    model = FSDP(Net())\n    for name, net in {'a': model}.items():\n        print(name, net(x))\n"
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
    "the attributes that all parameters have": (
        "def f(model, args):\n    print(vars(args))\n    for p in model.head.parameters():\n        p.requires_grad = False"
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


@pytest.mark.parametrize("use", DEPENDENT)
def test_stays_on_the_bridge(tmp_path: Path, use: str) -> None:
    text = f"{TRAIN}\n\n{DEPENDENT[use]}\n"
    program = analysed(tmp_path, {"train.py": text, "model.py": MODEL})
    assert "fully_shard(" not in program.after["train.py"]
    assert "model = FSDP(model)" in program.after["train.py"]
    reasons = [f.message for f in program.findings if f.code == "FSDP002"]
    known = ("train.py:", "another constructor", "some arguments come from an unpacked")
    assert reasons
    assert all(any(words in reason for words in known) for reason in reasons), reasons


@pytest.mark.parametrize("use", STATES)
def test_a_models_own_state_dicts_stay_whole(tmp_path: Path, use: str) -> None:
    text = f"{TRAIN}\n\n{STATES[use]}\n"
    program = analysed(tmp_path, {"train.py": text, "model.py": MODEL})
    assert "    fully_shard(model)\n    use_full_state_dicts(model)\n" in program.after["train.py"]
    assert STATES[use].splitlines()[-1] in program.after["train.py"]  # what saves or loads stays
    said = [f.message for f in program.findings if f.code == "FSDP002"]
    assert all("keeps its own state dicts whole" in message for message in said)


@pytest.mark.parametrize("use", GATHERED)
def test_the_root_frees_its_parameters_for_an_optimizer(tmp_path: Path, use: str) -> None:
    text = f"{TRAIN}\n\n{GATHERED[use]}\n"
    after = analysed(tmp_path, {"train.py": text, "model.py": MODEL}).after
    assert "    fully_shard(model, reshard_after_forward=True)\n" in after["train.py"]
    assert "FSDP(" not in after["train.py"]

    zero2 = text.replace(
        "FSDP(model)", "FSDP(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)"
    )
    zero2 = zero2.replace("as FSDP\n", "as FSDP, ShardingStrategy\n")
    program = analysed(tmp_path, {"train.py": zero2, "model.py": MODEL})
    assert "fully_shard" not in program.after["train.py"]
    assert any("its strategy keeps them" in f.message for f in program.findings)


@pytest.mark.parametrize("use", INDEPENDENT)
def test_does_not_keep_it_there(tmp_path: Path, use: str) -> None:
    text = f"{TRAIN}\n\n{INDEPENDENT[use]}\n"
    program = analysed(tmp_path, {"train.py": text, "model.py": MODEL})
    assert is_plain(program.after["train.py"]), [f.message for f in program.findings]


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
        after = analysed(tmp_path / call, {"train.py": text, "model.py": model}).after
        assert ("fully_shard(" in after["train.py"]) is not (stays and is_late)


def test_a_callback_that_sets_attributes_of_units(tmp_path: Path) -> None:
    callback = "def f(trainer):\n    for layer in trainer.model.layers:\n        layer.drop = 1\n"
    text = TRAIN.replace("import torch\n", "import torch\nfrom callback import f\n", 1)
    after = analysed(tmp_path, {"train.py": text, "model.py": MODEL, "callback.py": callback}).after
    assert "fully_shard(" not in after["train.py"]
