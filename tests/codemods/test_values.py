"""What a run recorded makes plain what no file shows: for that configuration, with checks in the program's own terms."""

from __future__ import annotations

import ast
import json
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.cli import exit_code
from fsdp_migrate.discover import discover
from fsdp_migrate.engine import analyse
from fsdp_migrate.exit_codes import Unusable
from fsdp_migrate.report import Report
from fsdp_migrate.settings import Options
from fsdp_migrate.values import read

MODEL = """\
import torch.nn as nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, x):
        return self.blocks(x)
"""
TRAIN = """\
import torch
from model import Net
from options import make_policy
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(cfg):
    model = Net()
    model = FSDP(
        model,
        sharding_strategy=cfg.strategy,
        auto_wrap_policy=make_policy(cfg),
    )
    optimizer = torch.optim.AdamW(model.parameters())
    return optimizer
"""
OPTIONS = """\
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy


def make_policy(options):
    return size_based_auto_wrap_policy if options.wrap == "size" else None
"""
FACTS = {
    "model": "model.Net",
    "meta": False,
    "batch_norm": [],
    "buffers": False,
    "parameters_held": False,
    "units": {"model.Block": ["blocks.*"]},
    "all_of_classes": True,
    "root_is_alike": False,
    "device_type": "cuda",
    "shard_ranks": 2,
    "other_options": [],
}
ARGUMENTS = {
    "sharding_strategy": "ShardingStrategy.SHARD_GRAD_OP",
    "auto_wrap_policy": "<function make_policy.<locals>.policy>",
}
NAMES = {"cfg.strategy": "ShardingStrategy.SHARD_GRAD_OP", "cfg.wrap": "'size'"}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program whose strategy and policy come from a configuration."""
    for name, text in {"train.py": TRAIN, "model.py": MODEL, "options.py": OPTIONS}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def recorded(program: Path, name: str = "run.json", function: str = "FSDP", **changes: Any) -> Path:
    """A recording of the program's one constructor; `changes` replace what it says."""
    text = (program / "train.py").read_text()
    call = next(
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == function
    )
    entry = {
        "call": "FullyShardedDataParallel",
        "file": "train.py",
        "line": call.lineno,
        "end_line": call.end_lineno,
        "end_column": (call.end_col_offset or 0) + 1,
        "function": "main",
        "times": 2,
        "arguments": ARGUMENTS,
        "names": NAMES,
        **FACTS,
        **changes,
    }
    files = {n: sha256((program / n).read_bytes()).hexdigest() for n in ("train.py", "model.py")}
    document = {"version": 1, "files": files, "constructs": [entry]}
    (program / name).write_text(json.dumps(document))
    return program / name


def analysed(program: Path, *recordings: Path) -> Report:
    values = read(recordings) if recordings else None
    return analyse(discover([program]), Options(values=values))


def after(program: Path, *recordings: Path) -> str:
    """The constructor's function after the migration."""
    report = analysed(program, *recordings)
    assert not report.errors
    changed = {change.path.name: change.after.decode() for change in report.changes}
    return changed["train.py"].partition("model = Net()\n")[2].partition("    optimizer")[0]


def reason(program: Path, *recordings: Path) -> str:
    """Why the constructor stays on the bridge."""
    found = [f for f in analysed(program, *recordings).findings if f.code == "FSDP002"]
    return found[0].message


def test_without_a_recording_the_finding_says_how_to_get_one(program: Path) -> None:
    assert "record a run with `fsdp-migrate values`" in reason(program)


def test_recorded_values_are_plain_and_checked(program: Path) -> None:
    text = after(program, recorded(program))
    assert text == (
        "    # As a run recorded: sharding_strategy=SHARD_GRAD_OP, units by class\n"
        '    assert cfg.strategy.name == "SHARD_GRAD_OP"\n'
        '    assert cfg.wrap == "size"\n'
        "    for module in reversed(list(model.modules())):\n"
        "        if isinstance(module, Block):\n"
        "            fully_shard(module, reshard_after_forward=False)\n"
        "    fully_shard(model, reshard_after_forward=False)\n"
    )
    changed = analysed(program, recorded(program)).changes
    train = next(c.after.decode() for c in changed if c.path.name == "train.py")
    assert "from model import Block, Net\n" in train


