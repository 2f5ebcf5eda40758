"""torch.amp.GradScaler on a migrated model beside ShardedGradScaler on FSDP1's, one rank a GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "scaler.py"

pytestmark = pytest.mark.gpu


def test_the_scalers_skip_and_grow_in_the_same_steps() -> None:
    torch = pytest.importorskip("torch")
    ranks = torch.cuda.device_count()
    if ranks == 0:
        pytest.skip("needs a GPU")
    command = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", str(PROGRAM), "cuda"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert found["theirs"] == found["ours"]
    assert found["ours"][1] < found["ours"][0], "no step was skipped"
    assert found["ours"][-1] > found["ours"][1], "the scale never grew"
    assert found["apart"] < 1e-3
