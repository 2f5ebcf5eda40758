"""The bundled programs under NCCL, one rank a GPU, as many as there are (`make gpu`)."""

from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.verify.main import verify

from ..bundled import FIXTURES, RUNS
from ..gallery import FORMS, write_migrated

pytestmark = pytest.mark.gpu

# Its optimizer is made above the sharding; in torch's own words it is left behind, as a finding says.
DIFFERENT = {("order", "torch")}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("case", "settings"), RUNS)
def test_original_and_migrated_train_the_same(
    case: str, settings: dict[str, Any], form: str, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    devices = torch.cuda.device_count()
    grouped = settings["ranks"] > 2  # only the whole number of ranks can be split into groups
    if devices == 0 or (grouped and devices < settings["ranks"]):
        pytest.skip(f"{case} needs more than {devices} GPUs")
    ranks = min(devices, settings["ranks"])
    arguments = settings["arguments"]
    if "--nproc" in arguments:  # it starts its ranks itself
        arguments = ["--nproc", str(ranks)]
    verdict = verify(
        FIXTURES / case / "original" / settings["entry"],
        write_migrated(case, tmp_path, form) / settings["entry"],
        ranks=ranks,
        arguments=arguments,
        launcher=settings["launcher"],
        device="cuda",
        tolerance=max(settings["tolerance"], 1e-6),
    )
    assert verdict.backend == "nccl"
    assert verdict.equal is ((case, form) not in DIFFERENT), verdict.line()
