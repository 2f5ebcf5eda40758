"""Shapes of real programs that went wrong once: each is migrated in both forms, and its text and findings are asserted."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdp_migrate.codemods.left import clip_local_norm
from fsdp_migrate.facts.names import FSDP2_NAMES
from fsdp_migrate.verify import migration
from fsdp_migrate.verify.folders import copy_program
from fsdp_migrate.verify.launch import Launcher
from fsdp_migrate.verify.main import run_program
from fsdp_migrate.verify.options import Options, Recording

from .programs import Analysed, analysed

HEAD = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
"""
Migrate = Callable[..., Analysed]


@pytest.fixture(params=["auto", "bridge"])
def migrate(request: pytest.FixtureRequest, tmp_path: Path) -> Migrate:
    return lambda files: analysed(tmp_path, files, request.param)


def fsdp1_imports(text: str) -> list[str]:
    """The names of FSDP1 that a file imports from torch."""
    return [
        alias.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and "torch.distributed.fsdp" in (node.module or "")
        for alias in node.names
        if alias.name not in FSDP2_NAMES
    ]


def test_a_program_and_its_test_move_together(migrate: Migrate) -> None:
    program = migrate(
        {
            "model.py": f"""{HEAD}from torch.distributed.fsdp import StateDictType


def shard(model, **options):
    return FSDP(model, **options)


def step(model, optimizer, batches):
    with model.no_sync():
        model(batches[0]).sum().backward()
    model(batches[1]).sum().backward()
    model.clip_grad_norm_(1.0)
    optimizer.step()


def save(model, optimizer):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        return model.state_dict(), FSDP.optim_state_dict(model, optimizer)
""",
            "test_model.py": f"""{HEAD}
from model import step


def test_step(options):
    model = FSDP(nn.Linear(2, 2), **options)
    assert isinstance(model, FSDP)
    step(model, torch.optim.SGD(model.parameters(), 1.0), [torch.ones(2, 2)] * 2)
""",
        }
    )
    for text in program.after.values():
        assert fsdp1_imports(text) == []
    assert program.is_kept("no_sync", "model.py")
    assert not [f for f in program.findings if f.action.value == "manual"]


def test_a_loaded_optimizer_state_keeps_its_names(migrate: Migrate) -> None:
    program = migrate(f"""{HEAD}

def load(model, optimizer, path):
    full = torch.load(path)
    sharded = FSDP.scatter_full_optim_state_dict(full, model)
    optimizer.load_state_dict(sharded)
    del full, sharded
""")
    assert all(program.is_kept(part) for part in ("sharded =", "load_state_dict", "del full"))


@pytest.mark.parametrize(
    "line",
    [
        "self.scheduler.load_state_dict(state)",
        "self.loader.sampler.load_state_dict(state)",
        "states = [metric.state_dict() for metric in metrics]",
        "callback.state_dict()",
    ],
)
def test_other_states_are_none_of_a_models(line: str, migrate: Migrate) -> None:
    program = migrate(f"""{HEAD}

class Trainer:
    def resume(self, state, metrics, callback):
        {line}


model = FSDP(nn.Linear(2, 2), **options)
""")
    assert program.codes(line) == set()
    assert program.is_kept(line)


def test_methods_that_the_sharding_subclass_overrides_are_left_alone(migrate: Migrate) -> None:
    program = migrate(f"""{HEAD}

class Trainer:
    def clip(self, model):
        return torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    def save(self, model):
        return model.state_dict()


class FSDPTrainer(Trainer):
    def clip(self, model):
        return model.clip_grad_norm_(1.0)

    def save(self, model):
        with FSDP.state_dict_type(model, kind):
            return model.state_dict()


trainer = FSDPTrainer()
model = FSDP(nn.Linear(2, 2), **options)
trainer.clip(model)
trainer.save(model)
""")
    assert program.codes("torch.nn.utils") == set()
    assert program.is_kept("torch.nn.utils")
    assert program.is_kept("return model.state_dict()")


def test_what_is_not_fsdp1s_has_no_finding(migrate: Migrate) -> None:
    program = migrate("""\
    from unittest import mock

    import torch
    import torch.distributed.fsdp

    own = [name for name in names if name.startswith("torch.distributed.fsdp")]
    torch.distributed.fsdp.fully_shard = spy
    with mock.patch("torch.distributed.fsdp.fully_shard"):
        build()
    """)
    parts = ("startswith", "= spy", "mock.patch")
    assert [program.codes(part) for part in parts] == [set()] * len(parts)
    assert all(program.is_kept(part) for part in parts)


