"""The proof for the bundled programs: original and migrated train the same, under real torchrun and real gloo."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fsdp_migrate.verify.launch import Launcher
from fsdp_migrate.verify.main import verify

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FIXTURES = Path(__file__).parent.parent / "fixtures"
CASES = sorted(folder.parent.name for folder in FIXTURES.glob("*/case.toml"))

pytestmark = pytest.mark.ranks


@pytest.mark.parametrize("case", CASES)
def test_original_and_migrated_train_the_same(case: str) -> None:
    settings = tomllib.loads((FIXTURES / case / "case.toml").read_text("utf-8"))
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
        assert verdict.max_abs_param_diff == 0


def test_a_planted_fault_is_caught(tmp_path: Path) -> None:
    """A reshard strategy may change without a trace in the losses; a lost average may not."""
    original = FIXTURES / "hybrid" / "original" / "train_hybrid.py"
    migrated = (FIXTURES / "hybrid" / "migrated" / "train_hybrid.py").read_text("utf-8")
    sharded = "fully_shard(model, mesh=mesh)\n"
    assert migrated.count(f"    {sharded}") == 1
    fault = (
        "    model.set_gradient_divide_factor(1.0)\n"
        "    model.set_force_sum_reduction_for_comms(True)\n"
    )
    broken = tmp_path / "train_hybrid.py"
    broken.write_text(migrated.replace(f"    {sharded}", f"    {sharded}{fault}"), "utf-8")
    verdict = verify(
        original, broken, ranks=4, launcher=Launcher.TORCHRUN, device="cpu", timeout=240
    )
    assert not verdict.equal
    assert verdict.first is not None
