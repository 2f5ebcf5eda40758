"""`--partial`: a model that would go wrong in silence is held, and migrated with a marker when that is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.verify import verify
from fsdp_migrate.verify.launch import Launcher

# Gradients are clipped only where the model has an attribute of FSDP1: an FSDP2 model trains on, unclipped.
PROGRAM = """\
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(rank):
    store = dist.FileStore("store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    torch.manual_seed(0)
    model = FSDP(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for step in range(3):
        loss = model(torch.full((2, 4), step + rank + 1.0)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if hasattr(model, "sharding_strategy"):
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.start_processes(train, nprocs=2, start_method="fork")
"""
MARKED = "        # fsdp-migrate: FSDP367 by hand: an FSDP2 model has no `sharding_strategy`"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "original" / "train.py"
    path.parent.mkdir()
    path.write_text(PROGRAM)
    return path


def test_what_would_fail_silently_holds_its_model(
    program: Path, real_cli: Callable[..., Any]
) -> None:
    before = program.read_text()
    result = real_cli(str(program))
    assert program.read_text() == before
    assert result.code == 0, result.err
    assert "FSDP367 at" in result.text + result.err


def test_a_held_library_stays_to_the_byte_and_so_do_its_tests(
    folder: Path, real_cli: Callable[..., Any]
) -> None:
    (folder / "tests").mkdir()
    options = "from torch.distributed.fsdp import ShardingStrategy\n"
    texts = {
        # an import that nobody uses, and a question whose answer would turn round
        "library.py": f"{options}from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "def is_sharded(model):\n    model = FSDP(model)\n    return hasattr(model, 'sharding_strategy')\n",
        "tests/test_library.py": f"from library import is_sharded\n{options}assert ShardingStrategy.NO_SHARD\n",
        "tests/test_other.py": f"{options}assert ShardingStrategy.NO_SHARD\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    real_cli(".")
    stayed = [name for name, text in texts.items() if (folder / name).read_text() == text]
    assert stayed == ["library.py", "tests/test_library.py"]


@pytest.mark.ranks
def test_partial_migrates_all_the_same_and_marks_what_verify_then_finds(
    program: Path, tmp_path: Path, real_cli: Callable[..., Any]
) -> None:
    copy = tmp_path / "migrated" / "train.py"
    copy.parent.mkdir()
    copy.write_text(program.read_text())
    assert real_cli(str(copy), "--partial").code == 0
    after = copy.read_text()
    assert "fully_shard(nn.Linear(4, 4))" in after
    assert MARKED in after
    real_cli(str(copy), "--partial")
    assert copy.read_text() == after

    verdict = verify(program, copy, launcher=Launcher.PYTHON, device="cpu")
    assert not verdict.equal
    assert verdict.first is not None
    assert (verdict.first.what, verdict.first.step) == ("gradient norm", 1)

    repaired = after.replace('if hasattr(model, "sharding_strategy"):', "if True:")
    assert repaired != after
    copy.write_text(repaired)
    assert verify(program, copy, launcher=Launcher.PYTHON, device="cpu").equal
