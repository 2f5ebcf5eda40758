"""The proof for the bundled programs: original and migrated train the same, under real torchrun and real gloo."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.verify.launch import Launcher
from fsdp_migrate.verify.main import verify

from .bundled import FIXTURES, RUNS

FSDP_MIGRATE = Path(sys.executable).parent / "fsdp-migrate"

pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("forked")]


@pytest.mark.parametrize(("case", "settings"), RUNS)
def test_original_and_migrated_train_the_same(case: str, settings: dict[str, Any]) -> None:
    verdict = verify(
        FIXTURES / case / "original" / settings["entry"],
        FIXTURES / case / "migrated" / settings["entry"],
        ranks=settings["ranks"],
        arguments=settings["arguments"],
        launcher=Launcher(settings["launcher"]),
        device="cpu",
        tolerance=settings["tolerance"],
        timeout=240,
    )
    assert verdict.equal, verdict.line()
    assert verdict.ranks == settings["ranks"]
    assert verdict.losses >= 8
    assert all(len(set(rank.losses)) > 1 for rank in verdict.original.ranks), "the loss moves"
    if settings["tolerance"] == 0:
        assert verdict.bitwise, verdict.line()
        compared = settings.get("parameters_compared", True)
        assert verdict.max_abs_param_diff == (0 if compared else None)


FAULTS = {
    "no gradient averaging in one unit": (
        "model = shard_model(",
        "model = without_average(",
        """

def without_average(model, **arguments):
    shard_model(model, **arguments)
    unit = next(module for module in model.modules() if isinstance(module, Block))
    unit.set_gradient_divide_factor(1.0)
    unit.set_force_sum_reduction_for_comms(True)
    return model

""",
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_makes_verify_exit_with_1(fault: str, tmp_path: Path) -> None:
    right, wrong, helper = FAULTS[fault]
    original = FIXTURES / "meta_init" / "original" / "train.py"
    migrated = (FIXTURES / "meta_init" / "migrated" / "train.py").read_text("utf-8")
    assert migrated.count(right) == 1
    assert migrated.count("\ndef main(") == 1
    broken = tmp_path / "train.py"
    text = migrated.replace(right, wrong).replace("\ndef main(", f"{helper}\ndef main(")
    broken.write_text(text, "utf-8")
    command = [FSDP_MIGRATE, "verify", original, "--migrated", broken, "--nproc", "2", "--no-plain"]
    done = subprocess.run(
        [*map(str, command), "--device", "cpu"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "different" in done.stdout.splitlines()[-1]


@pytest.mark.thorough
def test_verify_migrates_by_itself_and_exits_with_0() -> None:
    original = FIXTURES / "meta_init" / "original" / "train.py"
    command = [
        FSDP_MIGRATE,
        "verify",
        "--no-plain",
        original,
        "--nproc",
        "2",
        "--device",
        "cpu",
        "--tolerance",
        "0",
    ]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "bitwise equal" in done.stdout.splitlines()[-1]
