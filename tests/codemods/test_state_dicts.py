"""Contexts of state dicts: which go and which stay, beyond the examples of their rules."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

import pytest

from fsdp_migrate.engine import analyse, analyse_source
from fsdp_migrate.report import Report
from fsdp_migrate.settings import Options
from fsdp_migrate.source import Source

from .programs import analysed, table

HEADER = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import (
    FullStateDictConfig,  # noqa: F401
    FullyShardedDataParallel as FSDP,
    StateDictType,  # noqa: F401
)


"""
FULL = "FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT)"


def migrated(text: str, form: str = "auto") -> tuple[Report, str]:
    report = analyse_source(
        Source(Path("/nowhere/program.py"), "program.py", text.encode()), Options(form)
    )
    assert not report.errors, report.errors
    return report, report.changes[0].after.decode() if report.changes else text


def in_function(body: str) -> str:
    return f"{HEADER}def save(model, optimizer, trainer, rank):\n{indent(dedent(body), '    ')}"


def body_after(text: str) -> str:
    """The function's body after a migration, as it was written for `in_function`."""
    return dedent(migrated(text)[1].partition("rank):\n")[2])


GOES = table(
    """\
=== on one line
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT): state = model.state_dict(); dist.barrier()
---
state = get_model_state_dict(
    model, options=StateDictOptions(full_state_dict=True)
); dist.barrier()
=== two calls in one statement
both = FullStateDictConfig(True, True)
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, both):
    state, states = model.state_dict(), FSDP.full_optim_state_dict(model, optimizer)
---
state, states = get_model_state_dict(
    model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
), FSDP.full_optim_state_dict(model, optimizer)
=== a call among the arguments of another, with a comment
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
    torch.save(
        model.state_dict(),  # whole
        f"{trainer.output_dir}/checkpoint.pt",
    )
---
torch.save(
    get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True)
    ),  # whole
    f"{trainer.output_dir}/checkpoint.pt",
)
=== a call that is too long for its line
policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):
    torch.save(
        model.state_dict(),
        "checkpoint.pt",
    )
---
torch.save(
    get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    ),
    "checkpoint.pt",
)
=== shards, loaded without some
with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
    model.load_state_dict(state["model"], strict=False)
---
set_model_state_dict(model, state["model"], options=StateDictOptions(strict=False))
=== a type and a configuration with names of their own
kind = StateDictType.FULL_STATE_DICT
# on the CPU
policy = FullStateDictConfig(True, rank0_only=True)
with FSDP.state_dict_type(model, kind, policy):
    state = model.state_dict()
---
# on the CPU
state = get_model_state_dict(
    model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
)
=== a configuration for two contexts
policy = FullStateDictConfig(False, False)
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):
    state = model.state_dict()
with FSDP.state_dict_type(trainer.ema, StateDictType.FULL_STATE_DICT, policy):
    other = trainer.ema.state_dict()
---
state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
other = get_model_state_dict(
    trainer.ema, options=StateDictOptions(full_state_dict=True)
)
=== a configuration that is made twice
policy = FullStateDictConfig(True, True)
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):
    state = model.state_dict()
policy = FullStateDictConfig(False, False)
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):
    state = model.state_dict()
---
state = get_model_state_dict(
    model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
)
state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
=== states to load
with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
    model.load_state_dict(state)
    states = FSDP.optim_state_dict_to_load(model, optimizer, trainer.states)
    optimizer.load_state_dict(states)
---
set_model_state_dict(model, state)
states = FSDP.optim_state_dict_to_load(model, optimizer, trainer.states)
optimizer.load_state_dict(states)
=== called on the model
with model.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
    state = model.state_dict()
---
state = get_model_state_dict(model)
=== other objects, and what is asked of the model
with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
    count = len(list(model.parameters())) if isinstance(model, torch.nn.Module) else 0
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    trainer.logger.info("%d of %s", count, model.device)
---
count = len(list(model.parameters())) if isinstance(model, torch.nn.Module) else 0
state = {"model": get_model_state_dict(model), "optimizer": optimizer.state_dict()}
trainer.logger.info("%d of %s", count, model.device)
"""
)


@pytest.mark.parametrize("name", GOES)
def test_context_goes(name: str) -> None:
    before, after = GOES[name]
    text = in_function(before)
    assert body_after(text) == after
    report, once = migrated(text)
    assert "state_dict_type" not in once
    assert all(f.action.value != "runtime" for f in report.findings if f.code == "FSDP331")
    assert migrated(once)[1] == once


