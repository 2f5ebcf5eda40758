"""How a constructor is written on FSDP2: statements in its place, or a function where there is no room for them."""

import ast
from pathlib import Path

import pytest

from fsdp_migrate import engine
from fsdp_migrate.settings import Options

from .programs import analysed, table
from .test_examples import analyse, every_line_that_changes_has_a_finding

HEAD = """\
import functools
import torch.nn as nn
from model import Block, Net
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, enable_wrap, wrap


"""
# What each file of FUNCTIONS gets.
SHARD = """\
def shard(module, *args, **kwargs):
    \"\"\"Shards a module with FSDP1's arguments, in place.\"\"\"
    with like_fsdp1(module):
        for unit, options in units(module, *args, **kwargs):
            fully_shard(unit, **options)
    return module


"""
# Programs behind their imports, and what they become.
STATEMENTS = table(
    """\
=== the same name
net = FSDP(net)
---
with like_fsdp1(net):
    fully_shard(net)
=== another name
sharded = FSDP(net)
---
with like_fsdp1(net):
    fully_shard(net)
sharded = net
=== an attribute
class T:
    def wrap(self):
        self.model = FSDP(self.model)
---
class T:
    def wrap(self):
        with like_fsdp1(self.model):
            fully_shard(self.model)
=== a subscript
nets['actor'] = FSDP(nets['actor'])
---
with like_fsdp1(nets['actor']):
    fully_shard(nets['actor'])
=== returned, made in the call
def build():
    return FSDP(Net())
---
def build():
    model = Net()
    with like_fsdp1(model):
        fully_shard(model)
    return model
=== a result that nothing keeps
def build(net):
    FSDP(net, use_orig_params=True)
---
def build(net):
    with like_fsdp1(net):
        fully_shard(net)
=== module by its name, read by units
net = FSDP(sharding_strategy=config.s, module=net)
---
with like_fsdp1(net):
    for module, options in units(sharding_strategy=config.s, module=net):
        fully_shard(module, **options)
=== names that the loop takes
def build(module, options):
    module = FSDP(module, **options)
    return module
---
def build(module, options):
    with like_fsdp1(module):
        for module_, options_ in units(module, **options):
            fully_shard(module_, **options_)
    return module
=== the name model is taken
def build(model):
    return FSDP(Net(model))
---
def build(model):
    model_ = Net(model)
    with like_fsdp1(model_):
        fully_shard(model_)
    return model_
=== former names
net = FSDP(net, fsdp_auto_wrap_policy=policy, ignored_parameters=None)
---
with like_fsdp1(net):
    for module, options in units(net, auto_wrap_policy=policy, ignored_states=None):
        fully_shard(module, **options)
=== several lines, in their own layout
net = FSDP(
        net,
        auto_wrap_policy=make(
            1),  # by size
    sharding_strategy=s)
---
with like_fsdp1(net):
    for module, options in units(
            net,
            auto_wrap_policy=make(
                1),  # by size
        sharding_strategy=s
    ):
        fully_shard(module, **options)
=== comments stay at arguments, also of those that torch has words for
net = FSDP(
    net,  # on the CPU
    # less memory
    cpu_offload=None,
    use_orig_params=True,  # for the decay
)  # done
---
with like_fsdp1(net):
    for module, options in units(
        net,  # on the CPU
        # less memory
        cpu_offload=None,
        use_orig_params=True,  # for the decay
    ):
        fully_shard(module, **options)  # done
=== a comment above
# shard it
net = FSDP(net)
---
# shard it
with like_fsdp1(net):
    fully_shard(net)
"""
)
STATEMENTS["the end of a file without a line break"] = tuple(
    part.removesuffix("\n") for part in STATEMENTS["the same name"]
)
# Behind SHARD they are the same, with another name.
FUNCTIONS = [
    "def build(net):\n    # sharded\n    return {'net': FSDP(net)}\n",
    "nets = [FSDP(Net(low), cpu_offload=CPUOffload(low)) for low in lows]\n",
    "make = lambda net: FSDP(net)\n",
    "net = FSDP(net) if sharded else net\n",
    "net = FSDP(Net()).cuda()\n",
    "a = b = FSDP(Net())\n",
    "nets[pick()] = FSDP(Net())\n",
    "if (net := FSDP(Net())) is not None:\n    pass\n",
    "net: nn.Module = FSDP(Net())\n",
    "net = Net(); net = FSDP(net)\n",
    "train(FSDP(module=Net()))\n",
    "net = FSDP(*arguments)\n",
    "build = functools.partial(FSDP, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)\nnet = build(Net())\n",
    "with enable_wrap(wrapper_cls=FSDP, use_orig_params=True):\n    net.head = wrap(net.head)\n    net = wrap(net)\n",
    "def one():\n    return [FSDP(Net())]\n\n\ndef two():\n    return [FSDP(Net(), use_orig_params=True)]\n",
    "nets = [FSDP(Net(),  # this one\n    auto_wrap_policy=ModuleWrapPolicy({Block}))]\n",
    "def build(net, list):\n    net = FSDP(net, auto_wrap_policy=ModuleWrapPolicy({Block}))\n    return net, list\n",
]
# Names that the file uses for something else, and a star that leaves room for statements: the whole code.
TAKEN = table(
    """\
=== a star behind the model
net = FSDP(net, *arguments)
---
with like_fsdp1(net):
    for module, options in units(net, *arguments):
        fully_shard(module, **options)
=== its name is taken
def shard(x):
    return x.chunk(2)


nets = [FSDP(Net())]
---
def shard(x):
    return x.chunk(2)


SHARD_
nets = [shard_(Net())]
=== its name is taken where it is used
def build(shard):
    return shard, FSDP(Net())
---
SHARD_
def build(shard):
    return shard, shard_(Net())
=== units is taken
units = 8
net = FSDP(net, **options)
---
units = 8


def shard(module, *args, **kwargs):
    \"\"\"Shards a module with FSDP1's arguments, in place.\"\"\"
    from fsdp_migrate.runtime import units

    with like_fsdp1(module):
        for unit, options in units(module, *args, **kwargs):
            fully_shard(unit, **options)
    return module


net = shard(net, **options)
=== fully_shard is taken
def fully_shard(x): ...
net = FSDP(net)
---
def fully_shard(x): ...


def shard(module, *args, **kwargs):
    \"\"\"Shards a module with FSDP1's arguments, in place.\"\"\"
    from torch.distributed.fsdp import fully_shard

    with like_fsdp1(module):
        for unit, options in units(module, *args, **kwargs):
            fully_shard(unit, **options)
    return module


net = shard(net)
""".replace("SHARD_\n", SHARD.replace("def shard(", "def shard_("))
)