def test_units_that_are_no_class_are_named(program: Path) -> None:
    facts = {"units": {"model.Block": ["blocks.0"]}, "all_of_classes": False}
    text = after(program, recorded(program, **facts))
    assert (
        "    fully_shard(model.blocks[0], reshard_after_forward=False)\n    fully_shard(model"
        in text
    )
    facts = {"units": {"torch.nn.Linear": ["blocks.0.linear"], "model.Block": ["blocks.*"]}}
    text = after(program, recorded(program, **facts, all_of_classes=False))
    assert (
        "    for module in (model.blocks[0].linear, *model.blocks):\n"
        "        fully_shard(module, reshard_after_forward=False)\n"
    ) in text
    text = after(program, recorded(program, all_of_classes=False))
    assert "    for module in model.blocks:\n        fully_shard(module, resh" in text


def test_units_without_a_check_are_said_to_have_none(program: Path) -> None:
    (program / "train.py").write_text(TRAIN.replace("make_policy(cfg)", "make_policy([])"))
    found = analysed(program, recorded(program)).findings
    assert "not checked when the program runs" in "".join(
        f.message for f in found if f.code == "FSDP152"
    )


def test_values_that_differ_stay_on_the_bridge(program: Path) -> None:
    """Between ranks or calls, which the recording says itself, or between runs."""
    differs = {"sharding_strategy": ["ShardingStrategy.FULL_SHARD", "ShardingStrategy.NO_SHARD"]}
    found = recorded(program, arguments={}, differs=differs)
    assert "FULL_SHARD and ShardingStrategy.NO_SHARD" in reason(program, found)
    one = recorded(program, "one.json")
    other = {**ARGUMENTS, "sharding_strategy": "ShardingStrategy.FULL_SHARD"}
    two = recorded(program, "two.json", arguments=other)
    assert "differed between" in reason(program, one, two)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"parameters_held": True}, "held the model's parameters"),
        ({"other_options": ["blocks.0"]}, "blocks.0 options of its own"),
        ({"arguments": {**ARGUMENTS, "ignored_modules": "[<Linear>]"}}, "ignored_modules"),
        ({"hidden_outputs": ["model.Output"]}, "returns model.Output"),
        ({"meta": True, "units": {"model.Block": ["a", "a.b"]}}, "inside another"),
    ],
    ids=[
        "an optimizer from before",
        "units of their own",
        "an argument of the runtime's",
        "an output of a class of its own",
        "nested units on meta",
    ],
)
def test_what_a_run_shows_against_it_keeps_the_bridge(
    changes: dict[str, Any], expected: str, program: Path
) -> None:
    if "arguments" in changes:
        text = TRAIN.replace("model,\n", "model,\n        ignored_modules=cfg.frozen,\n")
        (program / "train.py").write_text(text)
    assert expected in reason(program, recorded(program, **changes))


def test_a_value_that_cannot_be_checked_stays_on_the_bridge(program: Path) -> None:
    text = TRAIN.replace("=cfg.strategy", "=choose()").replace("main(cfg)", "main(cfg, choose)")
    (program / "train.py").write_text(text)
    assert "sharding_strategy" in reason(program, recorded(program))


@pytest.mark.parametrize("name", ["train.py", "model.py"])
def test_a_file_that_changed_since_is_refused(name: str, program: Path) -> None:
    recording = recorded(program)
    with (program / name).open("a") as file:
        file.write("\n# later\n")
    report = analysed(program, recording)
    assert [(Path(p.path).name, "record them again" in p.message) for p in report.errors] == [
        (name, True)
    ]
    assert "assert" not in "".join(change.after.decode() for change in report.changes)


@pytest.mark.parametrize("text", ["{}", "no json", '{"version": 2}'])
def test_what_is_no_recording_is_a_wrong_usage(text: str, program: Path) -> None:
    file = program / "run.json"
    file.write_text(text)
    with pytest.raises(Unusable, match=r"run\.json: "):
        read([file])
    assert exit_code([str(program), "--diff", "--values", str(file)]) == 2


