"""What trains bitwise as under FSDP1 does so wherever its operands are in memory, and with the kernels of other processors."""

import subprocess
import sys
from pathlib import Path

import pytest

from .launch import TESTS, launch, results_in

pytestmark = pytest.mark.thorough

# Which instructions MKL, torch itself and oneDNN may use. MKL takes its own for processors of Intel alone, and on others
# COMPATIBLE stands in.
PROCESSORS = {
    "this one": {},
    "AVX2": {
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
    },
    "SSE4.2": {
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
    },
    "any": {"MKL_CBWR": "COMPATIBLE"},
}
SAMPLE = (
    "programs.a_layer_that_is_used_once", "programs.batch_norms", "programs.a_partial_constructor", "precision.training",
    "precision.units_in_different_precision", "precision.batch_norms", "initialization.empty_parameters",
    "accumulation.no_sync_before_the_last", "clipping.below_the_largest", "training.full_shard",
)  # fmt: skip


def different(folder: Path) -> dict[str, list[str]]:
    """What is not bitwise the same, by name, when a sample runs with operands that are nowhere aligned."""
    assert not launch(folder, "-m", "misaligned", "behaviour.ranks", "2", str(folder), *SAMPLE)
    results = results_in(folder)
    assert results.keys() == {*SAMPLE}
    found: dict[str, list[str]] = {name: [] for name in SAMPLE}
    for name, ranks in results.items():
        assert len(ranks) == 2, "not every rank finished"
        for result in ranks:
            assert "error" not in result, result["error"]
            for form in ("bridge", "in place"):
                assert "refusal" not in result[form], result[form]["trace"]
                found[name] += result[form]["differences"]
    return found


@pytest.mark.parametrize("processor", PROCESSORS)
def test_trains_bitwise_wherever_operands_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processor: str
) -> None:
    for name, value in PROCESSORS[processor].items():
        monkeypatch.setenv(name, value)
    assert not any(different(tmp_path).values())


def test_without_the_setting_the_sample_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MKL_CBWR", "")  # a value of the user's, which stays: MKL takes it for none
    probe = [sys.executable, "-m", "misaligned", "differ"]
    if subprocess.run(probe, cwd=TESTS, check=True, capture_output=True).stdout == b"False\n":
        pytest.skip("the matrix library of this processor does not mind where operands are")
    assert any(different(tmp_path).values())
