"""The bundled programs under NCCL, one rank a GPU, as many as there are (`make gpu`)."""

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

FIXTURES = Path(__file__).parents[2] / "fixtures"
CASES = sorted(folder.parent.name for folder in FIXTURES.glob("*/case.toml"))

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("case", CASES)
def test_original_and_migrated_train_the_same(case: str) -> None:
    torch = pytest.importorskip("torch")
    settings = tomllib.loads((FIXTURES / case / "case.toml").read_text("utf-8"))
    devices = torch.cuda.device_count()
    if devices == 0 or (case == "hybrid" and devices < settings["ranks"]):
        pytest.skip(f"{case} needs more than {devices} GPUs")
    verdict = verify(
        FIXTURES / case / "original" / settings["entry"],
        FIXTURES / case / "migrated" / settings["entry"],
        ranks=min(devices, settings["ranks"]),
        arguments=settings["arguments"],
        launcher=Launcher(settings["launcher"]),
        device="cuda",
        tolerance=max(settings["tolerance"], 1e-6),
    )
    assert verdict.backend == "nccl"
    assert verdict.equal, verdict.line()