def test_a_configuration_of_the_object_is_checked_through_it(program: Path) -> None:
    """In a class: what a function of the program makes of it may depend on more, so it is asked again."""
    text = """\
from model import Net
from options import choose
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.model = FSDP(Net(), sharding_strategy=choose(self.cfg["fsdp"]))
"""
    (program / "train.py").write_text(text)
    (program / "options.py").write_text(
        "def choose(options):\n    return options.table[options.kind]\n"
    )
    names = {"self.cfg.fsdp.kind": "'zero2'", "self.cfg.fsdp.steps": "3"}
    changed = analysed(program, recorded(program, names=names, units={})).changes
    check = '        assert choose(self.cfg["fsdp"]).name == "SHARD_GRAD_OP"\n'
    assert check in changed[0].after.decode()

    # Its class is all that calls the method.
    started = f'{text}\n\nif __name__ == "__main__":\n    Trainer(load())\n'
    (program / "train.py").write_text(started)
    changed = analysed(program, recorded(program, names=names, units={})).changes
    assert check in changed[0].after.decode()


def test_what_is_unpacked_is_checked_by_its_key(program: Path) -> None:
    text = TRAIN.replace("sharding_strategy=cfg.strategy", "**cfg.options")
    (program / "train.py").write_text(text)
    assert after(program, recorded(program)).startswith(
        "    # As a run recorded: sharding_strategy=SHARD_GRAD_OP, units by class\n"
        '    assert set(cfg.options) <= {"sharding_strategy"}\n'
        '    assert cfg.options["sharding_strategy"].name == "SHARD_GRAD_OP"\n'
    )


def test_what_a_call_gives_gets_a_name(program: Path) -> None:
    text = TRAIN.replace("sharding_strategy=cfg.strategy", "**cfg.options(options=1)")
    (program / "train.py").write_text(text)
    arguments = {**ARGUMENTS, "limit_all_gathers": "False", "forward_prefetch": "True"}
    assert after(program, recorded(program, arguments=arguments)).startswith(
        "    options = cfg.options(options=1)\n"
        "    # As a run recorded: sharding_strategy=SHARD_GRAD_OP, units by class\n"
        "    assert set(options) <= {\n"
        '        "forward_prefetch",\n        "limit_all_gathers",\n        "sharding_strategy",\n    }\n'
        '    assert options["sharding_strategy"].name == "SHARD_GRAD_OP"\n'
        '    assert cfg.wrap == "size"\n'
        "    for module in"
    )
    second = text.replace("**cfg.options", "**cfg.more, **cfg.options")
    (program / "train.py").write_text(second)
    assert "unpacked from several places" in reason(program, recorded(program))


def test_names_of_fsdp1_in_what_is_checked_are_imported(program: Path) -> None:
    by_name = "sharding_strategy=ShardingStrategy[name_of()]"
    unpacked = '**cfg.options(strategy=ShardingStrategy["SHARD_GRAD_OP"])'
    imported = "FullyShardedDataParallel as FSDP, ShardingStrategy"
    made = "\n\ndef name_of():\n    return 'SHARD_GRAD_OP'\n"
    for given in (by_name, unpacked):
        text = TRAIN.replace("sharding_strategy=cfg.strategy", given) + made
        text = text.replace("FullyShardedDataParallel as FSDP", imported)
        (program / "train.py").write_text(text)
        changes = analysed(program, recorded(program, names={"cfg.wrap": "'size'"})).changes
        train = next(each.after for each in changes if each.path.name == "train.py")
        assert b"import ShardingStrategy\n" in train
        assert b"FSDP(" not in train


WRAPPED = """\
from model import Net
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import enable_wrap, wrap


def build():
    return wrap(Net())


def main(cfg):
    with enable_wrap(wrapper_cls=FSDP, sharding_strategy=cfg.strategy):
        model = build()
        model.eval()
    return model
"""
BY_WRAP: dict[str, Any] = {
    "function": "wrap",
    "arguments": {"sharding_strategy": "ShardingStrategy.SHARD_GRAD_OP"},
    "units": {},
}


def test_wrap_in_a_function_is_plain_where_it_runs_under_enable_wrap_alone(program: Path) -> None:
    (program / "train.py").write_text(WRAPPED)
    changes = analysed(program, recorded(program, **BY_WRAP)).changes
    text = next(c.after.decode() for c in changes if c.path.name == "train.py")
    assert text.partition("import Net\n")[2] == (
        "from torch.distributed.fsdp import fully_shard\n\n\n"
        "def build():\n    return fully_shard(Net(), reshard_after_forward=False)\n\n\n"
        "def main(cfg):\n    # As a run recorded: sharding_strategy=SHARD_GRAD_OP\n"
        '    assert cfg.strategy.name == "SHARD_GRAD_OP"\n'
        "    model = build()\n    model.eval()\n    return model\n"
    )