STAYS = {
    "a trainer": ("trainer.save_checkpoint()", "`trainer.save_checkpoint` may reach the model"),
    "a wrapper": ("state = trainer.state_dict()", "`trainer.state_dict` may reach"),
    "an inner module": ("state = model.module.state_dict()", "`model.module` is used inside"),
    "a method of the model": ("model.save_pretrained(path)", "may depend on the type"),
    "a list of models": ("trainer.write([model], model.state_dict())", "`model` is passed on"),
    "another name": ("other = model; state = other.state_dict()", "`model` is passed on"),
    "another value": ("model = trainer.best; state = model.state_dict()", "is assigned inside"),
    "a function that is given": ("rank(model.state_dict())", "`rank` may reach the model"),
    "whole parameters": (
        "with trainer.summon_full_params(model): state = model.state_dict()",
        "`model` is passed on",
    ),
    "options": ("state = model.state_dict(keep_vars=True)", "may depend on the type"),
    "states of an optimizer": (
        "states = FSDP.optim_state_dict(model, optimizer)",
        "`FSDP.optim_state_dict` depends on the state-dict type",
    ),
    "another context": (
        "with FSDP.state_dict_type(model, trainer.type): pass",
        "`model` is passed on",
    ),
    "a comment that has no other place": (
        "state = model.state_dict(  # whole\n    )",
        "prevents the edit",
    ),
    "a generator": ("yield model.state_dict()", "other code runs"),
}


@pytest.mark.parametrize("name", STAYS)
def test_context_stays(name: str) -> None:
    body, reason = STAYS[name]
    text = in_function(f"with {FULL}:\n    {body}\n")
    report, after = migrated(text)
    assert after == text.replace("torch.distributed.fsdp", "fsdp_migrate.runtime")
    found = next(f for f in report.findings if f.code == "FSDP331")
    assert found.action.value == "runtime"
    assert reason in found.message


@pytest.mark.parametrize(
    "statement",
    [
        f"context = {FULL}",
        f"with {FULL} if rank else torch.no_grad():\n    state = model.state_dict()",
        f"with torch.no_grad(), {FULL}:\n    state = model.state_dict()",
        f"with {FULL} as before:\n    state = model.state_dict()",
        "with FSDP.state_dict_type(model, *trainer.types):\n    state = model.state_dict()",
        "with FSDP.state_dict_type(model, **trainer.types):\n    state = model.state_dict()",
        f"with {FULL}:  # fsdp-migrate: ignore[FSDP002]\n    state = model.state_dict()",
    ],
)
def test_only_the_imports_change(statement: str) -> None:
    text = in_function(f"{statement}\n")
    assert migrated(text)[1] == text.replace("torch.distributed.fsdp", "fsdp_migrate.runtime")


def test_form_bridge_changes_no_context() -> None:
    for before, _ in GOES.values():
        text = in_function(before)
        _, after = migrated(text, "bridge")
        assert after == text.replace("torch.distributed.fsdp", "fsdp_migrate.runtime")


CONFIG = "    policy = FullStateDictConfig(False, False)\n"


@pytest.mark.parametrize(
    "more",
    [
        "print(policy)",
        "policy.rank0_only = trainer.rank0_only",
        "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy): trainer.save_model()",
        "with FSDP.state_dict_type(  # fsdp-migrate: ignore\n"
        "    model, StateDictType.FULL_STATE_DICT, policy\n):\n    other = model.state_dict()",
    ],
)
def test_configuration_that_something_reads_stays(more: str) -> None:
    context = "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):"
    text = in_function(f"{dedent(CONFIG)}{context}\n    state = model.state_dict()\n{more}\n")
    _, after = migrated(text)
    assert CONFIG in after
    # A context of the same function that stays keeps the other one.
    assert ("get_model_state_dict" in after) is (more == "print(policy)")


def test_lines_keep_their_ends_and_their_indentation() -> None:
    text = in_function(f"with {FULL}:\n    if rank:\n        state = model.state_dict()\n")
    text = text.replace("    ", "\t").replace("\n", "\r\n")
    _, after = migrated(text)
    wanted = "\tif rank:\r\n\t\tstate = get_model_state_dict(model, options=StateDictOptions("
    assert wanted in after
    assert after.count("\n") == after.count("\r\n")


ELSEWHERE = {
    "a process group": "net = FSDP(net, process_group=group)",
    "a mesh": "net = FSDP(net, device_mesh=mesh)",
    "keywords": "options = dict(process_group=group)\nnet = FSDP(net, **options)",
    "a partial": "from functools import partial\nmake = partial(FSDP, process_group=group)",
    "replicas": 'kind = "HYBRID_SHARD"',
    "a strategy by its name": "kind = fsdp.ShardingStrategy[name]",
    "hooks that rename": "net.register_state_dict_post_hook(rename)",
    "names of torch.compile": "import torch\nnet = FSDP(net)\nnet = torch.compile(net)",
    "names of torch.compile, of a part": "import torch\nnet.head = torch.compile(net.head)",
}


