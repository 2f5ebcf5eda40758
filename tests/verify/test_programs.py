"""`verify` on programs that train: what is the same, what is not, and what fails."""

import json
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from fsdp_migrate.discover import Discovered
from fsdp_migrate.findings import Action, Finding
from fsdp_migrate.report import Change, Report
from fsdp_migrate.settings import Options
from fsdp_migrate.verify import ProgramFailed, processes
from fsdp_migrate.verify.command import verify_command
from fsdp_migrate.verify.compare import compare
from fsdp_migrate.verify.main import verify
from fsdp_migrate.verify.next_steps import NextSteps
from fsdp_migrate.verify.records import Run
from fsdp_migrate.verify.verdict import Verdict

from .conftest import last_apart

pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("forked")]

RunProgram = Callable[..., Run]

ADAM = ("--optimizer", "Adam", "--lr", "0.01")


@pytest.mark.thorough
def test_torchrun_is_recorded_like_what_is_forked(
    run: RunProgram, request: pytest.FixtureRequest
) -> None:
    forked = run("original")
    request.getfixturevalue("interpreters")
    launched = run("original", "--steps", "4")  # the same, which runs once more
    assert len(launched.ranks) == 2
    assert [rank.losses for rank in launched.ranks] == [rank.losses for rank in forked.ranks]
    assert compare(launched, forked, 0).bitwise
    assert last_apart(launched, forked) == 0


@pytest.mark.thorough
@pytest.mark.usefixtures("interpreters")
def test_torchrun_end_to_end(programs: Path, tmp_path: Path) -> None:
    arguments = [
        str(programs / "original.py"),
        "--migrated",
        str(programs / "migrated.py"),
        "--tolerance",
        "0",
        "--json",
        str(tmp_path / "result.json"),
    ]
    result = CliRunner().invoke(verify_command, [*arguments, "--", "--optimizer", "Adam"])
    assert result.exit_code == 0, result.output
    last = result.stdout.splitlines()[-1]
    assert last == "same: 4 losses on 2 ranks bitwise equal, largest difference 0"
    data = json.loads((tmp_path / "result.json").read_text())
    assert (data["equal"], data["bitwise"], data["backend"]) == (True, True, "gloo")
    assert (data["ranks"], data["steps"], data["max_abs_param_diff"]) == (2, 4, 0)
    assert [len(losses) for losses in data["original"]["losses"]] == [4, 4]
    assert data["original"]["collectives"]["reduce_scatter"] == 16  # four units, four steps
    assert data["original"]["peak_memory_bytes"] > 2**20


@pytest.mark.thorough
@pytest.mark.usefixtures("interpreters")
def test_mp_spawn_is_recorded_like_torchrun(run: RunProgram) -> None:
    spawned = run("original", "--spawn", launcher="python")
    assert compare(run("original"), spawned, 0).differences == []
    assert last_apart(run("original"), spawned) == 0


@pytest.mark.parametrize(
    "arguments",
    [pytest.param(["--flat"], marks=pytest.mark.thorough), ["--strategy", "NO_SHARD"]],
    ids=" ".join,
)
def test_every_layout_gives_norm_and_parameters(arguments: list[str], run: RunProgram) -> None:
    one, other = run("original", *arguments), run("migrated")
    comparison = compare(one, other, 0)
    assert comparison.differences == []
    assert comparison.bitwise
    assert comparison.max_rel_grad_norm < 1e-14
    assert one.grad_norms[0] > 0.1
    assert last_apart(one, other) == 0


def test_what_fsdp1_gets_wrong_on_the_cpu_is_put_right(run: RunProgram) -> None:
    one, other = run("original", *ADAM, "--offload"), run("migrated", *ADAM)
    assert compare(one, other, 0).differences == []
    assert last_apart(one, other) == 0


def test_replicas_count_once(run: RunProgram) -> None:
    arguments = ("--strategy", "HYBRID_SHARD", "--steps", "3")
    one, other = run("original", *arguments, ranks=4), run("migrated", *arguments, ranks=4)
    comparison = compare(one, other, 0)
    assert comparison.differences == []
    assert comparison.max_rel_grad_norm < 1e-14
    assert last_apart(one, other) == 0


