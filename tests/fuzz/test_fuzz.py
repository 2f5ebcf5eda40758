"""Programs at random: what must hold for every program holds for them. `make fuzz` draws many more."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fsdp_migrate.settings import Options

from .checks import FORMS, FSDP, POLICY, run, wrong
from .grammar import program


@settings(phases=(Phase.explicit, Phase.reuse, Phase.generate))  # a seed is not made smaller
@given(st.integers(0, 2**32), st.sampled_from(FORMS))
def test_random_programs_are_whole(seed: int, form: str) -> None:
    assert wrong(program(Random(seed)), form) == []


_PLAIN = (
    f"{POLICY}model = Net()\nmodel = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({{Block}}))\n"
)
_GONE = "from torch.distributed.fsdp import CPUOffload\n"
_WRITTEN_OUT = (
    "import torch.distributed.fsdp\nmodel = torch.distributed.fsdp.FullyShardedDataParallel(m)\n"
)

# What random programs broke, made small.
FOUND = {
    # an import goes away above or below what is no statement of its own: once an endless loop
    **{
        f"{name} {where}": text
        for name, lines in {
            "a form feed": "\f\n",
            "a form feed in front of code": "\f",
            "form feeds": "\f\n\f\n\f",
            "a backslash": "\\\n",
            "backslashes": "\\\n\\\n",
            "a backslash and an empty line": "x = 1\n\\\n\ny = 2\n",
        }.items()
        for where, text in {
            "below the import": _PLAIN.replace("FSDP\n", f"FSDP\n{lines}", 1),
            "above the import": lines + _PLAIN,
            "above the call": _PLAIN.replace("model = Net", f"{lines}model = Net"),
            "between imports": _PLAIN.replace(FSDP, FSDP + lines + _GONE + lines),
            "in a function": f"def f(m):\n    {FSDP}{lines if lines.isspace() else ''}    return FSDP(m)\n",
        }.items()
    },
    "from and its names without a space": (
        "from torch.distributed.fsdp import(FullyShardedDataParallel, ShardingStrategy)\n"
        "model = Net()\nmodel = FullyShardedDataParallel(model)\n"
    ),
    "an alias on two lines": (
        "from torch.distributed.fsdp import (\n    MixedPrecision,\n    register_fsdp_forward_method\n"
        "    as r,\n)\nx = MixedPrecision()\n"
    ),
    "a star beside new names of both packages": (
        "from torch.distributed.fsdp import *\nfrom m import Net\nmodel = Net()\n"
        "model = FullyShardedDataParallel(model)\nmodel.clip_grad_norm_(1.0)\n"
    ),
    "a comment inside an alias": (
        "from torch.distributed.fsdp import (\n    fully_shard,\n    MixedPrecision  # a\n    as\n    # b\n    M,\n)\nM()\n"
    ),
    "imports that end in a backslash": (
        "from torch.distributed.fsdp import *\nimport os; \\\nx = 1\n"
        "with FullyShardedDataParallel.state_dict_type(m, StateDictType.FULL_STATE_DICT):\n    sd = m.state_dict()\n"
    ),
    "a body on the last line of its header": (
        f"{FSDP}from torch.distributed.fsdp import StateDictType\nwith FSDP.state_dict_type(\n"
        "    m, StateDictType.  # a\n    FULL_STATE_DICT): sd = m.state_dict(); y = 1  # b\n"
    ),
    "a body on the last line of its header, continued on the next": (
        f"{FSDP}import torch.distributed.fsdp\nif x:\n    with FSDP.state_dict_type(m, torch.distributed.\n"
        "fsdp.StateDictType.SHARDED_STATE_DICT): sd = m.state_dict(); y\\\n  = 1\n"
    ),
    "a name of an unpacked dictionary that is imported twice": (
        "import torch.distributed.fsdp\nfrom m import Net\nfrom torch.distributed.fsdp import ShardingStrategy as ShardingStrategy\n"
        "from torch.distributed.fsdp import ShardingStrategy\n"
        "fsdp_kwargs = dict(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)\n"
        "model = torch.distributed.fsdp.FullyShardedDataParallel(Net(), **fsdp_kwargs)\n"
    ),
    "an import that takes a new name": (
        f"from torch.distributed.fsdp import wrap as w, register_fsdp_forward_method as r\n{FSDP}"
        "from torch.distributed.fsdp import FSDPModule\nmodel = FSDP(Net())\n"
    ),
    "a module that is imported where its names were": (
        "import torch;\nimport os; from torch.distributed.fsdp.api import FullyShardedDataParallel\n"
        "from torch.distributed.fsdp.api import StateDictType\n"
        "x = torch.distributed.fsdp.FullyShardedDataParallel(Net(1))\nf(StateDictType, FullyShardedDataParallel)\n"
    ),
    **{
        f"an FSDP1 name inside of {argument}": (
            f"{POLICY}from torch.distributed.fsdp import CPUOffload, MixedPrecision, ShardingStrategy\nmodel = FSDP(Net(), {argument})\n"
        )
        for argument in (
            "cpu_offload=CPUOffload(f(FSDP))",
            "mixed_precision=MixedPrecision(param_dtype=types[FSDP])",
            "sharding_strategy=ShardingStrategy.FULL_SHARD if f(FSDP) else None",
            "auto_wrap_policy=ModuleWrapPolicy({Block, FSDP})",
        )
    },
    "a decorator where a body begins": (
        f"{FSDP}from torch.distributed.fsdp import StateDictType\n"
        "with FSDP.state_dict_type(m, StateDictType.FULL_STATE_DICT):\n    @once  # a\n    # b\n    @twice\n"
        "    def f():\n        pass\n    sd = m.state_dict()\n"
    ),
    "indentation that the tokenizer does not see through": (
        f"{FSDP}if a:\n    if b:\n        pass\n\\\n\n        x = 1\n    y = 2\nmodel = FSDP(m)\n"
    ),
    "comments inside a dotted name": (
        "import torch.distributed.fsdp\n"
        "m = f(torch  # a\n  .distributed.  # b\n  fsdp.FullyShardedDataParallel(m))\n"
    ),
    "a comment indented by itself between two imports": (
        "if x:\n    from torch.distributed.fsdp import CPUOffload\n  # a\n"
        f"    {FSDP}model = FSDP(m)\n"
    ),
    "an import that can only go above the first use": (
        "import torch; x = 1\nfrom torch.distributed.fsdp import ShardingStrategy\n"
        "model = torch.distributed.fsdp.wrap.wrap(ShardingStrategy)\nfrom m import Net\n"
    ),
    "a comment inside the name of a test": (
        "import torch.distributed.fsdp\nfrom m import Net\n"
        "model = torch.distributed.fsdp.FullyShardedDataParallel(Net())\nif isinstance(model, torch.  # a\n    distributed.fsdp.FullyShardedDataParallel):\n    pass\n"
    ),
    "torch bound again below its use": f"{_WRITTEN_OUT}x = torch.ones(1)\nimport torch\n",
    "a new import among mixed line ends": (
        "from __future__ import annotations\r\nimport os\rimport torch.distributed.fsdp as fsdp\n"
        "with fsdp.FullyShardedDataParallel.state_dict_type(m, fsdp.StateDictType.FULL_STATE_DICT):\r"
        "    sd = m.state_dict()\n"
    ),
    "imports of a block stay in it, above a new function": (
        "from torch.distributed.fsdp import fully_shard, FullyShardedDataParallel\nif TYPE_CHECKING:\n"
        "    from torch.distributed.fsdp.fully_sharded_data_parallel import StateDictType as StateDictType\n"
        "    from torch.distributed.fsdp.fully_sharded_data_parallel import StateDictType\n"
        "def build():\n    model = Net()\n    model = FullyShardedDataParallel(\n        model,\n    )  # FSDP\n"
    ),
    "what a first run gathers, a second leaves": (
        f"{FSDP}model = FSDP(Net())\nmodel.apply(init)\n"
    ),
    "an import that others join keeps its own line ends": (
        "\nfrom m import Block,\\\r    Net\n\nimport torch\n"
        "if a:\n    from torch.distributed.fsdp.wrap import ModuleWrapPolicy\nmodel = Net()\n"
        "model = torch.distributed.fsdp.FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({Block}))\n"
    ),
    "a new import below a form feed in a comment": (
        "# a\f# b\x0b\x1c\n# c\n\nimport torch.distributed.fsdp as fsdp\n"
        "with fsdp.FullyShardedDataParallel.state_dict_type(m, fsdp.StateDictType.FULL_STATE_DICT):\n"
        "    sd = m.state_dict()\n"
    ),
    "an FSDP1 name as the value of another argument": (
        "import torch.distributed\nfrom m import Net\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel\n"
        "model = FullyShardedDataParallel(Net(), sync_module_states=torch.distributed.fsdp.ShardingStrategy.FULL_SHARD)\n"
    ),
    "a module and a name of it beside one import": (
        "import torch.distributed\nif TYPE_CHECKING:\n    from torch.distributed.fsdp import StateDictType\n"
        "class Trainer:\n    def __init__(self):\n"
        "        self.model = torch.distributed.fsdp.FullyShardedDataParallel(Net(1))\n"
        "        with torch.distributed.fsdp.FullyShardedDataParallel.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):\n"
        "            sd = {'m': model.state_dict()}\n            if sd:\n                save(sd)\n"
    ),
    "a lone carriage return in an argument": (
        f"{FSDP}def build():\n    return FSDP(Net(\n))\n  # off\n"
    ).replace("\n", "\r"),
    "torch that only FSDP1 was reached through": (
        "import torch\nfrom m import Net\nmodel = Net()\n"
        "model = torch.distributed.fsdp.FullyShardedDataParallel(model)\nmodel.clip_grad_norm_(1.0)\n"
    ),
    "a name that only a star can bind": (
        f"from torch.distributed.fsdp import *\n{FSDP}with FullyShardedDataParallel.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):\n"
        "    sd = {'m': m.state_dict()}\nFSDP(Net())\n"
    ),
    "a state dict beside a class that is written out": (
        "import torch.distributed.fsdp\nm = torch.distributed.fsdp.FullyShardedDataParallel(m)\n"
        "def f():\n    return torch.distributed.fsdp.FullyShardedDataParallel(net(1), device_id=m.state_dict(), "
        "param_init_fn=None)\n"
        "m = torch.distributed.fsdp.FullyShardedDataParallel(m)\n"
        "n = torch.distributed.fsdp.FullyShardedDataParallel(module=net(1), device_id=m.state_dict(), param_init_fn=a)\n"
    ),
    "names of torch.compile, which a first run makes plain": (
        f"import torch\n{FSDP}from torch.distributed.fsdp import FullStateDictConfig, StateDictType\n"
        "self.model = torch.compile(FSDP(Net(1)))\n"
        "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(True, True)):\n"
        "    sd = model.state_dict()\n"
    ),
    "a feature of the future, with a semicolon": (
        "from __future__ import annotations;\ntry:\n    import torch\nexcept ImportError: pass\n"
        "model = torch.distributed.fsdp.FullyShardedDataParallel(model)\n"
    ),
    "a model over lines that end in a lone CR": (
        f"{POLICY}def f():\n    return FSDP(Net  # in\n  (), sync_module_states=True)\n".replace(
            "\n", "\r"
        )
    ),
    "nothing is ignored": (
        f"{POLICY}from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler\n"
        "model = Net()\nmodel = FSDP(model, ignored_modules=None)\nscaler = ShardedGradScaler(enabled=True)\n"
    ),
    "a body on the line below its header, joined by a backslash": (
        "if True:\\\n    from torch.distributed.fsdp import fully_shard, CPUOffload  # a\n"
        "if x:\\\n\\\n    from torch.distributed.fsdp import (  # b\n    fully_shard, CPUOffload)\nCPUOffload()\n"
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in FOUND.items()])
def test_what_random_programs_found(text: str, form: str) -> None:
    compile(text, "<before>", "exec")
    assert wrong(text.encode(), form) == []


@pytest.mark.parametrize("space", ["\r", "\f", "\t", "  \\\r\r"])
def test_comments_in_a_call_with_lone_carriage_returns(space: str) -> None:
    """A C tokenizer raises there since Python 3.12."""
    text = "model = Net()\nmodel = FSDP(  # a\n    model,  # b\n    auto_wrap_policy=ModuleWrapPolicy(\n{Block}),\n)\n"
    text = f"{POLICY}{text}".replace("\n", "\r").replace("(\r{", f"(\r{space}{{")
    assert wrong(text.encode(), "auto") == []
    assert "fully_shard" in run(text).after


def test_a_coding_cookie_in_a_file_with_lone_carriage_returns() -> None:
    data = f"# -*- coding: latin-1 -*-\n{FSDP}model = FSDP(model)  # é\n".replace(
        "\n", "\r"
    ).encode("latin-1")
    assert wrong(data, "auto") == []
    assert "fsdp_migrate.runtime" in run(data, Options("bridge")).after


@pytest.mark.parametrize(
    "text", ["", "\n", "# fsdp\n", "# FullyShardedDataParallel", "\f", "\\\n\n# fsdp"]
)
def test_nearly_empty_files_stay(text: str) -> None:
    assert not run(text).changed
