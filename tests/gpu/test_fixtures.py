"""The bundled programs under NCCL, one rank a GPU, as many as there are (`make gpu`)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.verify.launch import Launcher
from fsdp_migrate.verify.main import verify

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FIXTURES = Path(__file__).parents[2] / "fixtures"
CASES = {
    file.parent.name: tomllib.loads(file.read_text("utf-8"))
    for file in sorted(FIXTURES.glob("*/case.toml"))
}
RUNS = [
    pytest.param(case, {**settings, **run}, id=" ".join([case, *run.get("arguments", ())]))
    for case, settings in CASES.items()
    for run in settings.get("runs", [{}])
]

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("case", "settings"), RUNS)
def test_original_and_migrated_train_the_same(case: str, settings: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    devices = torch.cuda.device_count()
    grouped = settings["ranks"] > 2  # only the whole number of ranks can be split into groups
    if devices == 0 or (grouped and devices < settings["ranks"]):
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
