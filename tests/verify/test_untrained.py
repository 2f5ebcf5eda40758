"""A sharded model that no optimizer has, such as a moving average, is compared when the programs have ended."""

from pathlib import Path

import pytest

from fsdp_migrate.verify.folders import copy
from fsdp_migrate.verify.judge import judge
from fsdp_migrate.verify.migrated import migrate
from fsdp_migrate.verify.options import Options, Recording
from fsdp_migrate.verify.records import Run
from fsdp_migrate.verify.run import run_program
from fsdp_migrate.verify.values import last

pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("forked")]

PROGRAM = Path(__file__).parent / "averaged" / "train.py"
RECORDING = Recording(canonical=True)


def test_a_moving_average_is_part_of_the_verdict(tmp_path: Path) -> None:
    def run(form: str) -> Run:
        folder = tmp_path / (form or "original")
        folder.mkdir()
        program = copy("original", PROGRAM, folder / "copy")
        if form:
            migrate(program.root, form)
        how = Options(launcher="torchrun", device="cpu", timeout=120)
        return run_program(program, folder, how, RECORDING)

    original, torch, auto = run(""), run("torch"), run("auto")
    names = {
        name.removesuffix(".weight").removesuffix("weight") for name in last(original).parameters
    }
    assert names >= {"", "model 2", "untrained model"}
    verdict = judge(original, torch, 1e-6, RECORDING)
    assert not verdict.equal
    assert "last parameters differ: untrained model." in verdict.line()
    assert judge(original, auto, 1e-6, RECORDING).equal