def test_wrap_in_a_generator_runs_where_that_is(program: Path) -> None:
    in_generator = WRAPPED.replace("model = build()", "model = Many(build() for _ in range(2))")
    (program / "train.py").write_text(in_generator)
    assert "becomes fully_shard" in reason(program, recorded(program, **BY_WRAP))


@pytest.mark.parametrize(
    "text",
    [
        f"{WRAPPED}\n\nother = build()\n",
        f"{WRAPPED}\n\nbuilders = [build]\n",
        WRAPPED.replace("def build", "@register\ndef build"),
    ],
    ids=["called elsewhere", "handed on", "registered"],
)
def test_wrap_in_a_function_that_has_other_uses_stays(text: str, program: Path) -> None:
    (program / "train.py").write_text(text)
    assert "where enable_wrap is not around it" in reason(program, recorded(program, **BY_WRAP))


def test_batch_norm_is_a_unit_in_full_precision(program: Path) -> None:
    text = TRAIN.replace("        auto", "        mixed_precision=choose(cfg.kind),\n        auto")
    (program / "train.py").write_text("from options import choose\n" + text)
    with (program / "options.py").open("a") as file:
        file.write("\n\ndef choose(kind):\n    return TABLE[kind]\n")
    precise = {**ARGUMENTS, "mixed_precision": "MixedPrecision(param_dtype=torch.bfloat16)"}
    norms = {"batch_norm": ["bn"], "other_options": ["bn"]}
    units = {"torch.nn.BatchNorm1d": ["bn"], "torch.nn.Linear": ["blocks.0.linear"]}
    by_name = {"arguments": precise, "units": units, "all_of_classes": False, **norms}
    names = {**NAMES, "cfg.kind": "'bf16'"}
    found = after(program, recorded(program, names=names, **by_name))
    assert found.partition("model.blocks[0]")[0].endswith(
        "    assert choose(cfg.kind) == MixedPrecision(param_dtype=torch.bfloat16)\n"
        "    # As under FSDP1, the root alone casts its inputs\n"
        "    for module in reversed(list(model.modules())):\n"
        "        if isinstance(module, _BatchNorm):\n"
        "            run_in_full_precision(module)\n"
        "            fully_shard(module, reshard_after_forward=False)\n"
        "    fully_shard(\n        "
    )
    types = "param_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16, cast_forward_inputs=True"
    cast = {
        **by_name,
        "buffers": True,
        "arguments": {**precise, "mixed_precision": f"MixedPrecision({types})"},
    }
    found = after(program, recorded(program, names=names, **cast))
    assert found.partition("cast_forward_inputs=True,\n    )\n")[2] == (
        "    cast_buffers(model, torch.bfloat16, keep_classes=[_BatchNorm])\n"
        "    mp_policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)\n"
        "    for module in reversed(list(model.modules())):\n"
        "        if isinstance(module, _BatchNorm):\n"
        "            run_in_full_precision(module)\n"
        "            fully_shard(module, reshard_after_forward=False)\n"
        "    fully_shard(\n        model.blocks[0].linear, mp_policy=mp_policy, reshard_after_forward=False\n    )\n"
        "    fully_shard(model, mp_policy=mp_policy, reshard_after_forward=False)\n"
    )
    by_name["other_options"] = ["bn", "blocks.0.linear"]
    assert "options of its own" in reason(program, recorded(program, names=names, **by_name))


def test_a_method_that_ran_on_a_model_was_one_of_a_model(program: Path) -> None:
    text = TRAIN + (
        "\n\ndef step(engine):\n    for part in engine.parts:\n        part.clip_grad_norm_(1.0)\n"
        "\n\nsteps = [step]\n"
    )
    (program / "train.py").write_text(text)
    one = recorded(program)
    assert "may clip by FSDP1's own" in reason(program, one)
    document = json.loads(one.read_text())
    line = text.splitlines().index("        part.clip_grad_norm_(1.0)") + 1
    place = {"call": "clip_grad_norm_", "file": "train.py", "line": line, "function": "step"}
    place |= {"end_line": line, "end_column": 34, "times": 2, "arguments": {}, "names": {}}
    document["constructs"].append(place)
    one.write_text(json.dumps(document))
    changed = analysed(program, one).changes
    train = next(c.after.decode() for c in changed if c.path.name == "train.py")
    assert "        torch.nn.utils.clip_grad_norm_(part.parameters(), 1.0)\n" in train