HARMLESS = """\
import torch

def loss(a):
    return a

fast = torch.compile(loss)
net = FSDP(net, None, fsdp.ShardingStrategy.FULL_SHARD, device_mesh=None)
assert isinstance(net, FSDP)
"""


@pytest.mark.parametrize("name", ELSEWHERE)
def test_another_file_of_the_run_has_a_say(name: str, tmp_path: Path) -> None:
    text = in_function(
        """\
        policy = FullStateDictConfig(True, True)
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):
            state = model.state_dict()
        """
    )
    imports = "import torch.distributed.fsdp as fsdp\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    first, second = tmp_path / "save.py", tmp_path / "build.py"
    first.write_text(text)
    for other, stays in ((f"{imports}{ELSEWHERE[name]}\n", True), (f"{imports}{HARMLESS}", False)):
        second.write_text(other)
        report = analyse([first, second], Options())
        assert not report.errors
        (after,) = (c.after.decode() for c in report.changes if c.path == first)
        assert ("with FSDP.state_dict_type" in after) is stays


KEPT = {
    "in an attribute": ("trainer.best = model.state_dict()", ""),
    "in a list": ("trainer.states.append(model.state_dict())", ""),
    "first in a list": ("trainer.states.insert(0, model.state_dict())", ""),
    "in a longer list": ("trainer.states.extend([model.state_dict()])", ""),
    "in a buffer": ("trainer.states.add(model.state_dict())", ""),
    "in a queue": ("trainer.states.put(model.state_dict())", ""),
    "unless there is one": ("trainer.states.setdefault('best', model.state_dict())", ""),
    "in another dictionary": ("trainer.best = dict(model.state_dict())", ""),
    "in an ordered one": ("trainer.best = OrderedDict(model.state_dict())", ""),
    "in a copy with the same tensors": ("trainer.best = copy.copy(model.state_dict())", ""),
    "by who called": ("return model.state_dict()", ""),
    "by another name": ("state = model.state_dict()", "best = state\ntrain(model)\nprint(best)"),
    **{
        f"over {word}": (
            "state = model.state_dict()",
            f"{word}(model)\nmodel.load_state_dict(state)",
        )
        for word in ("backward", "epoch", "fit", "learn", "run", "step", "train", "update")
    },
    "to the end": ("while epoch(model):\n        state = model.state_dict()", "print(state)"),
}
SPENT = {
    "saved": ("torch.save(model.state_dict(), 'a.pt')", ""),
    "saved by a name": ("state = model.state_dict()", "torch.save({'model': state}, 'a.pt')"),
    "saved by two": ("state = {'model': model.state_dict()}", "both = {**state}\ndcp.save(both)"),
    "with others": (
        "state = {'m': model.state_dict(), 'n': 1}",
        "dcp.load(state)\nreturn state['n']",
    ),
    "asked": ("state = model.state_dict()", "names = state.keys()\ntrain(model)\nprint(names)"),
}


@pytest.mark.parametrize("name", [*KEPT, *SPENT])
def test_a_state_that_outlives_a_step_is_a_copy(name: str) -> None:
    inside, behind = {**KEPT, **SPENT}[name]
    arounds = [
        *(
            f"with FSDP.state_dict_type(model, StateDictType.{k}_STATE_DICT):"
            for k in ("FULL", "SHARDED")
        ),
        "model = FSDP(model)\nif rank:",
    ]
    for around in arounds:
        after = migrated(in_function(f"{around}\n    {inside}\n{behind}\n"))[1]
        assert ("get_model_state_dict(" not in after) is (name in KEPT)


WITHIN = {
    "a loop": """\
{start}def main(model, rows):
    {start}for row in rows:
        {save}
        {inside}
    {outside}
""",
    "a function": """\
state = None

{start}def main(model):
    global state
    {save}
    {inside}

def show():
    {outside}
""",
}


@pytest.mark.parametrize("start", ["", "async "])
@pytest.mark.parametrize("name", WITHIN)
def test_a_state_that_outlives_where_it_is_made_is_a_copy(name: str, start: str) -> None:
    save = "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT): state = model.state_dict()"
    used, nothing = "torch.save(state, 'a.pt')", "pass"
    for inside, outside in ((used, nothing), (nothing, used)):
        text = WITHIN[name].format(start=start, save=save, inside=inside, outside=outside)
        after = migrated(f"{HEADER}{text}")[1]
        assert ("with FSDP" in after) is (outside == used)