EXPECTED = {
    **STATEMENTS,
    **TAKEN,
    **{before: (before, SHARD + before.replace("FSDP", "shard")) for before in FUNCTIONS},
}
PROGRAMS = [before for before, _ in EXPECTED.values()]


def behind_imports(text: str) -> str:
    """A program without the statements at its top."""
    end = 0
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            break
        end = node.end_lineno or 0
    return "".join(text.splitlines(keepends=True)[end:]).lstrip("\n")


@pytest.mark.parametrize("name", EXPECTED)
def test_what_takes_its_place(name: str) -> None:
    before, expected = EXPECTED[name]
    _, after = analyse(HEAD + before)
    assert behind_imports(after) == expected
    assert analyse(after)[1] == after  # a second run changes nothing


@pytest.mark.parametrize("form", ["auto", "torch", "bridge"])
@pytest.mark.parametrize("before", PROGRAMS)
def test_every_line_that_changes_has_a_finding(before: str, form: str) -> None:
    every_line_that_changes_has_a_finding(HEAD + before, form)


@pytest.mark.parametrize("before", PROGRAMS)
def test_the_torch_form_lacks_one_line(before: str) -> None:
    """The same program as by default, but for `with like_fsdp1(...)`."""
    before = HEAD + before
    tree = Without().visit(ast.parse(behind_imports(analyse(before)[1])))
    torchs = behind_imports(analyse(before, "torch")[1])
    assert ast.unparse(tree) == ast.unparse(ast.parse(torchs))
    assert analyse(torchs, "torch")[1] == torchs