_OWN = """

class Own({}):
    def __init__(self, module):
        self.module = module

    def step(self):
        return self.module
"""


@pytest.mark.parametrize(
    ("more", "is_plain"),
    [
        ("", True),
        ("\n\ndef other(model):\n    return model.module\n\n\nothers = [other]\n", False),
        ("\nfrom torch.nn.parallel import DistributedDataParallel\n", False),
        (_OWN.format("torch.nn.Module"), False),
        (_OWN.format("object"), True),
    ],
    ids=["the wrapper's", "not reached", "another wrapper", "a module's own", "an object's own"],
)
def test_module_goes_where_a_run_read_it_of_the_wrapper(
    more: str, is_plain: bool, program: Path
) -> None:
    text = TRAIN + "\n\ndef depth(model):\n    return len(model.module.blocks)\n"
    text += f"\n\ndepths = [depth]\n{more}"
    (program / "train.py").write_text(text)
    one = recorded(program)
    assert "reads .module" in reason(program, one)
    document = json.loads(one.read_text())
    line = text.splitlines().index("    return len(model.module.blocks)") + 1
    place = {"call": "module", "file": "train.py", "line": line, "function": "depth", "times": 2}
    place |= {"end_line": line, "end_column": 28, "arguments": {}, "names": {}}
    document["constructs"].append({**place, "of_wrapper": True})
    one.write_text(json.dumps(document))
    changed = analysed(program, one).changes
    train = next(c.after.decode() for c in changed if c.path.name == "train.py")
    assert ("    return len(model.blocks)\n" in train) is is_plain
    document["constructs"].append({**place, "of_wrapper": False})  # another module, in the same run
    one.write_text(json.dumps(document))
    assert "reads .module" in reason(program, one)
    assert ("fully_shard(model" in train) is is_plain


NAMED = "    param_init_fn = cfg.init or None\n"
DEFINED = """
    def param_init_fn(m):
        return m.to_empty(device=cfg.device, recurse=False)

"""


@pytest.mark.parametrize(
    ("function", "above", "seen"),
    [
        ("cfg.init or None", NAMED, {}),
        (
            "lambda m: m.to_empty(device=cfg.device, recurse=False)",
            DEFINED,
            {"param_init_fn": [""]},
        ),
    ],
    ids=["on all ranks", "on some"],
)
def test_a_model_on_meta_gets_its_memory_unit_by_unit(
    function: str, above: str, seen: dict[str, Any], program: Path
) -> None:
    more = f"model,\n        param_init_fn={function},\n        sync_module_states=True,\n"
    (program / "train.py").write_text(TRAIN.replace("model,\n", more))
    arguments = {**ARGUMENTS, "sync_module_states": "True"}
    file = recorded(program, meta=True, arguments=arguments, differs=seen)
    text = after(program, file)
    assert above in text
    assert text.replace(above, "").partition("wrap ==")[2].partition("\n")[2] == (
        "    # Each unit gets its memory just before it is sharded: one at a time is whole\n"
        "    for module in model.modules():\n"
        "        if isinstance(module, Block):\n"
        "            materialize(module, param_init_fn)\n"
        "            broadcast_module_states(module)\n"
        "            fully_shard(module, reshard_after_forward=False)\n"
        "    materialize(model, param_init_fn)\n"
        "    broadcast_module_states(model)\n"
        "    fully_shard(model, reshard_after_forward=False)\n"
    )


def test_the_memory_of_a_unit_with_a_name(program: Path) -> None:
    (program / "train.py").write_text(
        TRAIN.replace("model,\n", "model,\n        param_init_fn=init,\n")
    )
    units = {"units": {"model.Block": ["blocks.0"]}, "all_of_classes": False}
    assert (
        "    for module in (model.blocks[0],):\n        materialize(module, init)\n        fully_shard(module"
    ) in after(program, recorded(program, meta=True, **units))