def test_a_call_of_the_programs_own_subclass_is_a_constructor(migrate: Migrate) -> None:
    program = migrate(f"""{HEAD}from torch.distributed.fsdp import MixedPrecision


class Sharded(FSDP):
    def forward(self, *args):
        return super().forward(*args)


model = Sharded(
    nn.Linear(2, 2),
    mixed_precision=MixedPrecision(buffer_dtype=torch.bfloat16),
    limit_all_gathers=True,
)
""")
    assert "FSDP002" in program.codes("Sharded(\n".strip())
    assert program.codes("mixed_precision=")
    assert program.codes("limit_all_gathers=")


def test_keys_of_a_dict_that_is_splatted_have_a_finding_each(migrate: Migrate) -> None:
    program = migrate(f"""{HEAD}
options = {{
    "use_orig_params": True,
    "limit_all_gathers": True,
}}
model = FSDP(nn.Linear(2, 2), **options)
""")
    assert program.codes('"use_orig_params"')
    assert program.codes('"limit_all_gathers"')


def test_a_dict_of_the_same_name_elsewhere_is_another(migrate: Migrate) -> None:
    program = migrate(f"""{HEAD}
def show():
    options = {{"use_orig_params": True}}
    print(options)


def build(options):
    options["limit_all_gathers"] = True
    return FSDP(nn.Linear(2, 2), **options)
""")
    assert not program.codes('"use_orig_params"')
    assert program.codes('"limit_all_gathers"')


@pytest.mark.parametrize(
    "use",
    [
        "WRAPPERS = {'fsdp': FSDP}",
        "Wrapper = FSDP",
        "options += (FSDP,)",
        "Kind: TypeAlias = 'FSDP | nn.Module'",
        "names = [n.replace('_fsdp_wrapped_module.', '') for n, _ in model.named_parameters()]",
        "head = [p for n, p in model.named_parameters() if n == '_fsdp_wrapped_module.weight']",
        "sharded = [n for n, _ in model.named_modules() if 'fsdp' in n]",
        "found = hasattr(b, '_fsdp_wrapped_module') and isinstance(b._fsdp_wrapped_module, X)",
        "raw = model.module if hasattr(model, 'module') else model",
        "inner = self.module.module",
        "group = model.process_group",
        "kind = type(model) is FSDP or type(model).__name__ == 'FullyShardedDataParallel'",
    ],
)
def test_what_the_bridge_answers_needs_no_hand(use: str, migrate: Migrate) -> None:
    program = migrate(f"{HEAD}\nmodel = FSDP(nn.Linear(2, 2), **options)\n{use}\n")
    assert program.is_kept(use)
    assert not [f for f in program.findings if f.action.value == "manual"]


@pytest.mark.parametrize(
    ("imported", "ddp"),
    [
        ("", "torch.nn.parallel.DistributedDataParallel"),
        ("from wrappers import DDP\n", "DDP"),
    ],
)
def test_ddp_in_the_other_branch_keeps_what_both_share(
    imported: str, ddp: str, migrate: Migrate
) -> None:
    program = migrate(
        {
            "train.py": f"""{HEAD}{imported}
model = nn.Linear(2, 2)
if sharded:
    model = FSDP(model, device_id=rank)
else:
    model = {ddp}(model, device_ids=[rank])
raw_model = model.module
with model.no_sync():
    model(batch).sum().backward()
""",
            "wrappers.py": "from torch.nn.parallel import DistributedDataParallel as DDP  # or FSDP\n",
        }
    )
    for part in (f"{ddp}(", "raw_model", "no_sync"):
        assert program.is_kept(part)
    assert fsdp1_imports(program.after["train.py"]) == []


def test_a_trainers_own_state_dict_is_no_models(migrate: Migrate) -> None:
    program = migrate(f"""{HEAD}from torch.distributed.fsdp import StateDictType


class Trainer:
    def state_dict(self):
        return {{"step": self.step, "model": self.model.state_dict()}}

    def save(self, path):
        with FSDP.state_dict_type(self.model, StateDictType.FULL_STATE_DICT):
            torch.save(self.state_dict(), path)
""")
    assert program.is_kept("torch.save(self.state_dict(), path)")
    assert program.is_kept("with FSDP.state_dict_type(")


