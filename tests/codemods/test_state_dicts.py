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
ON_RANK_0 = "StateDictType.FULL_STATE_DICT, FullStateDictConfig(True, True)"
FULL = f"FSDP.state_dict_type(model, {ON_RANK_0})"


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
policy = FullStateDictConfig(True, True)
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy): state = model.state_dict(); dist.barrier()
---
state = get_model_state_dict(
    model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
); dist.barrier()
=== a call among the arguments of another, with a comment
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(True, True)):
    torch.save(
        model.state_dict(),  # whole
        f"{trainer.output_dir}/checkpoint.pt",
    )
---
torch.save(
    get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    ),  # whole
    f"{trainer.output_dir}/checkpoint.pt",
)
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
policy = FullStateDictConfig(True, True)
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):
    state = model.state_dict()
with trainer.ema.state_dict_type(trainer.ema, StateDictType.FULL_STATE_DICT, policy):
    other = trainer.ema.state_dict()
---
state = get_model_state_dict(
    model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
)
other = get_model_state_dict(
    trainer.ema, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
)
=== a configuration that is made twice
policy = FullStateDictConfig(True, True)
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):
    state = model.state_dict()
policy = FullStateDictConfig(True, True)
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):
    state = model.state_dict()
---
state = get_model_state_dict(
    model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
)
state = get_model_state_dict(
    model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
)
=== other objects
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(True, True)):
    trainer.logger.info("to be saved")
    state, states = model.state_dict(), optimizer.state_dict()
---
trainer.logger.info("to be saved")
state, states = get_model_state_dict(
    model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
), optimizer.state_dict()
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
    "an inner module": ("state = model.module.state_dict()", "may reach the model"),
    "a method of the model": ("model.save_pretrained(path)", "may reach the model"),
    "a list of models": ("trainer.write([model], model.state_dict())", "may reach the model"),
    "another name": ("other = model; state = other.state_dict()", "`model` is used inside"),
    "another value": ("model = trainer.best; state = model.state_dict()", "is used inside"),
    "a function that is given": ("rank(model.state_dict())", "`rank` may reach the model"),
    "options": ("state = model.state_dict(keep_vars=True)", "may reach the model"),
    "two": ("state = model.state_dict(), model.state_dict()", "for one state dict"),
    "none": ("dist.barrier()", "for one state dict"),
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


@pytest.mark.parametrize(
    "asked",
    [
        "StateDictType.FULL_STATE_DICT",
        "StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True)",
        "StateDictType.FULL_STATE_DICT, FullStateDictConfig(True, trainer.on_rank_0)",
        "StateDictType.FULL_STATE_DICT, trainer.config",
        "StateDictType.SHARDED_STATE_DICT",
        "trainer.type, FullStateDictConfig(True, True)",
    ],
)
def test_torch_has_no_other_type(asked: str) -> None:
    text = in_function(f"with FSDP.state_dict_type(model, {asked}):\n    s = model.state_dict()\n")
    assert migrated(text)[1] == text.replace("torch.distributed.fsdp", "fsdp_migrate.runtime")


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
    config = "policy = FullStateDictConfig(True, True)\n"
    text = in_function(f"{config}{context}\n    state = model.state_dict()\n{more}\n")
    _, after = migrated(text)
    assert config in after
    # A context of the same function that stays keeps the other one.
    assert ("get_model_state_dict" in after) is (more == "print(policy)")


def test_lines_keep_their_ends_and_their_indentation() -> None:
    text = in_function(f"with {FULL}:\n    if rank:\n        state = model.state_dict()\n")
    text = text.replace("    ", "\t").replace("\n", "\r\n")
    _, after = migrated(text)
    wanted = (
        "\tif rank:\r\n\t\tstate = get_model_state_dict(\r\n\t\t\tmodel, options=StateDictOptions("
    )
    assert wanted in after
    assert after.count("\n") == after.count("\r\n")


ELSEWHERE = {
    "a process group": "net = FSDP(net, process_group=group)",
    "a process group by its position": "net = FSDP(net, group)",
    "a mesh": "net = FSDP(net, device_mesh=mesh)",
    "keywords": "options = dict(process_group=group)\nnet = FSDP(net, **options)",
    "replicas": 'kind = "HYBRID_SHARD"',
    "a strategy by its name": "kind = fsdp.ShardingStrategy[name]",
    "hooks that rename": "net.register_state_dict_post_hook(rename)",
    "names of torch.compile": "import torch\nnet = FSDP(net)\nnet = torch.compile(net)",
}
HARMLESS = """\
import torch

@torch.compile
def loss(a):
    return a

net = FSDP(net, sharding_strategy=fsdp.ShardingStrategy.FULL_SHARD)
"""


@pytest.mark.parametrize("name", ELSEWHERE)
def test_another_file_of_the_run_has_a_say(name: str, tmp_path: Path) -> None:
    imports = "import torch.distributed.fsdp as fsdp\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    first, second = tmp_path / "save.py", tmp_path / "build.py"
    first.write_text(in_function(f"with {FULL}:\n    state = model.state_dict()\n"))
    for other, stays in ((f"{imports}{ELSEWHERE[name]}\n", True), (f"{imports}{HARMLESS}", False)):
        second.write_text(other)
        report = analyse([first, second], Options())
        assert not report.errors
        (after,) = (c.after.decode() for c in report.changes if c.path == first)
        assert ("with FSDP.state_dict_type" in after) is stays


OF_A_MODULE = {
    "a name of its own": "def _save_to_state_dict(self, states, *_): states['version'] = torch.tensor(2)",
    "one for the whole": "def state_dict(self): return {**super().state_dict(), 'dim': torch.tensor(2)}",
    "a value that is no tensor": "def get_extra_state(self): return Statistics(self)",
    "a part that is compiled": "def __init__(self): self.part = torch.compile(nn.Linear(2, 2))",
}


@pytest.mark.parametrize("name", OF_A_MODULE)
def test_a_file_without_fsdp_has_a_say(name: str, tmp_path: Path) -> None:
    program = in_function(f"with {FULL}:\n    state = model.state_dict()\n")
    (tmp_path / "train.py").write_text(f"from model import Net\n{program}")
    for method, stays in ((OF_A_MODULE[name], True), ("def forward(self): pass", False)):
        text = f"import torch\nfrom torch import nn\n\nclass Net(nn.Module):\n    {method}\n"
        (tmp_path / "model.py").write_text(text)
        report = analyse(sorted(tmp_path.iterdir()), Options())
        (after,) = (change.after.decode() for change in report.changes)
        assert ("= get_model_state_dict(" in after) is not stays


def test_a_local_type_around_nothing_of_the_model_does_not_raise() -> None:
    context = "with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):"
    report, _ = migrated(in_function(f"{context}\n    torch.save(optimizer.state_dict(), rank)\n"))
    assert [f.action.value for f in report.findings if f.code == "FSDP331"] == ["runtime"]
    assert not [f for f in report.findings if f.code == "FSDP334"]


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