class Without(ast.NodeTransformer):
    """Takes `with like_fsdp1(...)` away."""

    def visit_With(self, node: ast.With) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        return node.body if "like_fsdp1" in ast.unparse(node.items[0]) else node


@pytest.mark.parametrize("step", ["  ", "\t", "        "])
def test_what_is_new_is_indented_as_the_file_is(step: str) -> None:
    lines = ["if net:", f"{step}net = FSDP(net, **config)", "return net"]
    _, after = analyse(HEAD + "def build(net):\n" + "".join(f"{step}{line}\n" for line in lines))
    lines[1:2] = [
        f"{step}with like_fsdp1(net):",
        f"{step * 2}for module, options in units(net, **config):",
        f"{step * 3}fully_shard(module, **options)",
    ]
    assert after.endswith("def build(net):\n" + "".join(f"{step}{line}\n" for line in lines))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    "text",
    [
        "net = FSDP(net)\n",
        "nets = [FSDP(net)]\n",
        "net = FSDP(\n    net,  # why\n    **options,\n)\n",
    ],
)
def test_line_ends_stay(end: str, text: str) -> None:
    _, after = analyse((HEAD + text).replace("\n", end))
    assert after.replace(end, "\n") == analyse(HEAD + text)[1]
    assert end == "\n" or "\n" not in after.replace(end, "")


@pytest.mark.parametrize("form", ["auto", "torch"])
def test_names_that_are_written_out(form: str) -> None:
    text = (
        "import torch\nimport torch.distributed.fsdp\n\n\ndef build(net):\n"
        "    return torch.distributed.fsdp.FullyShardedDataParallel(\n"
        "        net, sharding_strategy=torch.distributed.fsdp.ShardingStrategy.HYBRID_SHARD\n    )\n"
    )
    _, after = analyse(text, form)
    assert "torch.distributed.fsdp.FullyShardedDataParallel" not in after
    assert "sharding_strategy=fsdp_migrate.runtime.ShardingStrategy.HYBRID_SHARD" in after
    assert "import torch.distributed, fsdp_migrate.runtime\n" in after


def test_each_constructor_is_decided_by_itself(tmp_path: Path) -> None:
    """A subclass, and code that looks for the wrapper of another program, keep nothing else on the bridge."""
    train = f"{HEAD}class Own(FSDP): ...\n\n\nteacher = Own(Net())\nstudent = FSDP(Net())\n"
    program = analysed(tmp_path, {"train.py": train, "model.py": "class Net: ...\n"})
    actions = [f.action.value for f in program.findings if f.code == "FSDP002"]
    assert actions == ["runtime", "rewrite"]
    assert (
        "teacher = Own(Net())\nstudent = Net()\nwith like_fsdp1(student):\n"
        in program.after["train.py"]
    )


DEEP = """\
from contextlib import ExitStack
from dataclasses import dataclass, field
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig

@dataclass
class State:
    model: object = None
    config: object = field(default_factory=lambda: FullOptimStateDictConfig(rank0_only=True))

    def save(self):
        with ExitStack() as stack:
            stack.enter_context(FSDP.state_dict_type(
                self.model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=True), self.config
            ))
            return self.model.state_dict()

state = State()
state.model = FSDP(torch.nn.Linear(2, 2))
state = State(model=state.model)
"""


@pytest.mark.parametrize("form", ["auto", "torch"])
def test_a_field_that_is_made_of_itself_ends(form: str, tmp_path: Path) -> None:
    """Its model was once followed back to itself without end."""
    (tmp_path / "train.py").write_text(DEEP)
    report = engine.analyse([tmp_path / "train.py"], Options(form=form))
    assert not report.errors
    assert b"fully_shard(state.model)" in report.changes[0].after
