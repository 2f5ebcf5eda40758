"""Time and memory of a migrated program beside FSDP1's, as one rank of eight on one GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "training.py"

pytestmark = pytest.mark.gpu


def test_a_migrated_program_needs_no_more_than_fsdp1() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    gigabytes = torch.cuda.get_device_properties(0).total_memory / 2**30
    size = ["--dim=2048", "--layers=24", "--length=2048", f"--batch={max(1, int(gigabytes // 12))}"]
    command = [sys.executable, "-P", BENCHMARK, "--device=cuda", *size, "--rounds=3"]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    ratios = [float(line.split("ratio ")[1].split()[0]) for line in done.stdout.splitlines()]
    time, memory = ratios
    assert memory < 1.05
    assert time < 1.15