def test_the_norm_is_the_norm_of_the_whole_gradient(run: RunProgram) -> None:
    plain = run("plain", launcher="python")
    assert plain.grad_norms[0] == pytest.approx(run("original").grad_norms[0], rel=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("tolerance", [0, 1e-6])
def test_a_saved_moving_average_that_stands_is_caught(tolerance: float, programs: Path) -> None:
    def differs(*arguments: str) -> Verdict:
        scripts = programs / "original.py", programs / "migrated.py"
        every = ["--average", "--steps", "2", *arguments]
        return verify(*scripts, arguments=every, device="cpu", tolerance=tolerance, repeat=False)

    assert differs("--flat", "--optimizer", "Adam").equal
    verdict = differs("--fault", "data")
    assert not verdict.equal
    first = "last parameters differ: untrained model.enter.weight by up to"
    assert str(verdict.first).startswith(first)
    assert verdict.bitwise, "the losses say nothing of it"


def test_nan_in_both_is_the_same_and_gradients_may_accumulate(run: RunProgram) -> None:
    arguments = ("--fault", "nan", "--accumulate", "2", "--steps", "2")
    one, other = run("original", *arguments), run("migrated", *arguments)
    assert one.ranks[0].loss_steps == [1, 1, 2, 2]
    assert one.ranks[0].losses[2] != one.ranks[0].losses[2]
    comparison = compare(one, other, 0)
    assert comparison.differences == []
    assert comparison.bitwise
    assert last_apart(one, other) == 0


@pytest.mark.parametrize(
    ("fault", "reason", "launcher"),
    [
        ("exit", "rank 1 ended with exit status 7", "python"),
        ("kill", "rank 1 ended by signal 9", "torchrun"),
    ],
)
def test_a_program_that_fails(fault: str, reason: str, launcher: str, run: RunProgram) -> None:
    with pytest.raises(ProgramFailed) as caught:
        run("original", "--fault", fault, launcher=launcher)
    assert str(caught.value) == f"the original program failed: {reason}"


@pytest.mark.thorough
@pytest.mark.usefixtures("interpreters")
def test_a_program_that_crashes_under_torchrun(programs: Path) -> None:
    with pytest.raises(ProgramFailed) as caught:
        verify(programs / "original.py", programs / "migrated.py", arguments=["--fault", "crash"])
    reason = "rank 1 raised ValueError: no such thing as a third step"
    assert str(caught.value).startswith(f"the original program failed: {reason} (task.py:")
    assert caught.value.details.count("Traceback") == 1
    assert 'raise ValueError("no such thing' in caught.value.details
    assert "rank 0 said last:\n  step 1 done\n  step 2 done" in caught.value.details
    assert "rank 1 said last:\n  step 1 done\n  step 2 done" in caught.value.details


@pytest.mark.parametrize("which", ["original", "migrated"])
def test_a_failure_says_what_to_do_next(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("")
    failure = ProgramFailed(which, "rank 1 raised ValueError", "the trace")
    failure.next = NextSteps("Nothing was compared.", ("Repair it.",))
    monkeypatch.setattr("fsdp_migrate.verify.command.verify", Mock(side_effect=failure))
    result = CliRunner().invoke(verify_command, [str(tmp_path / "train.py")])
    assert result.exit_code == 3
    told, after = result.output.splitlines()[-2:]
    assert f"the {which} program failed: rank 1 raised ValueError" in told
    assert after == "Nothing was compared. Next: repair it."


LIMIT = 100.0


@pytest.mark.thorough
@pytest.mark.usefixtures("interpreters")
def test_a_program_that_hangs_ends_with_the_time(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANGS", str(tmp_path / "hangs"))
    hangs = tmp_path / "hangs"
    # The limit is over as soon as a rank hangs, and the other is in its collective: how long that
    # takes depends on the machine.
    monkeypatch.setattr(
        processes, "_over", lambda end: hangs.exists() and time.time() > hangs.stat().st_mtime + 1
    )
    script = str(programs / "original.py")
    arguments = [script, "--migrated", script, "--timeout", str(LIMIT), "--", "--fault", "hang"]
    result = CliRunner().invoke(verify_command, arguments)
    assert result.exit_code == 3, result.output
    assert f"it did not end within {LIMIT:.0f} seconds" in result.output
    assert "all but rank 1 wait in a collective" in result.output
    assert "in trouble" in result.output


def test_a_copy_is_migrated_where_no_migrated_program_is_named(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.read_bytes() for path in programs.glob("*.py")}

    def analyse(found: Discovered, options: Options) -> Report:
        script = next(path for path in found.files if path.name == "original.py")
        assert not script.is_relative_to(programs)
        after = (programs / "migrated.py").read_bytes()
        finding = Finding(
            "original.py", 7, 1, 7, 2, "FSDP399", "some", Action.MANUAL, "a message", "FSDP"
        )
        change = Change(script, script.read_bytes(), after)
        return Report(findings=[finding], changes=[change])

    engine = types.ModuleType("fsdp_migrate.engine")
    engine.analyse = analyse  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fsdp_migrate.engine", engine)
    arguments = [str(programs / "original.py"), "--launcher", "python"]
    result = CliRunner().invoke(verify_command, [*arguments, "--", "--fault", "lr"])
    assert result.exit_code == 1, result.output
    assert "note: 1 finding needs you: FSDP399 at original.py:7: a message" in result.output
    assert "control: the original trains the same when it runs twice" in result.output
    last = result.stdout.splitlines()[-1]
    assert last.startswith("different: learning rate differs first at step 1 on rank 0")
    assert {path: path.read_bytes() for path in programs.glob("*.py")} == before