def test_what_initializes_a_model_may_be_unpacked_and_differ_by_rank(program: Path) -> None:
    call = "FSDP(model, **cfg.options())"
    (program / "train.py").write_text(re.sub(r"FSDP\((?=\n)(.|\n)*?\n    \)", call, TRAIN))
    differs = {"param_init_fn": ["None", "<function init>"], "meta": ["false", "true"]}
    file = recorded(program, differs=differs, arguments={}, names={})
    document = json.loads(file.read_text())
    del document["constructs"][0]["meta"]
    file.write_text(json.dumps(document))
    assert after(program, file).splitlines()[:4] == [
        "    options = cfg.options()",
        '    assert set(options) <= {"param_init_fn"}',
        '    param_init_fn = options["param_init_fn"]',
        "    # Each unit gets its memory just before it is sharded: one at a time is whole",
    ]


def test_the_mesh_counts_ranks_by_a_name_that_the_file_has(program: Path) -> None:
    arguments = {**ARGUMENTS, "sharding_strategy": "ShardingStrategy.NO_SHARD"}
    names = {**NAMES, "cfg.strategy": "ShardingStrategy.NO_SHARD"}
    assert "(torch.distributed.get_world_size(), 1)" in after(
        program, recorded(program, arguments=arguments, names=names)
    )
    (program / "train.py").write_text(
        "import torch.distributed as dist\n" + TRAIN.replace("return", "dist.barrier()\n    return")
    )
    assert "(dist.get_world_size(), 1)" in after(
        program, recorded(program, arguments=arguments, names=names)
    )


def test_buffers_on_meta_are_cast_when_they_have_their_values(program: Path) -> None:
    more = "model,\n        mixed_precision=cfg.precision,\n"
    (program / "train.py").write_text(TRAIN.replace("model,\n", more))
    precision = "MixedPrecision(param_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)"
    arguments = {**ARGUMENTS, "mixed_precision": precision}
    names = {**NAMES, "cfg.precision": "'bf16'"}
    facts = {"meta": True, "buffers": True, "arguments": arguments, "names": names}
    text = after(program, recorded(program, **facts))
    assert "    materialize(model)\n    fully_shard(\n" in text
    assert text.endswith(")\n    cast_buffers(model, torch.bfloat16)\n")
    text = after(program, recorded(program, **facts | {"buffers": False}))
    assert "materialize(model)" in text
    assert "cast_buffers" not in text


@pytest.mark.parametrize("used", [False, True])
def test_ignored_modules_give_their_parameters_where_they_do_nothing_else(
    used: bool, program: Path
) -> None:
    more = "model,\n        ignored_modules=[model.blocks[1]],\n"
    (program / "train.py").write_text(TRAIN.replace("model,\n", more))
    file = recorded(program, ignored_are_used=used, arguments=ARGUMENTS | {"ignored_modules": "[]"})
    if used:
        assert "leaves their buffers and gradients alone" in reason(program, file)
        return
    text = after(program, file)
    assert (
        "ignored_params = {p for module in [model.blocks[1]] for p in module.parameters()}" in text
    )
    assert "fsdp_kwargs = dict(reshard_after_forward=False, ignored_params=ignored_params)" in text


def test_a_model_that_a_call_gives_is_asked_for_once(program: Path) -> None:
    text = TRAIN.replace("        model,\n", "        cfg.parts(model).net,\n")
    (program / "train.py").write_text(text)
    made = after(program, recorded(program))
    assert "    model = cfg.parts(model).net\n" in made
    assert made.count("cfg.parts(") == 1
    assert "(model.modules())" in made


def test_a_model_in_what_is_unpacked_stays(program: Path) -> None:
    text = TRAIN.replace("        model,\n", "        **cfg.more,\n")
    (program / "train.py").write_text(text)
    arguments = {"module": "Net()", **ARGUMENTS}
    assert "the model comes from an unpacked" in reason(
        program, recorded(program, arguments=arguments)
    )


