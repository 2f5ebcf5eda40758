"""What trains bitwise as under FSDP1 does so wherever its operands are in memory, and with the kernels of other processors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .behaviour import areas  # noqa: F401  (registers the behaviours)
from .behaviour.registry import BEHAVIOURS
from .equivalence.cases import COMPARISONS
from .equivalence.plain import PLAIN
from .equivalence.train import differences
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
CASES = {each.name: each for each in (*COMPARISONS, *(p.case for p in PLAIN))}
TRAINED = (
    "program-plain-unused", "program-plain-norms", "program-plain-partial", "policy-custom-precision",
    "mixed-bf16", "no-sync-full-shard", "clip-not-reached",
)  # fmt: skip
BEHAVED = (
    "precision.training", "precision.batch_norms", "initialization.empty_parameters",
)  # fmt: skip


def in_each_form(result: dict[str, Any]) -> list[dict[str, Any]]:
    """One rank's results: a behaviour's stand by form, a comparison's are the bridge's, and hold those of other forms."""
    forms = [result[form] for form in ("bridge", "in place", "torch") if form in result]
    return forms if "bridge" in result else [result, *forms]


def different(folder: Path) -> dict[str, list[str]]:
    """What is not bitwise the same, by name, when a sample runs with operands that are nowhere aligned."""
    found = {}
    for module, names in (("equivalence.ranks", TRAINED), ("behaviour.ranks", BEHAVED)):
        place = folder / module
        place.mkdir()
        assert not launch(place, "-m", "misaligned", module, "2", str(place), *names)
        results = results_in(place)
        assert results.keys() == {*names}
        for name in names:
            forms = [form for result in results[name] for form in in_each_form(result)]
            assert len(forms) >= 2, "not every rank finished"
            for result in forms:
                assert "error" not in result, result["error"]
                assert "refusal" not in result, result["trace"]
                known = name in BEHAVIOURS
                lines = result["differences"] if known else differences(CASES[name], result, True)
                found.setdefault(name, []).extend(lines)
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