OF_A_MODULE = {
    "a name of its own": "def _save_to_state_dict(self, states, *_): states['version'] = torch.tensor(2)",
    "one for the whole": "def state_dict(self): return {**super().state_dict(), 'dim': torch.tensor(2)}",
    "a value that is no tensor": "def get_extra_state(self): return Statistics(self)",
    "a part that is compiled": "def __init__(self): self.part = torch.compile(nn.Linear(2, 2))",
}


@pytest.mark.parametrize("name", OF_A_MODULE)
def test_a_file_without_fsdp_has_a_say(name: str, tmp_path: Path) -> None:
    imports = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    program = f"{imports}from model import Net\n\nmodel = FSDP(Net())\nstate = model.state_dict()\n"
    (tmp_path / "train.py").write_text(program)
    for method, stays in ((OF_A_MODULE[name], True), ("def forward(self): pass", False)):
        text = f"import torch\nfrom torch import nn\n\nclass Net(nn.Module):\n    {method}\n"
        (tmp_path / "model.py").write_text(text)
        report = analyse(sorted(tmp_path.iterdir()), Options())
        (after,) = (change.after.decode() for change in report.changes)
        assert ("= get_model_state_dict(" in after) is not stays


@pytest.mark.parametrize("rank0_only", [False, True])
def test_states_of_rank_0_are_loaded_in_the_context(rank0_only: bool) -> None:
    text = in_function(
        f"""\
        config = FullOptimStateDictConfig(rank0_only={rank0_only})
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, None, config):
            states = FSDP.optim_state_dict_to_load(model, optimizer, trainer.states)
        """
    ).replace("    FullStateDictConfig,", "    FullOptimStateDictConfig,")
    assert ("with FSDP.state_dict_type" in migrated(text)[1]) is rank0_only


@pytest.mark.parametrize("name", ["state_dict_type", "set_state_dict_type"])
def test_local_state_dict_is_for_a_person_once(name: str) -> None:
    call = f"FSDP.{name}(model, state_dict_type=StateDictType.LOCAL_STATE_DICT)"
    report, _ = migrated(in_function(f"trainer.enter({call})\n"))
    found = [f for f in report.findings if f.code.startswith("FSDP33")]
    assert [(f.code, f.action.value) for f in found] == [("FSDP334", "manual")]


SET = f"""{HEADER}
def build(net):
    model = FSDP(net)
    FSDP.set_state_dict_type(model, StateDictType.LOCAL_STATE_DICT)
    return model
"""
SAVE = f"""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
from build import build

model = build(net)
with {FULL}:
    whole = model.state_dict()
torch.save(optimizer.state_dict(), path)
"""


@pytest.mark.parametrize(
    ("more", "reported"),
    [
        ("", False),
        ("model.load_state_dict(old)\n", True),
        ("FSDP.optim_state_dict(model, o)\n", True),
    ],
)
def test_a_local_type_that_applies_to_no_state_dict_does_not_raise(
    more: str, reported: bool, tmp_path: Path
) -> None:
    found = analysed(tmp_path, {"build.py": SET, "train.py": SAVE + more})
    assert found.codes("set_state_dict_type", "build.py") == {"FSDP334" if reported else "FSDP332"}


def test_a_name_of_the_program_is_not_taken() -> None:
    text = in_function(f"with {FULL}:\n    state = model.state_dict()\n")
    text += "\n\ndef get_model_state_dict(model):\n    return {}\n"
    assert migrated(text)[1] == text.replace("torch.distributed.fsdp", "fsdp_migrate.runtime")


def test_a_function_of_the_program_may_reach_the_model() -> None:
    text = in_function(f"with {FULL}:\n    state = model.state_dict()\n    log('saved')\n")
    text += "\n\ndef log(message):\n    print(message)\n"
    assert "get_model_state_dict" not in migrated(text)[1]


@pytest.mark.parametrize(
    "statement",
    [
        "self.optimizer.load_state_dict(state)",
        "self.train_dataloader.load_state_dict(state)",
        "metrics.load_state_dict(callback.state_dict())",
        "scheduler.load_state_dict(state['scheduler'])",
        "state = self.model.state_dict()",
        "plugin.set_state_dict_type('FULL_STATE_DICT')",
        "kind = config.state_dict_type",
    ],
)
def test_nothing_is_said_of_other_state_dicts(statement: str) -> None:
    report, _ = migrated(f"{HEADER}class Trainer:\n    def run(self):\n        {statement}\n")
    assert not [f for f in report.findings if f.code.startswith("FSDP33")]


def test_each_line_that_changes_has_a_finding() -> None:
    for before, _ in GOES.values():
        text = in_function(before)
        report, after = migrated(text)
        spoken = {line for f in report.findings for line in range(f.line, f.end_line + 1)}
        kept = {line.strip() for line in after.splitlines()}
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip() not in {"", ")", "):", *kept}:
                assert number in spoken, line