FULL = "ShardingStrategy.FULL_SHARD"
# What each alone takes: a function of several statements.
ALONE: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "a check": (
        "sharding_strategy=cfg.strategy",
        {"arguments": {"sharding_strategy": FULL}, "names": {"cfg.strategy": FULL}},
        ['assert cfg.strategy.name == "FULL_SHARD"'],
    ),
    "units by name": (
        "auto_wrap_policy=make_policy(cfg)",
        {"arguments": {"auto_wrap_policy": "<function>"}, "names": {}, "all_of_classes": False},
        ["for module in model.blocks:", "    fully_shard(module)"],
    ),
    "norms": (
        "mixed_precision=bf16, auto_wrap_policy=make_policy(cfg)",
        {
            "arguments": {"auto_wrap_policy": "<function>", "mixed_precision": "MixedPrecision(param_dtype=torch.bfloat16)"},
            "names": {}, "units": {"torch.nn.BatchNorm1d": ["bn"]}, "batch_norm": ["bn"], "other_options": ["bn"],
        },
        ["for module in reversed(list(model.modules())):", "    if isinstance(module, _BatchNorm):"],
    ),
    "memory for each unit": (
        "param_init_fn=init",
        {"arguments": {"param_init_fn": "<function init>"}, "names": {}, "units": {}, "meta": True},
        ["materialize(model, init)"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ALONE)
def test_a_call_on_the_line_of_its_if_becomes_one_of_a_function(name: str, program: Path) -> None:
    given, changes, expected = ALONE[name]
    text = re.sub(
        r"model = FSDP\((?=\n)(.|\n)*?\n    \)", f"if cfg: model = FSDP(model, {given})", TRAIN
    )
    text = text.replace("as FSDP", "as FSDP, MixedPrecision").replace(
        "import Net", "import Net, init"
    )
    text = text.replace("def main", "bf16 = MixedPrecision(torch.bfloat16)\n\n\ndef main")
    (program / "train.py").write_text(text)
    made = after(program, recorded(program, **changes))
    assert made.endswith("    if cfg: model = shard(model)\n")
    for line in expected:
        assert f"        {line}\n" in made.partition("    def shard(model):\n")[2]


PRECISE = {"mixed_precision": "MixedPrecision(param_dtype=torch.bfloat16)"}
IS_PRECISE = "MixedPrecision(param_dtype=torch.bfloat16)"


@pytest.mark.parametrize(
    ("value", "check"),
    [
        ("policies(cfg)", f"policies(cfg) == {IS_PRECISE}"),
        ("precise if cfg.wrap else None", f"(precise if cfg.wrap else None) == {IS_PRECISE}"),
        ("cfg.precision", f"cfg.precision == {IS_PRECISE}"),
        ("policies[cfg.dtype]", 'cfg.dtype == "bfloat16"'),
    ],
    ids=["a function of the program", "a local name", "a field", "what it is computed from"],
)
def test_an_option_is_compared_where_its_sources_may_not_say_all(
    value: str, check: str, program: Path
) -> None:
    text = TRAIN.replace("model = Net()", "precise = policies(cfg)\n    model = Net()")
    text = text.replace("        auto", f"        mixed_precision={value},\n        auto")
    text = f"from options import policies\n{text}"
    (program / "train.py").write_text(text)
    with (program / "options.py").open("a") as file:
        file.write("\n\ndef policies(cfg):\n    return TABLE[cfg.dtype] if supported() else None\n")
    names = {**NAMES, "cfg.dtype": "'bfloat16'"}
    found = recorded(program, arguments={**ARGUMENTS, **PRECISE}, names=names)
    assert f"    assert {check}\n" in after(program, found)
    report = analysed(program, found)
    changed = next(c.after.decode() for c in report.changes if c.path.name == "train.py")
    assert ("import MixedPrecision\n" in changed) is (IS_PRECISE in check)


def test_an_option_that_has_no_name_in_the_file_stays_on_the_bridge(program: Path) -> None:
    text = TRAIN.replace("        auto", "        mixed_precision=cfg.precision,\n        auto")
    (program / "train.py").write_text(f"{text}\n\nclass MixedPrecision:\n    pass\n")
    found = recorded(program, arguments={**ARGUMENTS, **PRECISE})
    assert "mixed_precision was" in reason(program, found)


NAMED_CLASS = """\
import functools

import torch
from model import Net
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy


def class_named(model, name):
    for module in model.modules():
        if module.__class__.__name__ == name:
            return module.__class__


def main(cfg, network):
    block = class_named(network, cfg.block)
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={block})
    model = Net()
    model = FSDP(network, auto_wrap_policy=policy, sharding_strategy=cfg.strategy)
    optimizer = torch.optim.AdamW(model.parameters())
    return optimizer
"""


def test_a_class_that_the_program_looks_up_stays_looked_up(program: Path) -> None:
    """Before it wraps the model, where the names of classes are their own."""
    (program / "train.py").write_text(NAMED_CLASS)
    text = after(program, recorded(program))
    assert "        if isinstance(module, block):\n" in text
    assert "units" not in text
    later = NAMED_CLASS.replace(
        "    return optimizer", "    return optimizer, class_named(model, 1)"
    )
    (program / "train.py").write_text(later)
    assert "compares or names a class" in reason(program, recorded(program))


def test_a_model_with_values_needs_no_function_that_makes_them(program: Path) -> None:
    function = "init if cfg.wrap == 'size' and cfg.rank else None"
    more = f"model,\n        param_init_fn={function},\n"
    (program / "train.py").write_text(TRAIN.replace("model,\n", more))
    arguments = {**ARGUMENTS, "param_init_fn": "None"}
    text = after(program, recorded(program, arguments=arguments))
    assert "materialize" not in text
    assert '    assert cfg.wrap == "size"\n' in text
    text = after(program, recorded(program, arguments=arguments, meta=True))
    assert "materialize(module, param_init_fn)\n" in text


NESTED = """\
import torch
from model import Net
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


def main(load, shard):
    precise = MixedPrecision(param_dtype=torch.bfloat16)
    model = Net()
    model = FSDP(load(model), mixed_precision=precise)
    shard(load, model)
    optimizer = torch.optim.AdamW(model.parameters())
    return Net(model)
"""


@pytest.mark.parametrize(
    ("has_units", "is_plain"),
    [({}, False), ({"has_units": True}, False), ({"has_units": False}, True)],
)
def test_a_run_shows_that_no_constructor_wraps_a_part_of_another(
    has_units: dict[str, bool], is_plain: bool, program: Path
) -> None:
    (program / "train.py").write_text(NESTED)
    found = recorded(program, arguments=PRECISE, units={}, **has_units)
    assert ("another constructor may wrap the model" in reason(program, found)) is not is_plain


def test_a_function_that_nothing_calls_depends_on_nothing(program: Path) -> None:
    unused = (
        "\n\ndef shapes(model):\n    return {n: p.shape for n, p in model.named_parameters()}\n"
    )
    text = TRAIN.replace("model = Net()", "torch.manual_seed(0)\n    model = Net()") + unused
    (program / "train.py").write_text(text)
    assert "becomes fully_shard" in reason(program, recorded(program))
    for used in ("shown = shapes\n", 'hook = "shapes"\n'):
        (program / "options.py").write_text(OPTIONS + used)
        assert "named_parameters gives other names" in reason(program, recorded(program))
    (program / "options.py").write_text(OPTIONS)
    (program / "train.py").write_text(f"{text}\n\ndef run(name):\n    return globals()[name]\n")
    assert "named_parameters gives other names" in reason(program, recorded(program))


CHOSEN = TRAIN.replace("model = FSDP(", "cls = FSDP if cfg.shards else Other\n    model = cls(")


def test_a_class_that_an_expression_chooses_is_checked(program: Path) -> None:
    (program / "train.py").write_text(CHOSEN)
    text = after(program, recorded(program, function="cls"))
    assert "    cls = FSDP if cfg.shards else Other\n" in text
    assert "    assert cls is FSDP\n" in text
    assert "    fully_shard(model, reshard_after_forward=False)\n" in text
    for used in ("cls.__name__", "cls is Other"):
        (program / "train.py").write_text(CHOSEN.replace("return optimizer", f"return {used}"))
        assert "uses FSDP1's class" in reason(program, recorded(program, function="cls"))


def test_a_recording_of_another_place_is_an_error(program: Path) -> None:
    found = recorded(program)
    for name in ("train.py", "model.py"):
        (program / name).rename(program / f"other_{name}")
    (error,) = analysed(program, found).errors
    assert error.path == "model.py"
    assert error.message.startswith("recorded by a run, but not among these files")
