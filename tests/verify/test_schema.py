"""What `verify --json` writes is what its schema says."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fsdp_migrate.verify.command import verify_command
from fsdp_migrate.verify.verdict import Verdict

from ..schemas import problems
from .test_page import VERDICTS


@pytest.mark.parametrize("verdict", VERDICTS.values(), ids=VERDICTS)
def test_every_verdict_is_valid(verdict: Verdict) -> None:
    document = json.loads(json.dumps(verdict.to_json(), allow_nan=False))
    assert problems(document, "verify") == []


@pytest.mark.ranks
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    "fault",
    [(), pytest.param(("--fault", "lr"), marks=pytest.mark.thorough)],
    ids=["same", "different"],
)
def test_the_verdict_of_a_run_is_valid(
    fault: tuple[str, ...], programs: Path, tmp_path: Path
) -> None:
    file = tmp_path / "result.json"
    both = [str(programs / "original.py"), "--migrated", str(programs / "migrated.py")]
    command = [*both, "--device", "cpu", "--json", str(file), "--", *fault]
    done = CliRunner().invoke(verify_command, command)
    assert done.exit_code == (1 if fault else 0), done.output
    document = json.loads(file.read_text())
    assert problems(document, "verify") == []
    assert document["equal"] == (not fault)
    assert bool(document["where"]) == bool(fault)
