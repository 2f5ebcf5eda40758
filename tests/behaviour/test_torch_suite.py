"""Tests of ``benchmarks/torch_suite.py``, on a test file of this project in PyTorch's manner."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "benchmarks" / "torch_suite.py"

TESTS = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.testing._internal.common_distributed import skip_if_lt_x_gpu
from torch.testing._internal.common_fsdp import FSDPTest
from torch.testing._internal.common_utils import run_tests


class TestMadeUp(FSDPTest):
    @property
    def world_size(self):
        return 2

    def _model(self):
        torch.manual_seed(0)
        return FSDP(nn.Linear(4, 4).cuda(), device_id=torch.cuda.current_device())

    @skip_if_lt_x_gpu(2)
    def test_trains(self):
        model = self._model()
        model(torch.ones(1, 4, device="cuda")).sum().backward()
        with FSDP.summon_full_params(model):
            self.assertEqual(next(model.parameters()).numel() % 16, 0 if model.module else 1)
        self.assertEqual(model.rank, self.rank)

    @skip_if_lt_x_gpu(2)
    def test_private(self):
        model = self._model()
        self.assertEqual(model._handle.rank, self.rank)
        self.assertEqual(model.world_size, 2)

    @skip_if_lt_x_gpu(2)
    def test_of_one_rank_alone(self):
        if self.rank == 0:
            self.assertTrue(issubclass(type(self._model()), FSDP) and False)
        else:
            torch.distributed.barrier()

    def test_waits(self):
        if self.rank == 0:
            torch.distributed.barrier()
            torch.distributed.barrier()
        else:
            import time
            time.sleep(600)


if __name__ == "__main__":
    run_tests()
"""


def suite(folder: Path, *more: str) -> str:
    command = [sys.executable, str(PROGRAM), str(folder), "--results", str(folder / "kept")]
    done = subprocess.run(
        [*command, "--seconds", "40", *more], capture_output=True, text=True, check=True
    )
    return done.stdout


def outcomes(folder: Path, form: str) -> dict[str, str]:
    lines = (folder / "kept" / f"test_made_up.{form}.jsonl").read_text().splitlines()
    results = [json.loads(line) for line in lines]
    return {each["test"].rpartition(".")[2]: each["outcome"] for each in results if each["test"]}


@pytest.mark.ranks
@pytest.mark.thorough
def test_a_file_is_run_with_each_form(tmp_path: Path) -> None:
    tests = TESTS.replace("test_waits", "waits")
    (tmp_path / "test_made_up.py").write_text(tests)
    page = suite(tmp_path)
    assert outcomes(tmp_path, "fsdp1") == {
        "test_of_one_rank_alone": "failed",
        "test_private": "passed",
        "test_trains": "passed",
    }
    for form in ("bridge", "in place"):
        assert outcomes(tmp_path, form) == {"test_private": "failed", "test_trains": "passed"}
        again = outcomes(tmp_path, f"{form}, private assertions skipped")
        assert again == {"test_private": "passed"}
    assert "| test_made_up.py | 2 | 1 | 1 |" in page
    assert "| private parts of FSDP1 (FSDP366) | 1 | 1 |" in page
    assert "a test that passes with torch's FSDP1 there. 2 do;" in page.replace("\n", " ")

    # What is known stays, and only what is missing runs again.
    kept = tmp_path / "kept" / "test_made_up.bridge.jsonl"
    lines = [line for line in kept.read_text().splitlines() if "test_trains" not in line]
    kept.write_text("".join(f"{line}\n" for line in lines).replace("FSDP366", "planted"))
    assert "| test_made_up.py | 2 | 1 | 1 |" in suite(tmp_path)
    assert "planted" in kept.read_text()


@pytest.mark.ranks
@pytest.mark.thorough
def test_a_test_that_waits_for_ever_is_ended(tmp_path: Path) -> None:
    (tmp_path / "test_made_up.py").write_text(TESTS.replace("def test_trains", "def trains"))
    suite(tmp_path, "--seconds", "15")
    assert outcomes(tmp_path, "fsdp1")["test_waits"] == "failed"
    assert outcomes(tmp_path, "fsdp1")["test_private"] == "passed"


def test_the_tables_take_the_place_of_those_before(tmp_path: Path) -> None:
    script = f"""
import sys
sys.path.insert(0, {str(PROGRAM.parent)!r})
import torch_suite
from pathlib import Path
page = Path({str(tmp_path / "page.md")!r})
page.write_text("# Page\\n\\nText.\\n")
torch_suite.write(torch_suite.TITLE + "one\\n", page)
torch_suite.write(torch_suite.TITLE + "two\\n", page)
print(page.read_text())
print(torch_suite.kind_of(dict(error="ValueError", message="(fsdp-migrate explain FSDP999)", source="")))
print(torch_suite.kind_of(dict(error="AssertionError", message="Tensor-likes are not close", source="")))
print(torch_suite.kind_of(dict(error="KeyError", message="", source="")))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n\n")[:3] == ["# Page", "Text.", "## PyTorch's own test files\ntwo"]
    assert done.stdout.endswith("refused, with another rule's code\nnumbers differ\nelse\n")
