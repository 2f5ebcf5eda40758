"""Time, memory and collectives of migrated programs beside those by hand, as one rank of eight on one GPU."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "training.py"

pytestmark = pytest.mark.gpu


def test_a_migrated_program_needs_no_more_than_one_by_hand() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    gigabytes = torch.cuda.get_device_properties(0).total_memory / 2**30
    # The five programs are in memory together.
    size = ["--dim=2048", "--layers=8", "--length=2048", f"--batch={max(1, int(gigabytes // 40))}"]
    command = [sys.executable, "-P", BENCHMARK, "--device=cuda", *size, "--rounds=9"]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()]
    titles, _, fsdp1, hand, *migrated = rows
    whole = titles.index("all, ms") + 1
    for row in migrated:
        assert float(row[-1]) < 1.05 * min(float(fsdp1[-1]), float(hand[-1])), row
        assert row[-2] == hand[-2], row
        assert float(row[whole]) < 1.05, row
