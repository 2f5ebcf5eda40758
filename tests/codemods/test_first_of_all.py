"""Whole state dicts of models that are split over groups of ranks: who uses them decides where they are."""

from pathlib import Path

import pytest

from fsdp_migrate.findings import Action, Severity

from .programs import Analysed, analysed

BUILD = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net):
    return FSDP(net, process_group=model_parallel.group())
"""
SAVE = """\
import os

import torch
import torch.distributed as dist
from build import build
from torch.distributed.fsdp import (
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    StateDictType,
)


def save(model, optimizer, path, is_first):
    rank = dist.get_rank()
    policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):
        state = model.state_dict()
    if TEST:
        torch.save(state, path)
"""
MAKING = "state = model.state_dict()"
USING = "if TEST:\n        torch.save(state, path)"
TRAINER = """

class Trainer:
    def __init__(self):
        self.rank = dist.get_rank()

    def keep(self, model):
        save(model, None, "model.pt", GIVEN)
"""


def saved(tmp_path: Path, text: str) -> Analysed:
    return analysed(tmp_path, {"train.py": text, "build.py": BUILD}, "torch")


def is_offloaded(program: Analysed) -> bool:
    """Whether rank 0 alone gets the state, with nothing left to do; else every rank, which needs the user."""
    found = [each for each in program.findings if "Replaced by `get_" in each.message]
    assert found
    needs_user = [each for each in found if "run out of memory" in each.message]
    for each in needs_user:
        assert each.action is Action.MANUAL
        assert each.severity is Severity.RAISES
    offloads = "cpu_offload=True" in program.after["train.py"]
    assert offloads is not bool(needs_user)
    return offloads


@pytest.mark.parametrize(
    ("test", "is_first"),
    [
        ("dist.get_rank() == 0", True),
        ("rank == 0", True),
        ("not rank", True),
        ("path and not rank > 0", True),
        ("int(os.environ['RANK']) == 0", True),
        ("model_parallel.get_data_parallel_rank() == 0", False),
        ("dist.get_rank(group) == 0", False),
        ("rank == 0 or path", False),
        ("rank != 0", False),
        ("rank", False),
        ("is_first", False),
        ("int(os.environ['LOCAL_RANK']) == 0", False),
    ],
)
def test_torch_offloads_where_the_first_of_all_ranks_alone_uses_the_state(
    test: str, is_first: bool, tmp_path: Path
) -> None:
    assert is_offloaded(saved(tmp_path, SAVE.replace("TEST", test))) is is_first


@pytest.mark.parametrize(
    ("using", "is_first"),
    [
        ("if rank != 0:\n        return\n    torch.save(state, path)", True),
        ("if rank:\n        pass\n    else:\n        torch.save(state, path)", True),
        ("saved = torch.save(state, path) if rank == 0 else None", True),
        ("if rank != 0:\n        print(path)\n    torch.save(state, path)", False),
        ("if rank == 0:\n        print(path)\n    else:\n        torch.save(state, path)", False),
        ("if rank == 0:\n        torch.save(state, path)\n    return state", False),
        (
            "def write():\n        torch.save(state, path)\n    if rank == 0:\n        write()",
            False,
        ),
        ("print(path)", False),
    ],
)
def test_every_use_of_the_state_has_a_say(using: str, is_first: bool, tmp_path: Path) -> None:
    assert is_offloaded(saved(tmp_path, SAVE.replace(USING, using))) is is_first


@pytest.mark.parametrize(
    ("making", "is_first"),
    [
        ("state = {k: v.to(dtype) for k, v in model.state_dict().items()}", True),
        ("state = {'model': model.state_dict(), 'path': path}", True),
        ("state = {'optimizer': FSDP.full_optim_state_dict(model, optimizer)}", True),
        ("state = keep(model.state_dict())", False),
        ("torch.save(model.state_dict(), path)", False),
        ("self.state = model.state_dict()", False),
    ],
)
def test_nothing_else_gets_the_state(making: str, is_first: bool, tmp_path: Path) -> None:
    text = SAVE.replace(MAKING, making).replace("TEST", "rank == 0")
    assert is_offloaded(saved(tmp_path, text)) is is_first


@pytest.mark.parametrize(
    ("calls", "is_first"),
    [
        (TRAINER.replace("GIVEN", "self.rank == 0"), True),
        (TRAINER.replace("GIVEN", "self.rank == 1"), False),
        (TRAINER.replace("GIVEN", "self.rank == 0") + "        self.rank = group.rank()\n", False),
        (TRAINER.replace("GIVEN", "self.rank == 0") + "        save(model, *given)\n", False),
    ],
)
def test_a_test_that_callers_make(calls: str, is_first: bool, tmp_path: Path) -> None:
    text = SAVE.replace("TEST", "is_first") + calls
    assert is_offloaded(saved(tmp_path, text)) is is_first


def test_a_caller_that_does_not_mention_fsdp_has_a_say(tmp_path: Path) -> None:
    text = SAVE.replace("TEST", "is_first") + TRAINER.replace("GIVEN", "self.rank == 0")
    other = "import train\n\ntrain.save(model, None, 'model.pt', data_rank == 0)\n"
    texts = {"train.py": text, "build.py": BUILD, "other.py": other}
    assert not is_offloaded(analysed(tmp_path, texts, "torch"))
