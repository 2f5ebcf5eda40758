"""How a constructor is written on FSDP2: statements in its place, or a function where there is no room for them."""

import ast
from pathlib import Path

import pytest

from .programs import analysed, table
from .test_examples import analyse, every_line_that_changes_has_a_finding

HEAD = """\
import functools
import torch.nn as nn
from model import Block, Net
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, enable_wrap, wrap


"""
# Programs behind their imports, and what they become.
EXPECTED = table(
    """\
=== the same name
net = FSDP(net)
---
# Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
with like_fsdp1(net):
    fully_shard(net)
=== another name
sharded = FSDP(net)
---
# Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
with like_fsdp1(net):
    sharded = fully_shard(net)
=== an attribute
class T:
    def wrap(self):
        self.model = FSDP(self.model)
---
class T:
    def wrap(self):
        # Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
        with like_fsdp1(self.model):
            fully_shard(self.model)
=== a subscript
nets['actor'] = FSDP(nets['actor'])
---
# Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
with like_fsdp1(nets['actor']):
    fully_shard(nets['actor'])
=== returned, made in the call
def build():
    return FSDP(Net())
---
def build():
    model = Net()
    # Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
    with like_fsdp1(model):
        return fully_shard(model)
=== a result that nothing keeps
def build(net):
    FSDP(net, use_orig_params=True)
---
def build(net):
    # Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
    with like_fsdp1(net):
        fully_shard(net)
=== module by its name, read by units
net = FSDP(sharding_strategy=config.s, module=net)
---
mesh = None
if config.s in (
    ShardingStrategy.NO_SHARD,
    ShardingStrategy.HYBRID_SHARD,
    ShardingStrategy._HYBRID_SHARD_ZERO2,
):
    shards = torch.cuda.device_count()
    if config.s is ShardingStrategy.NO_SHARD:
        shards = 1
    mesh = init_device_mesh(
        "cuda",
        (torch.distributed.get_world_size() // shards, shards),
        mesh_dim_names=("replicate", "shard"),
    )
# Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
with like_fsdp1(net):
    fully_shard(net, mesh=mesh)
=== names that the loop takes
def build(module, options):
    module = FSDP(module, **options)
    return module
---
def build(module, options):
    # Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
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
    # Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
    with like_fsdp1(model_):
        return fully_shard(model_)
=== former names
net = FSDP(net, fsdp_auto_wrap_policy=policy, ignored_parameters=None)
---
# Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
with like_fsdp1(net):
    for module in reversed(list(net.modules())[1:]):
        if policy(module=module, recurse=False, nonwrapped_numel=0):
            fully_shard(module)
    fully_shard(net)
=== several lines, in their own layout
net = FSDP(
        net,
        auto_wrap_policy=make(
            1),  # by size
    sharding_strategy=s)
---
# by size
auto_wrap_policy = make(1)
reshard_after_forward = s not in (
    ShardingStrategy.SHARD_GRAD_OP,
    ShardingStrategy._HYBRID_SHARD_ZERO2,
)
mesh = None
if s in (
    ShardingStrategy.NO_SHARD,
    ShardingStrategy.HYBRID_SHARD,
    ShardingStrategy._HYBRID_SHARD_ZERO2,
):
    shards = torch.cuda.device_count()
    if s is ShardingStrategy.NO_SHARD:
        shards = 1
    mesh = init_device_mesh(
        "cuda",
        (torch.distributed.get_world_size() // shards, shards),
        mesh_dim_names=("replicate", "shard"),
    )
# Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
with like_fsdp1(net):
    for module in reversed(list(net.modules())[1:]):
        if auto_wrap_policy(module=module, recurse=False, nonwrapped_numel=0):
            fully_shard(module, reshard_after_forward=reshard_after_forward, mesh=mesh)
    fully_shard(net, mesh=mesh)
=== comments stay at arguments, but for those of arguments that are removed
net = FSDP(
    net,  # on the CPU
    # less memory
    cpu_offload=None,
    use_orig_params=True,  # for the decay
)  # done
---
# on the CPU
# Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
with like_fsdp1(net):
    fully_shard(net)  # done
=== a comment above
# shard it
net = FSDP(net)
---
# shard it
# Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
with like_fsdp1(net):
    fully_shard(net)
=== a star behind the model
net = FSDP(net, *arguments)
---
# Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
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


model = Net()
# Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
with like_fsdp1(model):
    fully_shard(model)
nets = [model]
=== its name is taken where it is used
def build(shard):
    return shard, FSDP(Net())
---
def build(shard):
    model = Net()
    # Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
    with like_fsdp1(model):
        fully_shard(model)
    return shard, model
=== units is taken
units = 8
net = FSDP(net, **options)
---
units = 8


def shard(module, *args, **kwargs):
    \"\"\"Shards a module with FSDP1's arguments, in place.\"\"\"
    from fsdp_migrate.runtime import units

    # Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
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

    # Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
    with like_fsdp1(module):
        for unit, options in units(module, *args, **kwargs):
            fully_shard(unit, **options)
    return module


net = shard(net)
=== in a dictionary
def build(net):
    # sharded
    return {'net': FSDP(net)}
---
def build(net):
    # sharded
    # Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
    with like_fsdp1(net):
        fully_shard(net)
    return {'net': net}
=== arguments that change with each call
nets = [FSDP(Net(low), cpu_offload=CPUOffload(low)) for low in lows]
---
def shard(module, *args, **kwargs):
    \"\"\"Shards a module with FSDP1's arguments, in place.\"\"\"
    # Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
    with like_fsdp1(module):
        for unit, options in units(module, *args, **kwargs):
            fully_shard(unit, **options)
    return module


nets = [shard(Net(low), cpu_offload=CPUOffload(low)) for low in lows]
=== in a lambda
make = lambda net: FSDP(net)
---
def shard(model):
    \"\"\"Shards a model in place, and returns it.\"\"\"
    # Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
    with like_fsdp1(model):
        fully_shard(model)
    return model


make = lambda net: shard(net)
=== under a condition
net = FSDP(net) if sharded else net
---
if sharded:
    # Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
    with like_fsdp1(net):
        fully_shard(net)
=== a method of the result
net = FSDP(Net()).cuda()
---
model = Net()
# Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
with like_fsdp1(model):
    fully_shard(model)
net = model.cuda()
=== two names
a = b = FSDP(Net())
---
model = Net()
# Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
with like_fsdp1(model):
    a = b = fully_shard(model)
=== a call in the target
nets[pick()] = FSDP(Net())
---
model = Net()
# Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
with like_fsdp1(model):
    nets[pick()] = fully_shard(model)
=== a name within an expression
if (net := FSDP(Net())) is not None:
    pass
---
def shard(model):
    \"\"\"Shards a model in place, and returns it.\"\"\"
    # Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
    with like_fsdp1(model):
        fully_shard(model)
    return model


if (net := shard(Net())) is not None:
    pass
=== an annotation
net: nn.Module = FSDP(Net())
---
net = Net()
# Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
with like_fsdp1(net):
    fully_shard(net)
=== two statements in one line
net = Net(); net = FSDP(net)
---
def shard(model):
    \"\"\"Shards a model in place, and returns it.\"\"\"
    # Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
    with like_fsdp1(model):
        fully_shard(model)
    return model


net = Net(); net = shard(net)
=== an argument of another call
train(FSDP(module=Net()))
---
model = Net()
# Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
with like_fsdp1(model):
    fully_shard(model)
train(model)
=== nothing but a star
net = FSDP(*arguments)
---
def shard(module, *args, **kwargs):
    \"\"\"Shards a module with FSDP1's arguments, in place.\"\"\"
    # Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
    with like_fsdp1(module):
        for unit, options in units(module, *args, **kwargs):
            fully_shard(unit, **options)
    return module


net = shard(*arguments)
=== a partial
build = functools.partial(FSDP, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
net = build(Net())
---
def build(model):
    \"\"\"Shards a model in place, and returns it.\"\"\"
    # Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
    with like_fsdp1(model):
        fully_shard(model, reshard_after_forward=False)
    return model


net = build(Net())
=== enable_wrap
with enable_wrap(wrapper_cls=FSDP, use_orig_params=True):
    net.head = wrap(net.head)
    net = wrap(net)
---
def shard(model):
    \"\"\"Shards a model in place, and returns it.\"\"\"
    # Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
    with like_fsdp1(model):
        fully_shard(model)
    return model


with enable_wrap(wrapper_cls=shard):
    net.head = wrap(net.head)
    net = wrap(net)
=== in two functions
def one():
    return [FSDP(Net())]


def two():
    return [FSDP(Net(), use_orig_params=True)]
---
def one():
    model = Net()
    # Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
    with like_fsdp1(model):
        fully_shard(model)
    return [model]


def two():
    model = Net()
    # Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
    with like_fsdp1(model):
        fully_shard(model)
    return [model]
=== a comment in an expression
nets = [FSDP(Net(),  # this one
    auto_wrap_policy=ModuleWrapPolicy({Block}))]
---
# this one
model = Net()
# Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
with like_fsdp1(model):
    for module in reversed(list(model.modules())):
        if isinstance(module, Block):
            fully_shard(module)
    fully_shard(model)
nets = [model]
=== a builtin is taken
def build(net, list):
    net = FSDP(net, auto_wrap_policy=ModuleWrapPolicy({Block}))
    return net, list
---
def shard(module, *args, **kwargs):
    \"\"\"Shards a module with FSDP1's arguments, in place.\"\"\"
    # Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
    with like_fsdp1(module):
        for unit, options in units(module, *args, **kwargs):
            fully_shard(unit, **options)
    return module


def build(net, list):
    net = shard(net, auto_wrap_policy=ModuleWrapPolicy({Block}))
    return net, list
"""
)
EXPECTED["the end of a file without a line break"] = tuple(
    part.removesuffix("\n") for part in EXPECTED["the same name"]
)
# In torch's form these stay, and their finding says why.
WITHOUT_WORDS = (
    "names that the loop takes",
    "a star behind the model",
    "units is taken",
    "fully_shard is taken",
    "nothing but a star",
    "a builtin is taken",
)
# In torch's form these need no statement, as fully_shard returns the model.
EXPRESSIONS = {
    "in a lambda": "make = lambda net: fully_shard(net)\n",
    "a name within an expression": "if (net := fully_shard(Net())) is not None:\n    pass\n",
    "a partial": "build = functools.partial(fully_shard, reshard_after_forward=False)\nnet = build(Net())\n",
    "enable_wrap": "net.head = fully_shard(net.head)\nnet = fully_shard(net)\n",
    "two statements in one line": "net = Net(); net = fully_shard(net)\n",
    "arguments that change with each call": "nets = [fully_shard(Net(low), offload_policy=CPUOffloadPolicy() if low "
    "else OffloadPolicy()) for low in lows]\n",
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


@pytest.mark.parametrize("name", EXPECTED)
def test_the_torch_form_lacks_one_line(name: str) -> None:
    """The same program as by default, but for `with like_fsdp1(...)`, or an expression."""
    before, _ = EXPECTED[name]
    found, after = analyse(HEAD + before, "torch")
    torchs = behind_imports(after)
    if name in WITHOUT_WORDS:
        assert torchs == before
        assert [f.action.value for f in found.findings if f.code == "FSDP002"] == ["manual"]
    elif name in EXPRESSIONS:
        assert torchs == EXPRESSIONS[name]
    else:
        tree = Without().visit(ast.parse(behind_imports(analyse(HEAD + before)[1])))
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
        f"{step}# Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go",
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
    assert "FullyShardedDataParallel" not in after
    assert "ShardingStrategy" not in after
    assert "(torch.distributed.get_world_size() // per_node, per_node)" in after


def test_each_constructor_is_decided_by_itself(tmp_path: Path) -> None:
    """A subclass, and code that looks for the wrapper of another program, keep nothing else on the bridge."""
    train = f"{HEAD}class Own(FSDP): ...\n\n\nteacher = Own(Net())\nstudent = FSDP(Net())\n"
    program = analysed(tmp_path, {"train.py": train, "model.py": "class Net: ...\n"})
    actions = [f.action.value for f in program.findings if f.code == "FSDP002"]
    assert actions == ["runtime", "rewrite"]
    assert (
        "teacher = Own(Net())\nstudent = Net()\n# Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go\n"
        "with like_fsdp1(student):\n" in program.after["train.py"]
    )
