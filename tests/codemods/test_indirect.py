"""Models that are made indirectly: the whole program is rewritten, or nothing of it is."""

from __future__ import annotations

import ast

import pytest

from .test_examples import analyse

HEAD = (
    "import torch\nfrom torch import nn\nfrom functools import partial\n"
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    "from torch.distributed.fsdp.wrap import enable_wrap, wrap\n"
)
USE = "with model.no_sync():\n    train(model)\nmodel.clip_grad_norm_(1.0)\n"

REWRITTEN = {
    "a partial": "model = partial(FSDP, use_orig_params=True)(model)\n",
    "a partial as an argument": "def build(f, m):\n    return f(m)\nmodel = build(partial(FSDP), model)\n",
    "a partial in a table": "table = {'fsdp': partial(FSDP)}\nmodel = table['fsdp'](model)\n",
    "a partial or something else": "f = partial(FSDP) if x else plain\nmodel = f(model)\n",
    "a partial as a class attribute": "class T:\n    f = partial(FSDP)\nmodel = T.f(model)\n",
    "an element": "models = {'a': FSDP(model)}\nmodel = models['a']\n",
    "one of many": "models = [FSDP(m) for m in models]\nmodel = models[0]\n",
    "a layer": "layers = nn.ModuleList([FSDP(x) for x in layers])\nmodel = layers[0]\n",
    "wrap": "with enable_wrap(wrapper_cls=FSDP):\n    model = wrap(wrap(model))\n",
    "a lambda": "f = lambda m: FSDP(m)\nmodel = f(model)\n",
}


@pytest.mark.parametrize("text", REWRITTEN.values(), ids=REWRITTEN)
def test_uses_follow(text: str) -> None:
    _, after = analyse(HEAD + text + USE)
    ast.parse(after)
    assert "FSDP(" not in after
    assert "partial(FSDP" not in after
    assert "with no_sync(model):" in after
    assert "model.clip_grad_norm_" not in after


HELD = {
    "a partial given to another package": "build(partial(FSDP))\n",
    "a partial's wrapped class": "_recursive_wrap(m, wrapper_cls=partial(FSDP))\n",
    "a partial kept in something unknown": "config.wrapper = partial(FSDP)\n",
    "a partial of an attribute read elsewhere": (
        "class T:\n    def __init__(self):\n        self.f = partial(FSDP)\ndef go(t):\n    return t.f(m)\n"
    ),
    "a partial looked into": "f = partial(FSDP)\nf.keywords['x'] = 1\n",
    "a partial behind a decorator": "@other\ndef f():\n    return partial(FSDP)\n",
    "a partial for map": "models = map(partial(FSDP), models)\n",
    "an argument by position": "f = partial(FSDP, model)\nf()\n",
    "an unknown argument": "f = partial(FSDP, mesh=1)\nf(m)\n",
    "an unknown argument of the call": "f = partial(FSDP)\nf(m, mesh=1)\n",
    "wrapped twice by a partial": "f = partial(FSDP)\nm = f(f(m))\n",
    "wrap as a value": "with enable_wrap(wrapper_cls=FSDP):\n    m = list(map(wrap, m))\n",
    "wrap twice with other options": (
        "with enable_wrap(wrapper_cls=FSDP):\n    m = wrap(wrap(m), device_id=1)\n"
    ),
    "wrap by a function": "with enable_wrap(wrapper_cls=shard):\n    m = wrap(m)\n",
    "wrap alone": "m = wrap(m)\n",
    "a subclass": "class Mine(FSDP): pass\nmodel = Mine(model)\n",
}


@pytest.mark.parametrize("text", HELD.values(), ids=HELD)
def test_nothing_is_rewritten(text: str) -> None:
    text = HEAD + text + "other = FSDP(other)\nother.clip_grad_norm_(1.0)\n"
    _, after = analyse(text)
    assert after.count("other = FSDP(other)\nother.clip_grad_norm_(1.0)\n") == 1
    assert "fsdp_migrate" not in after


OPTIMIZER_FIRST = {
    "f = partial(FSDP)\nopt = SGD(model.parameters(), 0.1)\nmodel = f(model)\n": (
        "model = f(model)\nopt = SGD(model.parameters(), 0.1)\n"
    ),
    "opt = SGD(model.parameters(), 0.1)\nwith enable_wrap(wrapper_cls=FSDP):\n    model = wrap(model)\n": (
        "with remap_optimizer(opt, model):\n        model = wrap(model)\n"
    ),
}


@pytest.mark.parametrize("text", OPTIMIZER_FIRST)
def test_an_optimizer_built_first_follows(text: str) -> None:
    _, after = analyse(f"from torch.optim import SGD\n{HEAD}{text}")
    assert OPTIMIZER_FIRST[text] in after


LOOK_ALIKES = [
    "from fairscale.nn import FullyShardedDataParallel as FSDP, enable_wrap, wrap",
    "from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP",
    "from megatron.core.distributed import FullyShardedDataParallel as FSDP",
    "from lightning.pytorch.strategies import FSDPStrategy as FSDP",
    "class FSDP: pass",
]


@pytest.mark.parametrize("line", LOOK_ALIKES)
def test_look_alikes_stay(line: str) -> None:
    text = (
        f"from functools import partial\n{line}\nf = partial(FSDP, flatten_parameters=True)\nmodel = f(model)\n"
        "with enable_wrap(wrapper_cls=FSDP):\n    model = wrap(FSDP(model))\nmodel.clip_grad_norm_(1.0)\nmodel.state_dict()\n"
    )
    report, after = analyse(text)
    assert after == text
    assert not report.findings


LOOPS = {
    "by index": "for i, layer in enumerate(model.layers):\n    model.layers[i] = FSDP(layer)\nmodel = FSDP(model)\n",
    "in place": "for i in range(len(model.layers)):\n    model.layers[i] = FSDP(model.layers[i])\nmodel = FSDP(model)\n",
    "by name": "for name, child in model.named_children():\n    setattr(model, name, FSDP(child))\nmodel = FSDP(model)\n",
    "two ways": (
        "for i, layer in enumerate(model.layers):\n    if x:\n        model.layers[i] = FSDP(layer)\n"
        "    else:\n        model.layers[i] = FSDP(layer, use_orig_params=True)\nmodel = FSDP(model)\n"
    ),
}


@pytest.mark.parametrize("text", LOOPS.values(), ids=LOOPS)
def test_units_by_hand_and_the_root_last(text: str) -> None:
    _, after = analyse(HEAD + text)
    assert "FSDP(" not in after.replace("DataParallel as FSDP", "")
    first, last = after.index("fully_shard("), after.rindex("fully_shard(model)")
    assert first < last


def test_part_of_a_loop_makes_a_whole() -> None:
    body = (
        "model = Net()\nfor name, child in model.named_children():\n    setattr(model, name, FSDP(child))\n"
        "torch.save(model.state_dict(), 'f')\n"
    )
    report, _ = analyse(HEAD + body)
    assert any(finding.code == "FSDP333" for finding in report.findings)
