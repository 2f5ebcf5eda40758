"""How a program ends, whatever it does with its own exceptions: a failure is one, with the status that it has."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from fsdp_migrate.verify.command import verify_command
from fsdp_migrate.verify.errors import ProgramFailed
from fsdp_migrate.verify.folders import copy
from fsdp_migrate.verify.options import Options
from fsdp_migrate.verify.records import Run
from fsdp_migrate.verify.run import run_program

pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("forked")]

# Two ranks that train three steps; the second one raises where `WHEN` says.
PROGRAM = """
import atexit, os, sys, threading
import torch

ENDS, WHEN = sys.argv[1:]
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def raises(moment):
    if moment == WHEN and os.environ["RANK"] == "1":
        raise ValueError("no data")

def train():
    raises("early")
    for step in range(3):
        model(torch.ones(2, 2)).sum().backward()
        if step == 1:
            raises("in the middle")
        optimizer.step()
    raises("at the end")

def hook(*what):
    print("the program's own words for it")
    if ENDS.startswith("hook, sys.exit"):
        sys.exit(int(ENDS.split()[-1]))
    if ENDS.startswith("hook, os._exit"):
        os._exit(int(ENDS.split()[-1]))

sys.excepthook = threading.excepthook = hook
if ENDS == "no hook":
    del sys.excepthook
if ENDS.endswith("in a thread"):
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
elif ENDS == "atexit":
    atexit.register(sys.exit, 3)
    train()
elif ENDS == "caught":
    try:
        train()
    except ValueError as error:
        sys.last_value = None
        sys.exit(f"it ended: {error}")
elif ENDS == "beside":
    thread = threading.Thread(target=raises, args=("beside",))
    thread.start()
    thread.join()
    train()
else:
    train()
if WHEN == "left with 4":
    atexit.register(os._exit, 4)
"""


def ended(tmp_path: Path, *arguments: str) -> Run:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    program = copy("original", script, tmp_path / "original" / "copy")
    how = Options(launcher="torchrun", arguments=arguments, device="cpu", timeout=60)
    return run_program(program, tmp_path, how)


@pytest.mark.parametrize(
    "when",
    [
        "in the middle",
        pytest.param("early", marks=pytest.mark.thorough),
        pytest.param("at the end", marks=pytest.mark.thorough),
    ],
)
@pytest.mark.parametrize(
    ("ends", "status"),
    [
        ("hook", ""),
        ("no hook", ""),
        ("hook, sys.exit 5", " and left with exit status 5"),
        pytest.param("hook, sys.exit 0", "", marks=pytest.mark.thorough),
        pytest.param(
            "hook, os._exit 6", " and left with exit status 6", marks=pytest.mark.thorough
        ),
        ("hook, in a thread", ""),
    ],
)
def test_an_exception_is_a_failure_whatever_hook_it_has(
    ends: str, status: str, when: str, tmp_path: Path
) -> None:
    with pytest.raises(ProgramFailed) as caught:
        ended(tmp_path, ends, when)
    if when == "early" and ends in ("hook, sys.exit 0", "hook, in a thread"):
        assert caught.value.reason == "rank 1 left no record"  # it did nothing that is recorded
        return
    untrained = ", before it trained," if when == "early" else ""
    reason = f"rank 1{untrained} raised ValueError: no data (train.py:11)"
    assert caught.value.reason == reason + status


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("caught", "in the middle"), "rank 1 ended with exit status 1"),
        (("well", "left with 4"), "rank 0 ended with exit status 4"),
    ],
)
def test_a_status_is_the_programs_own(
    arguments: tuple[str, str], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ProgramFailed) as caught:
        ended(tmp_path, *arguments)
    assert caught.value.reason.replace("rank 1", "rank 0") == reason.replace("rank 1", "rank 0")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("well", ""), ""),
        (("atexit", ""), ""),  # Python goes on, and the process ends with 0
        (("beside", "beside"), "a thread that does not train raised ValueError: no data"),
    ],
)
def test_what_ends_well_is_no_failure(
    arguments: tuple[str, str], problem: str, tmp_path: Path
) -> None:
    run = ended(tmp_path, *arguments)
    assert [len(rank.losses) for rank in run.ranks] == [3, 3]
    assert [rank.problems for rank in run.ranks] == [[], [problem] if problem else []]
    assert all(rank.parameters for rank in run.ranks), "the last parameters are known"


@pytest.mark.thorough
@pytest.mark.usefixtures("interpreters")
def test_the_interpreter_tells_the_same(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    result = CliRunner().invoke(
        verify_command, [str(script), "--migrated", str(script), "--", "hook", "in the middle"]
    )
    assert result.exit_code == 3, result.output
    assert "rank 1 raised ValueError: no data (train.py:11)" in result.output
    assert "the program's own words for it" in result.output