def test_models_in_a_dataclass_need_no_hand_but_for_their_norms(migrate: Migrate) -> None:
    program = migrate(f"""{HEAD}from dataclasses import dataclass


@dataclass
class Models:
    generator: nn.Module
    critic: nn.Module


models = Models(FSDP(build(), **options), critic=build())
with models.generator.no_sync():
    models.generator(batch).sum().backward()
nn.utils.clip_grad_norm_(models.generator.parameters(), 1.0)
nn.utils.clip_grad_norm_(models.critic.parameters(), 2.0)
""")
    assert program.is_kept("no_sync")
    assert program.codes("1.0") == {clip_local_norm.RULE.code}
    assert program.codes("2.0") == set()


def test_clipping_says_what_was_and_what_is(tmp_path: Path) -> None:
    program = analysed(
        tmp_path,
        f"{HEAD}\nmodel = FSDP(build(), **options)\nnn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
    )
    said = [f.message for f in program.findings if f.code == clip_local_norm.RULE.code]
    assert len(said) == 1
    assert "now clips by the norm over all ranks" in said[0]
    assert "under FSDP1 each rank clipped by the norm of its own shards" in said[0]


# The same shapes, run: two models in a dataclass, one of them with DDP by a registry; a trainer with a state dict of its own.
RUN = """\
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType

FSDP = FullyShardedDataParallel
WRAPPERS = {"fsdp": FSDP}
options = ()
options += (FSDP,)


@dataclass
class Models:
    generator: nn.Module
    critic: nn.Module


class Trainer:
    def __init__(self, rank):
        torch.manual_seed(0)
        wrap = lambda m: WRAPPERS["fsdp"](m, device_id=rank, use_orig_params=True)
        other = torch.nn.parallel.DistributedDataParallel
        self.models = Models(generator=wrap(net()), critic=other(net()))
        self.optimizers = [torch.optim.AdamW(m.parameters(), lr=0.1) for m in self.each()]
        self.steps = 0

    def each(self):
        return self.models.generator, self.models.critic

    def step(self, batch):
        for model, optimizer in zip(self.each(), self.optimizers):
            with model.no_sync():
                model(batch).square().mean().backward()
            loss = model(batch).square().mean()
            loss.backward()
            if isinstance(model, options):
                model.clip_grad_norm_(1.0)
            else:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            raw = model.module if hasattr(model, "module") else model
            print("R", self.steps, loss.item(), type(raw).__name__, [n for n, _ in model.named_parameters()])
        self.steps += 1

    def state_dict(self):
        return {"steps": self.steps, "model": self.models.generator.state_dict()}

    def save(self):
        with FSDP.state_dict_type(self.models.generator, StateDictType.FULL_STATE_DICT):
            return self.state_dict()

    def reload(self):
        model, optimizer = self.models.generator, self.optimizers[0]
        full = FSDP.full_optim_state_dict(model, optimizer)
        sharded = FSDP.scatter_full_optim_state_dict(full, model)
        optimizer.load_state_dict(sharded)
        del full, sharded


def net():
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))


dist.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
trainer = Trainer(rank)
batch = torch.randn(3, 4, generator=torch.Generator().manual_seed(rank)).cuda()
trainer.step(batch)
trainer.reload()
trainer.step(batch)
for name, value in trainer.save()["model"].items():
    print("R", name, tuple(value.shape), value.double().sum().item())
dist.destroy_process_group()
"""


@pytest.mark.ranks
@pytest.mark.usefixtures("forked")
def test_they_run_as_under_fsdp1(tmp_path: Path) -> None:
    source = tmp_path / "source" / "train.py"
    source.parent.mkdir()
    source.write_text(RUN)

    def run(form: str) -> list[list[str]]:
        folder = tmp_path / (form or "original")
        program = copy_program("migrated" if form else "original", source, None, folder / "copy")
        if form:
            migration.migrate(program.root, form)
        how = Options(launcher=Launcher.TORCHRUN, device="cpu", timeout=60)
        done = run_program(program, folder, how, Recording(canonical=True, emulate=2))
        printed = [rank.output.splitlines() for rank in done.ranks]
        return [[line for line in lines if line.startswith("R ")] for lines in printed]

    expected = run("")
    assert [len(lines) for lines in expected] == [8, 8]
    assert run("bridge") == expected
    assert run("auto") == expected
