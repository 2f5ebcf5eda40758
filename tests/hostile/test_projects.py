"""Projects of several files, run by Python itself before and after: names and values that come from far away."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from pathlib import Path

import pytest

from .programs import FSDP, Outcome, run_project
from .stage import record_script

NET = "from m import Block, Net\n"
POLICY = "from torch.distributed.fsdp.wrap import ModuleWrapPolicy\n"
STRATEGY = "from torch.distributed.fsdp import ShardingStrategy\n"
OPTIONS = f"{NET}{FSDP}{POLICY}{STRATEGY}from torch.distributed.fsdp import CPUOffload, MixedPrecision\nimport torch\n"
SAVE = "\nmodel.state_dict()\n"

# The script that runs is the last file of each.
SAME: dict[str, dict[str, str]] = {
    "reexport utils": {
        "utils.py": FSDP,
        "main.py": NET + "from utils import FSDP\nmodel = FSDP(Net())\nmodel.state_dict()\n",
    },
    "reexport __all__": {
        "utils.py": FSDP + "__all__ = ['FSDP']\n",
        "main.py": NET + "from utils import FSDP\nmodel = FSDP(Net())\nmodel.state_dict()\n",
    },
    "reexport and unused there": {
        "utils.py": FSDP + "def f(m):\n    return FSDP(m)\n",
        "main.py": NET
        + "from utils import FSDP, f\nmodel = f(Net())\nassert isinstance(model, FSDP)\nmodel.state_dict()\n",
    },
    "pkg module alias": {
        "pkg/__init__.py": "",
        "pkg/fsdp_utils.py": FSDP,
        "main.py": NET
        + "import pkg.fsdp_utils as fu\nmodel = fu.FSDP(Net())\nmodel.state_dict()\n",
    },
    "pkg module alias isinstance": {
        "pkg/__init__.py": "",
        "pkg/fsdp_utils.py": FSDP + "def wrap(m):\n    return FSDP(m)\n",
        "main.py": NET
        + "import pkg.fsdp_utils as fu\nmodel = fu.wrap(Net())\nprint('x') if isinstance(model, fu.FSDP) else 1/0\nmodel.state_dict()\n",
    },
    "star chain": {
        "pkg/__init__.py": "from .a import *\n",
        "pkg/a.py": "from .b import *\n",
        "pkg/b.py": FSDP + POLICY,
        "main.py": NET
        + "from pkg import *\nmodel = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({Block}))\nmodel.state_dict()\n",
    },
    "star with __all__": {
        "pkg/__init__.py": "from .a import *\n__all__ = ['FSDP', 'wrap_it']\n",
        "pkg/a.py": FSDP + "__all__ = ['FSDP', 'wrap_it']\ndef wrap_it(m):\n    return FSDP(m)\n",
        "main.py": NET
        + "from pkg import *\nmodel = wrap_it(Net())\nassert isinstance(model, FSDP)\nmodel.state_dict()\n",
    },
    "a class of another file, written anew": {
        "models.py": "from m import Block, Net\n",
        "main.py": FSDP
        + POLICY
        + "from models import Block, Net\nmodel = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({Block}))"
        + SAVE,
    },
    "init exports": {
        "pkg/__init__.py": "from .fsdp import FSDP, wrap_it\n",
        "pkg/fsdp.py": FSDP + "def wrap_it(m):\n    return FSDP(m)\n",
        "main.py": NET + "from pkg import wrap_it\nmodel = wrap_it(Net())\nmodel.state_dict()\n",
    },
    "init exports used": {
        "pkg/__init__.py": "from .fsdp import FSDP, wrap_it\n",
        "pkg/fsdp.py": FSDP + "def wrap_it(m):\n    return FSDP(m)\n",
        "main.py": NET
        + "import pkg\nmodel = pkg.wrap_it(Net())\nassert isinstance(model, pkg.FSDP)\nmodel.state_dict()\n",
    },
    "relative two levels": {
        "pkg/__init__.py": "",
        "pkg/a/__init__.py": "",
        "pkg/a/b/__init__.py": "",
        "pkg/util.py": FSDP + POLICY,
        "pkg/a/b/c.py": "from ...util import FSDP, ModuleWrapPolicy\n"
        + NET
        + "def build():\n    return FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({Block}))\n",
        "main.py": "from pkg.a.b.c import build\nbuild().state_dict()\n",
    },
    "namespace": {
        "ns/a.py": FSDP + "def w(m):\n    return FSDP(m)\n",
        "main.py": NET + "from ns.a import w\nm = w(Net())\nm.state_dict()\n",
    },
    "namespace nested rel": {
        "ns/x/a.py": FSDP + "def w(m):\n    return FSDP(m)\n",
        "ns/y/b.py": "from ..x.a import w\n" + NET + "def s():\n    w(Net()).state_dict()\n",
        "main.py": "import ns.y.b\nns.y.b.s()\n",
    },
    "sibling script": {
        "utils.py": "def X(m):\n    return m\n",
        "scripts/utils.py": FSDP + "def X(m):\n    return FSDP(m)\n",
        "scripts/main.py": NET + "from utils import X\nX(Net()).state_dict()\n",
    },
    "sibling script, root one shards": {
        "scripts/utils.py": "def X(m):\n    return m\n",
        "utils.py": FSDP + "def X(m):\n    return FSDP(m)\n",
        "scripts/main.py": NET + "from utils import X\nX(Net()).state_dict()\n",
    },
    "try except None": {
        "main.py": NET
        + "try:\n    "
        + FSDP
        + "except ImportError:\n    FSDP = None\nif FSDP is None:\n    raise SystemExit\nmodel = FSDP(Net())\nmodel.state_dict()\n"
    },
    "try bool flag": {
        "main.py": NET
        + "try:\n    "
        + FSDP
        + "    HAS = True\nexcept ImportError:\n    HAS = False\nmodel = Net()\nif HAS:\n    model = FSDP(model)\nmodel.state_dict()\n"
    },
    "version gated paths": {
        "main.py": NET
        + "import torch\nif torch.__version__ >= '2.0':\n    "
        + FSDP
        + "else:\n    from torch.distributed.fsdp.fully_sharded_data_parallel import FullyShardedDataParallel as FSDP\nmodel = FSDP(Net())\nmodel.state_dict()\n"
    },
    "try two paths": {
        "main.py": NET
        + "try:\n    from torch.distributed.fsdp import ShardingStrategy\nexcept ImportError:\n    from torch.distributed.fsdp.api import ShardingStrategy\n"
        + FSDP
        + "model = FSDP(Net(), sharding_strategy=ShardingStrategy['NO_SHARD'])\nmodel.state_dict()\n"
    },
    "type checking": {
        "main.py": "from __future__ import annotations\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "
        + FSDP
        + NET
        + "def save(model: FSDP) -> None:\n    model.state_dict()\ndef build():\n    "
        + FSDP
        + "    return FSDP(Net())\nsave(build())\n"
    },
    "type checking quoted": {
        "main.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "
        + FSDP
        + NET
        + "def save(model: 'FSDP') -> None:\n    model.state_dict()\ndef build():\n    "
        + FSDP
        + "    return FSDP(Net())\nsave(build())\n"
    },
    "getattr strategy": {
        "main.py": NET
        + FSDP
        + STRATEGY
        + "s = getattr(ShardingStrategy, 'NO_SHARD')\nmodel = FSDP(Net(), sharding_strategy=s)\nmodel.state_dict()\n"
    },
    "future annotations": {
        "main.py": "from __future__ import annotations\n"
        + FSDP
        + NET
        + "from typing import Optional, Union, Type\ndef f(m: Optional[FSDP], c: Type[FSDP] = None, d: type[FSDP] | None = None) -> Union[FSDP, int]:\n    return m\nm = f(FSDP(Net()))\nm.state_dict()\n"
    },
    "issubclass": {
        "main.py": FSDP
        + NET
        + "m = FSDP(Net())\nprint(issubclass(type(m), FSDP))\nm.state_dict()\n"
    },
    "match": {
        "main.py": FSDP
        + NET
        + "m = FSDP(Net())\nmatch m:\n    case FSDP():\n        m.state_dict()\n    case _:\n        pass\n"
    },
    "match value": {
        "main.py": FSDP
        + STRATEGY
        + NET
        + "s = ShardingStrategy.NO_SHARD\nmatch s:\n    case ShardingStrategy.NO_SHARD:\n        m = FSDP(Net(), sharding_strategy=s)\n"
    },
    "walrus": {"main.py": FSDP + NET + "if (m := FSDP(Net())):\n    m.state_dict()\n"},
    "star args": {"main.py": NET + FSDP + "args = (Net(),)\nm = FSDP(*args)\nm.state_dict()\n"},
    "fstring": {
        "main.py": NET
        + FSDP
        + "m = FSDP(Net())\nprint(f'{isinstance(m, FSDP)} {m.state_dict()} FSDP(model)')\n"
    },
    "type comment": {
        "main.py": NET
        + FSDP
        + "def f(m):\n    # type: (FSDP) -> FSDP\n    return m\nx = f(FSDP(Net()))  # type: FSDP\nx.state_dict()\n"
    },
    "docstring": {
        "main.py": NET
        + FSDP
        + 'def f(m):\n    """Doc.\n\n    >>> FSDP(m).state_dict()\n    """\n    return FSDP(m)\nf(Net()).state_dict()\n'
    },
    "const in module": {
        "cfg.py": STRATEGY + "STRATEGY = ShardingStrategy.SHARD_GRAD_OP\n",
        "main.py": NET
        + FSDP
        + "from cfg import STRATEGY\nmodel = FSDP(Net(), sharding_strategy=STRATEGY)"
        + SAVE,
    },
    "const in module attr": {
        "cfg.py": STRATEGY + "STRATEGY = ShardingStrategy.SHARD_GRAD_OP\n",
        "main.py": NET
        + FSDP
        + "import cfg\nmodel = FSDP(Net(), sharding_strategy=cfg.STRATEGY)"
        + SAVE,
    },
    "const in module as": {
        "c/__init__.py": "",
        "c/cfg.py": STRATEGY + "STRATEGY = ShardingStrategy.SHARD_GRAD_OP\n",
        "main.py": NET
        + FSDP
        + "from c import cfg as C\nmodel = FSDP(Net(), sharding_strategy=C.STRATEGY)"
        + SAVE,
    },
    "const in class": {
        "cfg.py": STRATEGY + "class Cfg:\n    strategy = ShardingStrategy.SHARD_GRAD_OP\n",
        "main.py": NET
        + FSDP
        + "from cfg import Cfg\nmodel = FSDP(Net(), sharding_strategy=Cfg.strategy)"
        + SAVE,
    },
    "instance of class": {
        "cfg.py": STRATEGY + "class Cfg:\n    strategy = ShardingStrategy.SHARD_GRAD_OP\n",
        "main.py": NET
        + FSDP
        + "from cfg import Cfg\ncfg = Cfg()\nmodel = FSDP(Net(), sharding_strategy=cfg.strategy)"
        + SAVE,
    },
    "dict pick": {
        "main.py": OPTIONS
        + "S = {'full': ShardingStrategy.FULL_SHARD, 'grad': ShardingStrategy.SHARD_GRAD_OP}\nmodel = FSDP(Net(), sharding_strategy=S['grad'])"
        + SAVE
    },
    "dict get": {
        "main.py": OPTIONS
        + "S = {'full': ShardingStrategy.FULL_SHARD, 'grad': ShardingStrategy.SHARD_GRAD_OP}\nmodel = FSDP(Net(), sharding_strategy=S.get('x'))"
        + SAVE
    },
    "dict inline": {
        "main.py": OPTIONS
        + "model = FSDP(Net(), sharding_strategy={'a': ShardingStrategy.SHARD_GRAD_OP, 'b': ShardingStrategy.NO_SHARD}['b'])"
        + SAVE
    },
    "if elif": {
        "main.py": OPTIONS
        + "n = 'grad'\nif n == 'full':\n    s = ShardingStrategy.FULL_SHARD\nelif n == 'grad':\n    s = ShardingStrategy.SHARD_GRAD_OP\nelse:\n    raise ValueError(n)\nmodel = FSDP(Net(), sharding_strategy=s)"
        + SAVE
    },
    "cond": {
        "main.py": OPTIONS
        + "model = FSDP(Net(), sharding_strategy=ShardingStrategy.SHARD_GRAD_OP if len('x') else ShardingStrategy.FULL_SHARD)"
        + SAVE
    },
    "dataclass field": {
        "main.py": OPTIONS
        + "from dataclasses import dataclass\n@dataclass\nclass C:\n    s: ShardingStrategy = ShardingStrategy.SHARD_GRAD_OP\ncfg = C()\nmodel = FSDP(Net(), sharding_strategy=cfg.s)"
        + SAVE
    },
    "dataclass overridden": {
        "main.py": OPTIONS
        + "from dataclasses import dataclass\n@dataclass\nclass C:\n    s: ShardingStrategy = ShardingStrategy.SHARD_GRAD_OP\ncfg = C(s=ShardingStrategy.NO_SHARD)\nmodel = FSDP(Net(), sharding_strategy=cfg.s)"
        + SAVE
    },
    "by name": {
        "main.py": OPTIONS
        + "name = 'SHARD_GRAD_OP'\nmodel = FSDP(Net(), sharding_strategy=ShardingStrategy[name])"
        + SAVE
    },
    "argparse": {
        "main.py": OPTIONS
        + "import argparse\np = argparse.ArgumentParser()\np.add_argument('--s', choices=[s.name for s in ShardingStrategy], default='SHARD_GRAD_OP')\na = p.parse_args([])\nmodel = FSDP(Net(), sharding_strategy=ShardingStrategy[a.s])"
        + SAVE
    },
    "argparse type": {
        "main.py": OPTIONS
        + "import argparse\np = argparse.ArgumentParser()\np.add_argument('--s', type=lambda n: ShardingStrategy[n], default=ShardingStrategy.NO_SHARD, choices=list(ShardingStrategy))\na = p.parse_args([])\nmodel = FSDP(Net(), sharding_strategy=a.s)"
        + SAVE
    },
    "compared": {
        "main.py": OPTIONS
        + "s = ShardingStrategy['NO_SHARD']\nmodel = FSDP(Net(), sharding_strategy=s)\nif s == ShardingStrategy.NO_SHARD:\n    print('none')"
        + SAVE
    },
    "compared across": {
        "cfg.py": STRATEGY + "def pick():\n    return ShardingStrategy.NO_SHARD\n",
        "main.py": OPTIONS
        + "from cfg import pick\ns = pick()\nmodel = FSDP(Net(), sharding_strategy=s)\nassert s is ShardingStrategy.NO_SHARD"
        + SAVE,
    },
    "policy from function": {
        "pol.py": POLICY
        + "from m import Block\ndef get():\n    return ModuleWrapPolicy({Block})\n",
        "main.py": OPTIONS
        + "from pol import get\nmodel = FSDP(Net(), auto_wrap_policy=get())"
        + SAVE,
    },
    "tuple from function": {
        "pol.py": POLICY
        + "import torch\nfrom torch.distributed.fsdp import MixedPrecision\nfrom m import Block\ndef get_policies(cfg):\n    mp = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if cfg else None\n    return mp, ModuleWrapPolicy({Block})\n",
        "main.py": OPTIONS
        + "from pol import get_policies\nmp, policy = get_policies(1)\nmodel = FSDP(Net(), auto_wrap_policy=policy, mixed_precision=mp)"
        + SAVE,
    },
    "self in other method": {
        "main.py": OPTIONS
        + "class T:\n    def __init__(self):\n        self.pick()\n        self.model = FSDP(Net(), sharding_strategy=self.s)\n    def pick(self):\n        self.s = ShardingStrategy.SHARD_GRAD_OP\nmodel = T().model"
        + SAVE
    },
    "class attribute": {
        "main.py": OPTIONS
        + "class T:\n    s = ShardingStrategy.SHARD_GRAD_OP\n    def __init__(self):\n        self.model = FSDP(Net(), sharding_strategy=self.s)\nmodel = T().model"
        + SAVE
    },
    "kwargs dict": {
        "main.py": OPTIONS
        + "kw = {'sharding_strategy': ShardingStrategy.SHARD_GRAD_OP}\nif len('x'):\n    kw['cpu_offload'] = CPUOffload(offload_params=True)\nmodel = FSDP(Net(), **kw)"
        + SAVE
    },
    "kwargs function": {
        "main.py": OPTIONS
        + "def kw():\n    return dict(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)\nmodel = FSDP(Net(), **kw())"
        + SAVE
    },
    "kwargs param": {
        "h.py": FSDP + "def wrap(m, **kw):\n    return FSDP(m, **kw)\n",
        "main.py": OPTIONS
        + "from h import wrap\nmodel = wrap(Net(), sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, auto_wrap_policy=ModuleWrapPolicy({Block}))"
        + SAVE,
    },
    "kwargs update": {
        "main.py": OPTIONS
        + "kw = dict(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)\nkw.update(cpu_offload=CPUOffload(True))\nmodel = FSDP(Net(), **{**kw, 'device_id': 3})"
        + SAVE
    },
    "returned wrapped": {
        "a.py": FSDP + "def wrap(m):\n    return FSDP(m)\n",
        "b.py": "from a import wrap\ndef setup(m, n=1):\n    m = wrap(m)\n    return m, n\n",
        "main.py": NET + "from b import setup\nmodel, _ = setup(Net())" + SAVE,
    },
    "several models": {
        "main.py": OPTIONS
        + "a, b = Net(), Net()\nb.rename('b')\na = FSDP(a)\nb = FSDP(b, sharding_strategy=ShardingStrategy.NO_SHARD)\nc = Net()\nc.rename('c')\na.state_dict(); b.state_dict(); c.state_dict()\n"
    },
    "loop layers": {
        "main.py": OPTIONS
        + "model = Net()\nfor i, l in enumerate(model.layers):\n    model.layers[i] = FSDP(l)\nmodel = FSDP(model)"
        + SAVE
    },
    "nested by hand": {
        "main.py": OPTIONS
        + "class Big(Net):\n    def __init__(self):\n        super().__init__()\n        self.children_[0] = FSDP(self.children_[0])\nmodel = FSDP(Big())"
        + SAVE
    },
    "mp from dict": {
        "main.py": OPTIONS
        + "DT = {'bf16': torch.bfloat16}\nmp = MixedPrecision(param_dtype=DT['bf16'])\nmodel = FSDP(Net(), mixed_precision=mp)"
        + SAVE
    },
    "mp const module": {
        "prec.py": "import torch\nfrom torch.distributed.fsdp import MixedPrecision\nbf16 = MixedPrecision(param_dtype=torch.bfloat16)\nfp32 = None\n",
        "main.py": NET
        + FSDP
        + "import prec\nmp = prec.bf16 if len('x') else prec.fp32\nmodel = FSDP(Net(), mixed_precision=mp)"
        + SAVE,
    },
    "policies pkg": {
        "policies/__init__.py": "from .mp import *\nfrom .wrapping import *\n",
        "policies/mp.py": "import torch\nfrom torch.distributed.fsdp import MixedPrecision\nbfSixteen = MixedPrecision(param_dtype=torch.bfloat16)\n",
        "policies/wrapping.py": "import functools\nfrom torch.distributed.fsdp.wrap import transformer_auto_wrap_policy\nfrom m import Block\ndef get_wrapper():\n    return functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})\n",
        "main.py": NET
        + FSDP
        + "import policies\nmodel = FSDP(Net(), auto_wrap_policy=policies.get_wrapper(), mixed_precision=policies.bfSixteen)"
        + SAVE,
    },
    "const reassigned elsewhere": {
        "cfg.py": STRATEGY
        + "S = ShardingStrategy.FULL_SHARD\ndef use_grad():\n    global S\n    S = ShardingStrategy.SHARD_GRAD_OP\n",
        "main.py": NET
        + FSDP
        + "import cfg\ncfg.use_grad()\nmodel = FSDP(Net(), sharding_strategy=cfg.S)"
        + SAVE,
    },
    "const in loop": {
        "main.py": OPTIONS
        + "for s in (ShardingStrategy.SHARD_GRAD_OP,):\n    model = FSDP(Net(), sharding_strategy=s)"
        + SAVE
    },
    "const augmented": {
        "main.py": OPTIONS
        + "x = [ShardingStrategy.FULL_SHARD]\nx += [ShardingStrategy.SHARD_GRAD_OP]\nmodel = FSDP(Net(), sharding_strategy=x[1])"
        + SAVE
    },
    "param default": {
        "main.py": OPTIONS
        + "def wrap(m, s=ShardingStrategy.SHARD_GRAD_OP):\n    return FSDP(m, sharding_strategy=s)\nmodel = wrap(Net(), ShardingStrategy.NO_SHARD)"
        + SAVE
    },
    "class attr overridden in subclass": {
        "main.py": OPTIONS
        + "class B:\n    s = ShardingStrategy.FULL_SHARD\n    def go(self):\n        return FSDP(Net(), sharding_strategy=self.s)\nclass C(B):\n    s = ShardingStrategy.NO_SHARD\nmodel = C().go()"
        + SAVE
    },
    "enum alias": {
        "main.py": OPTIONS
        + "NO = ShardingStrategy.NO_SHARD\nX = NO\nmodel = FSDP(Net(), sharding_strategy=X)"
        + SAVE
    },
    "nested function closure": {
        "main.py": OPTIONS
        + "def outer(flag):\n    s = ShardingStrategy.FULL_SHARD\n    def inner():\n        return FSDP(Net(), sharding_strategy=s)\n    if flag:\n        s = ShardingStrategy.NO_SHARD\n    return inner()\nmodel = outer(1)"
        + SAVE
    },
    "del and rebind": {
        "main.py": OPTIONS
        + "s = ShardingStrategy.FULL_SHARD\ndel s\ns = ShardingStrategy.NO_SHARD\nmodel = FSDP(Net(), sharding_strategy=s)"
        + SAVE
    },
    "nonlocal value": {
        "main.py": OPTIONS
        + "def outer():\n    s = ShardingStrategy.FULL_SHARD\n    def pick():\n        nonlocal s\n        s = ShardingStrategy.NO_SHARD\n    pick()\n    return FSDP(Net(), sharding_strategy=s)\nmodel = outer()"
        + SAVE
    },
    "setattr module": {
        "cfg.py": STRATEGY + "S = ShardingStrategy.FULL_SHARD\n",
        "main.py": NET
        + FSDP
        + STRATEGY
        + "import cfg\nsetattr(cfg, 'S', ShardingStrategy.NO_SHARD)\nmodel = FSDP(Net(), sharding_strategy=cfg.S)"
        + SAVE,
    },
    "vars module": {
        "main.py": OPTIONS
        + "S = ShardingStrategy.FULL_SHARD\nglobals()['S'] = ShardingStrategy.NO_SHARD\nmodel = FSDP(Net(), sharding_strategy=S)"
        + SAVE
    },
    "local named FSDP": {
        "main.py": OPTIONS
        + "def f(FSDP):\n    return FSDP(Net())\nmodel = FSDP(f(lambda m: m))"
        + SAVE
    },
    "param named fsdp": {
        "main.py": "import torch.distributed.fsdp as fsdp\n"
        + NET
        + "def f(m, fsdp):\n    return fsdp.wrap(m)\nclass O:\n    def wrap(self, m):\n        return m\nmodel = fsdp.FullyShardedDataParallel(f(Net(), O()))"
        + SAVE
    },
    "function named wrap": {
        "main.py": OPTIONS + "def wrap(m):\n    return FSDP(m)\nmodel = wrap(Net())" + SAVE
    },
    "local shard_model": {
        "main.py": OPTIONS
        + "def go(shard_model, s):\n    return FSDP(Net(), sharding_strategy=s) if shard_model else None\nmodel = go(True, ShardingStrategy['NO_SHARD'])"
        + SAVE
    },
    "local fully_shard": {
        "main.py": OPTIONS
        + "def go(fully_shard):\n    return FSDP(Net()) if fully_shard else None\nmodel = go(True)"
        + SAVE
    },
    "global fully_shard": {
        "main.py": OPTIONS
        + "fully_shard = True\nmodel = FSDP(Net()) if fully_shard else None"
        + SAVE
    },
    "fully_shard in comprehension": {
        "main.py": OPTIONS + "models = [FSDP(Net()) for fully_shard in range(1)]\nmodels[0]\n"
    },
    "no_sync local": {
        "main.py": OPTIONS
        + "model = FSDP(Net())\nno_sync = False\nif not no_sync:\n    with model.no_sync():\n        model(1)\n"
    },
    "no_sync function": {
        "main.py": OPTIONS
        + "def no_sync(m):\n    return m.no_sync()\nmodel = FSDP(Net())\nwith no_sync(model):\n    model(1)\n"
    },
    "class body fully_shard": {
        "main.py": OPTIONS + "class T:\n    fully_shard = True\n    model = FSDP(Net())\n"
    },
    "FSDP2 beside": {
        "main.py": OPTIONS
        + "from torch.distributed.fsdp import fully_shard\na = fully_shard(Net())\nb = Net()\nb.rename('b')\nb = FSDP(b)\na.state_dict()\nb.state_dict()\n"
    },
    "FSDPModule elsewhere": {
        "fsdpmod.py": "class FSDPModule:\n    pass\n",
        "main.py": OPTIONS
        + "from fsdpmod import FSDPModule\nmodel = FSDP(Net())\nassert isinstance(model, FSDP)\nassert not isinstance(1, FSDPModule)\n",
    },
    "own class beside torch's": {
        "ours.py": "class FSDP:\n    def __init__(self, m):\n        self.module = m\n    def state_dict(self):\n        return self.module.state_dict()\n",
        "main.py": OPTIONS
        + "import ours\na = ours.FSDP(Net())\nb = Net()\nb.rename('b')\nb = FSDP(b)\na.state_dict()\nb.state_dict()\n",
    },
    "circular pkg": {
        "p/__init__.py": "from .a import FSDP, run\n",
        "p/a.py": FSDP + "from . import b\ndef run(m):\n    return b.wrap(m)\n",
        "p/b.py": "from . import a\ndef wrap(m):\n    return a.FSDP(m)\n",
        "main.py": NET + "from p import run\nmodel = run(Net())" + SAVE,
    },
    "circular from": {
        "p/__init__.py": "",
        "p/a.py": FSDP + "from p.b import wrap\ndef is_w(m):\n    return isinstance(m, FSDP)\n",
        "p/b.py": "def wrap(m):\n    from p.a import FSDP, is_w\n    assert not is_w(m)\n    return FSDP(m)\n",
        "main.py": NET + "from p.a import wrap\nmodel = wrap(Net())" + SAVE,
    },
    "alias no fsdp text": {
        "a.py": "from torch.distributed.fsdp import FullyShardedDataParallel as Wrapper\n",
        "main.py": NET + "from a import Wrapper\nmodel = Wrapper(Net())" + SAVE,
    },
    "alias no fsdp text isinstance": {
        "a.py": "from torch.distributed.fsdp import FullyShardedDataParallel as Wrapper\ndef make(m):\n    return Wrapper(m)\n",
        "b.py": "import a\ndef make2(m):\n    return a.make(m)\n",
        "main.py": NET
        + "from a import Wrapper\nfrom b import make2\nmodel = make2(Net())\nassert isinstance(model, Wrapper)\n",
    },
    "alias no fsdp option": {
        "a.py": "from torch.distributed.fsdp import ShardingStrategy as Strategy, FullyShardedDataParallel as Wrapper\n",
        "b.py": "from a import Strategy\nDEFAULT = Strategy.NO_SHARD\n",
        "main.py": NET
        + "from a import Wrapper\nfrom b import DEFAULT\nmodel = Wrapper(Net(), sharding_strategy=DEFAULT)"
        + SAVE,
    },
    "submodule import": {
        "main.py": NET
        + "import torch.distributed.fsdp.fully_sharded_data_parallel as F\nmodel = F.FullyShardedDataParallel(Net(), sharding_strategy=F.ShardingStrategy.NO_SHARD)"
        + SAVE
    },
    "import torch only": {
        "main.py": NET
        + "import torch\nimport torch.distributed.fsdp\nmodel = torch.distributed.fsdp.FullyShardedDataParallel(Net(), sharding_strategy=torch.distributed.fsdp.ShardingStrategy['NO_SHARD'])"
        + SAVE
    },
    "torch.distributed as dist": {
        "main.py": NET
        + "import torch.distributed as dist\nimport torch.distributed.fsdp\nmodel = dist.fsdp.FullyShardedDataParallel(Net())"
        + SAVE
    },
    "lambda": {"main.py": OPTIONS + "build = lambda m: FSDP(m)\nmodel = build(Net())" + SAVE},
    "getattr on model": {
        "main.py": OPTIONS
        + "model = FSDP(Net())\nif hasattr(model, 'module'):\n    model = model.module\n"
    },
    "annassign": {"main.py": OPTIONS + "model: FSDP = FSDP(Net())" + SAVE},
    "cast quoted": {
        "main.py": OPTIONS + "from typing import cast\nmodel = cast('FSDP', FSDP(Net()))" + SAVE
    },
    "any isinstance": {
        "main.py": OPTIONS
        + "model = FSDP(Net())\nassert any(isinstance(m, FSDP) for m in model.modules())\nassert sum(1 for m in model.modules() if isinstance(m, (FSDP, int))) == 1\n"
    },
    "with two aliases": {
        "main.py": NET
        + FSDP
        + "from torch.distributed.fsdp import FullyShardedDataParallel\na = FSDP(Net())\nb = Net()\nb.rename('b')\nb = FullyShardedDataParallel(b)\na.state_dict(); b.state_dict()\n"
    },
    "subpackage shadow name": {
        "p/__init__.py": FSDP,
        "p/FSDP.py": "x = 1\n",
        "main.py": NET + "from p import FSDP\nmodel = FSDP(Net())" + SAVE,
    },
    "two of one": {
        "cfg.py": STRATEGY + "STRATEGY = ShardingStrategy.SHARD_GRAD_OP\nN = 1\n" + FSDP,
        "main.py": NET
        + "from cfg import STRATEGY, N, FSDP\nmodel = FSDP(Net(), sharding_strategy=STRATEGY)\nprint(N)\n",
    },
    "in try": {
        "cfg.py": STRATEGY + "STRATEGY = ShardingStrategy.SHARD_GRAD_OP\n",
        "main.py": NET
        + FSDP
        + "try:\n    from cfg import STRATEGY\nexcept ImportError:\n    raise\nmodel = FSDP(Net(), sharding_strategy=STRATEGY)\n",
    },
    "config by globals, elsewhere": {
        "cfg.py": STRATEGY
        + "S = ShardingStrategy.FULL_SHARD\nfor k in ['S']:\n    globals()[k] = ShardingStrategy.NO_SHARD\n",
        "main.py": NET + FSDP + "import cfg\nmodel = FSDP(Net(), sharding_strategy=cfg.S)" + SAVE,
    },
}

# What cannot be followed, with the codes of what is left to people.
BY_HAND: dict[str, tuple[set[str], dict[str, str]]] = {
    "version gated fairscale": (
        {"FSDP018"},
        {
            "main.py": NET
            + "import torch\nif torch.__version__ >= '1.12':\n    "
            + FSDP
            + "else:\n    from fairscale.nn import FullyShardedDataParallel as FSDP\nmodel = FSDP(Net())\nmodel.state_dict()\n"
        },
    ),
    "import_module": (
        {"FSDP010"},
        {
            "main.py": NET
            + "import importlib\nfsdp = importlib.import_module('torch.distributed.fsdp')\nmodel = fsdp.FullyShardedDataParallel(Net())\nmodel.state_dict()\n"
        },
    ),
    "import_module from": (
        {"FSDP010"},
        {
            "main.py": NET
            + "from importlib import import_module\nFSDP = import_module('torch.distributed.fsdp').FullyShardedDataParallel\nmodel = FSDP(Net())\nmodel.state_dict()\n"
        },
    ),
    "getattr": (
        {"FSDP010"},
        {
            "main.py": NET
            + "import torch.distributed.fsdp as fsdp\ncls = getattr(fsdp, 'FullyShardedDataParallel')\nmodel = cls(Net())\nmodel.state_dict()\n"
        },
    ),
    "dunder import": (
        {"FSDP010"},
        {
            "main.py": NET
            + "fsdp = __import__('torch.distributed.fsdp', fromlist=['x'])\nmodel = fsdp.FullyShardedDataParallel(Net())\nmodel.state_dict()\n"
        },
    ),
    "sys.modules": (
        {"FSDP010"},
        {
            "main.py": NET
            + "import sys, torch.distributed.fsdp\nfsdp = sys.modules['torch.distributed.fsdp']\nmodel = fsdp.FullyShardedDataParallel(Net())\nmodel.state_dict()\n"
        },
    ),
    "union ddp": (
        {"FSDP333"},
        {
            "main.py": FSDP
            + NET
            + "from typing import Union\nfrom torch.nn.parallel import DistributedDataParallel as DDP\ndef save(m: Union[DDP, FSDP]):\n    m.state_dict()\nsave(FSDP(Net()))\n"
        },
    ),
    "isinstance tuple": (
        {"FSDP333"},
        {
            "main.py": FSDP
            + NET
            + "from torch.nn.parallel import DistributedDataParallel as DDP\ndef save(m):\n    if isinstance(m, (DDP, FSDP)):\n        m = m.module\n    m.state_dict()\nsave(FSDP(Net()))\n"
        },
    ),
    "a tuple of classes, also printed": (
        {"FSDP018"},
        {
            "main.py": FSDP
            + NET
            + "from torch.nn.parallel import DistributedDataParallel as DDP\nWRAPPERS = (DDP, FSDP)\nm = FSDP(Net())\nassert isinstance(m, WRAPPERS)\nprint(WRAPPERS)\nm.state_dict()\n"
        },
    ),
    "except clause": (
        {"FSDP018"},
        {
            "main.py": FSDP
            + NET
            + "m = FSDP(Net())\ntry:\n    pass\nexcept (FSDP, ValueError):\n    pass\nm.state_dict()\n"
        },
    ),
    "decorator": (
        {"FSDP018"},
        {
            "main.py": FSDP
            + NET
            + "def wrapped(cls):\n    def deco(f):\n        return lambda: cls(f())\n    return deco\n@wrapped(FSDP)\ndef build():\n    return Net()\nbuild().state_dict()\n"
        },
    ),
    "global": (
        {"FSDP018"},
        {
            "main.py": NET
            + "FSDP = None\ndef load():\n    global FSDP\n    from torch.distributed.fsdp import FullyShardedDataParallel\n    FSDP = FullyShardedDataParallel\nload()\nm = FSDP(Net())\nm.state_dict()\n"
        },
    ),
    "global import": (
        {"FSDP018"},
        {
            "main.py": NET
            + "def load():\n    global FSDP\n    "
            + FSDP
            + "load()\nm = FSDP(Net())\nm.state_dict()\n"
        },
    ),
    "nonlocal": (
        {"FSDP018"},
        {
            "main.py": NET
            + "def outer():\n    cls = None\n    def load():\n        nonlocal cls\n        "
            + FSDP
            + "        cls = FSDP\n    load()\n    return cls(Net())\nouter().state_dict()\n"
        },
    ),
    "class body": (
        {"FSDP018"},
        {
            "main.py": NET
            + FSDP
            + "class T:\n    wrapper = FSDP\n    def go(self):\n        return self.wrapper(Net())\nT().go().state_dict()\n"
        },
    ),
    "cond class": (
        {"FSDP018"},
        {
            "main.py": NET
            + FSDP
            + "from torch.nn.parallel import DistributedDataParallel as DDP\nW = FSDP if len('x') else DDP\nm = W(Net())\nm.state_dict()\n"
        },
    ),
    "cond call": (
        {"FSDP018"},
        {
            "main.py": NET
            + FSDP
            + "from torch.nn.parallel import DistributedDataParallel as DDP\nm = (FSDP if len('x') else DDP)(Net())\nm.state_dict()\n"
        },
    ),
    "dict class": (
        {"FSDP018"},
        {
            "main.py": NET
            + FSDP
            + "from torch.nn.parallel import DistributedDataParallel as DDP\nW = {'fsdp': FSDP, 'ddp': DDP}\nm = W['fsdp'](Net())\nm.state_dict()\n"
        },
    ),
    "subclass elsewhere": (
        {"FSDP005"},
        {
            "my.py": FSDP + "class My(FSDP):\n    pass\n",
            "main.py": NET + "from my import My\nmodel = My(Net())" + SAVE,
        },
    ),
    "__getattr__ lazy": (
        {"FSDP018"},
        {
            "p/__init__.py": "def __getattr__(name):\n    if name == 'FSDP':\n        from torch.distributed.fsdp import FullyShardedDataParallel\n        return FullyShardedDataParallel\n    raise AttributeError(name)\n",
            "main.py": NET + "from p import FSDP\nmodel = FSDP(Net())" + SAVE,
        },
    ),
    "alias chain": (
        {"FSDP018"},
        {
            "a.py": FSDP + "Wrapper = FSDP\n",
            "b.py": "from a import Wrapper as W\n",
            "main.py": NET + "from b import W as Y\nmodel = Y(Net())" + SAVE,
        },
    ),
    "map": (
        {"FSDP018"},
        {"main.py": OPTIONS + "models = list(map(FSDP, [Net()]))\nmodels[0].state_dict()\n"},
    ),
    "cls param": (
        {"FSDP018"},
        {
            "main.py": OPTIONS
            + "def build(m, cls=FSDP):\n    return cls(m)\nmodel = build(Net())"
            + SAVE
        },
    ),
    "import inside class method": (
        {"FSDP018"},
        {
            "main.py": NET
            + "class T:\n    def setup(self):\n        "
            + FSDP
            + "        self.FSDP = FSDP\n        return self\n    def go(self):\n        return self.FSDP(Net())\nmodel = T().setup().go()"
            + SAVE
        },
    ),
    "type alias": (
        {"FSDP018"},
        {
            "main.py": OPTIONS
            + "from typing import Union\nModel = Union[FSDP, Net]\ndef save(m: Model):\n    m.state_dict()\nsave(FSDP(Net()))\n"
        },
    ),
    "generic base": (
        {"FSDP018"},
        {
            "main.py": OPTIONS
            + "from typing import Generic, TypeVar\nT = TypeVar('T', bound=FSDP)\nclass H(Generic[T]):\n    pass\nmodel = FSDP(Net())"
            + SAVE
        },
    ),
    "cast": (
        {"FSDP018"},
        {"main.py": OPTIONS + "from typing import cast\nmodel = cast(FSDP, FSDP(Net()))" + SAVE},
    ),
    "in tuple test": (
        {"FSDP018"},
        {"main.py": OPTIONS + "model = FSDP(Net())\nassert type(model) in (FSDP,) or True\n"},
    ),
    "star from own shadowing": (
        {"FSDP018"},
        {
            "u.py": FSDP,
            "v.py": "def FSDP(m):\n    return m\n",
            "main.py": NET + "from u import *\nfrom v import *\nmodel = FSDP(Net())" + SAVE,
        },
    ),
    "star hidden by __all__": (
        {"FSDP018"},
        {
            "u.py": FSDP + "__all__ = ['x']\nx = 1\n",
            "v.py": "def FSDP(m):\n    return m\n",
            "main.py": NET + "from v import *\nfrom u import *\nmodel = FSDP(Net())" + SAVE,
        },
    ),
    "eval": ({"FSDP010"}, {"main.py": OPTIONS + "model = eval('FSDP')(Net())" + SAVE}),
    "globals lookup": (
        {"FSDP010"},
        {"main.py": OPTIONS + "model = globals()['FSDP'](Net())" + SAVE},
    ),
    "config by exec": (
        {"FSDP010"},
        {
            "main.py": OPTIONS
            + "S = ShardingStrategy.FULL_SHARD\nmodel = Net()\nexec('S = ShardingStrategy.NO_SHARD')\nmodel = FSDP(model, sharding_strategy=S)"
            + SAVE
        },
    ),
}

ALIKE: dict[str, dict[str, str]] = {
    "own class named FSDP": {
        "fsdp.py": "class FullyShardedDataParallel:\n    def __init__(self, m):\n        self.module = m\n    def clip_grad_norm_(self, c):\n        return c\n    def state_dict(self):\n        return 1\n",
        "main.py": NET
        + "from fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(Net())\nmodel.clip_grad_norm_(1.0)\nmodel.module.state_dict()"
        + SAVE,
    },
    "own package torch_fsdp": {
        "torch_fsdp/__init__.py": "def FSDP(m):\n    return m\n",
        "main.py": NET + "from torch_fsdp import FSDP\nmodel = FSDP(Net())" + SAVE,
    },
    "own file named fsdp in root of torch name": {
        "distributed/fsdp.py": "def FullyShardedDataParallel(m):\n    return m\n",
        "main.py": NET
        + "from distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(Net())"
        + SAVE,
    },
}


def play(folder: Path, files: dict[str, str]) -> tuple[object, object, dict[str, Outcome]]:
    """What the last file does before and after, and what was said of each."""
    script = list(files)[-1]
    outcomes = run_project(folder / "before", files)
    for name, outcome in outcomes.items():
        path = folder / "after" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(outcome.after)
    before = record_script(folder / "before", script)
    assert before["error"] is None, before["error"]
    return before, record_script(folder / "after", script), outcomes


def unheard(outcome: Outcome) -> set[int]:
    """The lines that use what is imported from FSDP1 there, and have no finding."""
    return fsdp1_lines(outcome.before) - {finding.line for finding in outcome.report.findings}


@pytest.mark.parametrize("files", [pytest.param(files, id=name) for name, files in SAME.items()])
def test_project_does_the_same(files: dict[str, str], tmp_path: Path) -> None:
    before, after, outcomes = play(tmp_path, files)
    assert after == before
    assert any(outcome.changed for outcome in outcomes.values())
    for outcome in outcomes.values():
        assert not outcome.errors
        assert not unheard(outcome)
        kept = {"FullyShardedDataParallel"} if outcome.by_hand else set()  # said to stay
        assert not unused_imports(outcome.after, kept) - unused_imports(outcome.before)


@pytest.mark.parametrize(
    ("codes", "files"),
    [pytest.param(codes, files, id=name) for name, (codes, files) in BY_HAND.items()],
)
def test_what_cannot_be_followed_is_named(
    codes: set[str], files: dict[str, str], tmp_path: Path
) -> None:
    before, after, outcomes = play(tmp_path, files)
    assert after == before
    by_hand = {code for outcome in outcomes.values() for code in outcome.by_hand}
    migrated = any(outcome.changed for outcome in outcomes.values()) and not by_hand - {"FSDP001"}
    assert codes <= by_hand or migrated
    for outcome in outcomes.values():
        assert not unheard(outcome)


@pytest.mark.parametrize("files", [pytest.param(files, id=name) for name, files in ALIKE.items()])
def test_what_looks_alike_is_left_alone(files: dict[str, str], tmp_path: Path) -> None:
    _, _, outcomes = play(tmp_path, files)
    for outcome in outcomes.values():
        assert not outcome.changed
        assert not outcome.report.findings


def test_import_of_what_does_something_stays(tmp_path: Path) -> None:
    files = {
        "cfg.py": f"{STRATEGY}S = ShardingStrategy.SHARD_GRAD_OP\nimport torch\ntorch.cuda.set_device(3)\n",
        "main.py": f"{NET}{FSDP}from cfg import S\nmodel = FSDP(Net(), sharding_strategy=S)\n",
    }
    before, after, outcomes = play(tmp_path, files)
    assert after == before
    assert "reshard_after_forward=False" in outcomes["main.py"].after
    assert "from cfg import S" in outcomes["main.py"].after


def fsdp1_lines(text: str) -> set[int]:
    """Where a file imports from FSDP1 and reads what it imported, as `ast` alone can tell."""
    tree = ast.parse(text)
    found: set[int] = set()
    names: set[str] = set()
    rebound = {
        n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)
    }
    rebound |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            "torch.distributed.fsdp"
        ):
            for alias in node.names:
                if alias.name != "fully_shard":
                    found.add(alias.lineno)
                    names.add(alias.asname or alias.name)
    return found | {
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id in names - rebound
    }


def unused_imports(text: str, kept: Collection[str] = ()) -> set[str]:
    """Names that a file imports and neither reads nor exports."""
    tree = ast.parse(text)
    read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    read |= {
        word
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for word in re.findall(r"\w+", node.value)
    }
    return {
        alias.asname or alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if alias.name not in kept
    } - {*read, "*"}
