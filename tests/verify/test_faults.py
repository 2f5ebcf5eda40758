"""What a program does to its machine: nothing of it is left, and its end is told rightly."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.verify import command, failures, processes
from fsdp_migrate.verify.errors import ProgramFailed
from fsdp_migrate.verify.folders import Program
from fsdp_migrate.verify.records import Rank

FSDP_MIGRATE = Path(sys.executable).parent / "fsdp-migrate"

# A child in a session of its own that ignores what can be ignored, and its child.
LEAVES = """
import os, signal, subprocess, sys, time
child = "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
child += "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); time.sleep(60)"
subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
time.sleep(0.3)
"""
FLOODS = "while True: print('x' * 10_000)"


def run(code: str, folder: Path, timeout: float = 30.0) -> processes.Outcome:
    place = folder / "original"
    (place / "records").mkdir(parents=True)
    values = {**os.environ, "FSDP_MIGRATE_RECORD": str(place / "records")}
    command = [sys.executable, "-c", code]
    return processes.run(command, folder, values, place / "output", timeout)


def told(outcome: processes.Outcome, folder: Path) -> str:
    program = Program("original", folder, folder / "train.py", folder)
    with pytest.raises(ProgramFailed) as caught:
        failures.check(failures.Scene(program, outcome, folder / "original", 0, []))
    return caught.value.reason


def left(folder: Path) -> list[str]:
    """The processes that have the folder in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            pid, is_left = path.parent.name, os.fsencode(str(folder)) in path.read_bytes()
            if is_left and int(pid) != os.getpid():
                found.append(pid)
        except OSError:
            continue
    return found


linux = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")


@linux
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (LEAVES, "no rank called backward"),
        (LEAVES + "sys.exit(5)", "exit status 5"),
        (LEAVES + "os.kill(os.getpid(), signal.SIGKILL)", "exit status -9"),
        (LEAVES + "time.sleep(60)", "it did not end within 2 seconds"),
    ],
    ids=["ends", "fails", "killed", "hangs"],
)
def test_no_process_is_left(code: str, reason: str, tmp_path: Path) -> None:
    outcome = run(code, tmp_path, timeout=2.0)
    assert left(tmp_path / "original") == []
    assert told(outcome, tmp_path) == reason


def test_endless_output_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "OUTPUT", 1 << 20)
    monkeypatch.setattr(processes, "_PAUSE", 0.02)
    outcome = run(FLOODS, tmp_path)
    assert outcome.flooded
    assert outcome.seconds < 20
    assert told(outcome, tmp_path).startswith("it printed more than")


LOST = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection reset by peer"
CHILD = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \ntrain.py FAILED"
TRACE = 'Traceback (most recent call last):\n  File "/x.py", line 1, in <module>\n    f()\nKeyError: no state:\n'


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        ({1: (1, "ValueError: no data")}, "rank 1 raised ValueError: no data"),
        ({1: (1, TRACE + "\tof x\nof y")}, "rank 1 raised KeyError: no state:"),
        ({-1: (1, "ValueError: no")}, "tool.py, a process that is no rank, raised ValueError: no"),
        ({1: (0, "")}, "rank 0 was in a collective when rank 1 had left the program"),
        ({1: (1, LOST)}, "rank 0 was in a collective when another rank had left the program"),
        (
            {-1: (1, CHILD), 1: (0, "")},
            "rank 0 was in a collective when rank 1 had left the program",
        ),
    ],
)
def test_a_lost_connection_follows_from_another_ranks_end(
    others: dict[int, tuple[int, str]], reason: str, tmp_path: Path
) -> None:
    records = tmp_path / "original" / "records"
    records.mkdir(parents=True)
    endings = {0: (1, LOST), **others}
    for number, (status, failure) in endings.items():
        ending = {"rank": number, "status": status, "code": status, "failure": failure}
        ending["process"] = "/usr/tool.py"
        text = json.dumps({**ending, "ended": float(abs(number))})
        (records / f"process-{10 + number}.json").write_text(text)
    ranks = [Rank(number, [1.0], [1], [1.0], [[0.1]]) for number in endings if number >= 0]
    program = Program("original", tmp_path, tmp_path / "train.py", tmp_path)
    scene = failures.Scene(
        program, processes.Outcome(1, 1.0), tmp_path / "original", len(ranks), ranks
    )
    with pytest.raises(ProgramFailed) as caught:
        failures.check(scene)
    assert caught.value.reason == reason
    assert ("collective" in reason) == ("collective calls" in str(caught.value))


def test_a_long_traceback_keeps_the_programs_last_frame(tmp_path: Path) -> None:
    program = Program("migrated", tmp_path, tmp_path / "train.py", tmp_path)
    own = [f'  File "{tmp_path}/train.py", line {n}, in f\n    f({n})' for n in range(3)]
    torch = [f'  File "/torch/x.py", line {n}, in x\n    x({n})' for n in range(20)]
    trace = "\n".join(["Traceback (most recent call last):", *own, *torch, "ValueError: no"])
    scene = failures.Scene(program, processes.Outcome(1, 1.0), tmp_path / "migrated", 2, [])
    lines = scene.failed("no", trace).details.splitlines()
    assert lines[:3] == [
        "Traceback (most recent call last):",
        '  File "train.py", line 0, in f',
        "    f(0)",
    ]
    assert '  File "train.py", line 2, in f' in lines
    assert "  ..." in lines
    assert lines[-1] == "ValueError: no"
    assert len(lines) == 30


PROGRAM = """
import os, pathlib, subprocess, sys, time
subprocess.Popen(["sleep", "60"], start_new_session=True)
pathlib.Path(os.environ["BEGUN"]).touch()
time.sleep(60)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
FSDP(None)
"""


def interrupted(tmp_path: Path, number: int, delay: float | None = None) -> tuple[int, str]:
    """`verify` on a program that sleeps, ended by a signal; its exit status and what it says."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(PROGRAM)
    (tmp_path / "tmp").mkdir()
    begun = tmp_path / "begun"
    values = {**os.environ, "BEGUN": str(begun), "TMPDIR": str(tmp_path / "tmp")}
    command = [FSDP_MIGRATE, "verify", tmp_path / "src" / "train.py", "--device", "cpu"]
    process = subprocess.Popen(
        [*map(str, command), "--launcher", "python"],
        env=values,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A job in the background of a shell ignores SIGINT, and so would what it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    end = time.monotonic() + (60 if delay is None else delay)
    while time.monotonic() < end and not (begun.exists() and delay is None):
        time.sleep(0.01)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    return process.returncode, output


@linux
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.thorough)]
)
def test_an_interruption_leaves_nothing(number: int, tmp_path: Path) -> None:
    status, output = interrupted(tmp_path, number)
    assert status == 128 + number, output
    assert f"ended by {signal.Signals(number).name}" in output
    assert list((tmp_path / "tmp").iterdir()) == []
    assert left(tmp_path / "tmp") == []


@linux
@pytest.mark.thorough
def test_an_interruption_at_any_moment_leaves_nothing(tmp_path: Path) -> None:
    draw = random.Random(7)
    for attempt in range(20):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        status, output = interrupted(folder, draw.choice(processes._SIGNALS), draw.uniform(0, 6))
        assert status != 0, output
        assert list((folder / "tmp").iterdir()) == [], output
        assert left(folder / "tmp") == [], output


@linux
@pytest.mark.parametrize("ending", ["interrupt", "failure", "result"])
def test_on_a_terminal_each_message_has_its_own_line(
    ending: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def verify(*_: object, progress: Any, **options: object) -> Any:
        progress.stage("running")
        progress.now("original: step 3")
        if ending == "interrupt":
            raise processes.Interrupted(signal.SIGINT)
        if ending == "failure":
            raise ProgramFailed("original", "no", "Traceback")
        progress.stage("comparing")
        raise ProgramFailed("original", "no", "Traceback")

    monkeypatch.setattr(command, "verify", verify)
    monkeypatch.setattr(command, "is_terminal", lambda: True)
    with pytest.raises(SystemExit):
        command.verify_command([__file__])
    lines = capsys.readouterr().err.replace("\r\x1b[K", "\n").splitlines()
    assert "original: step 3, 0 s" in lines
    assert any(line.startswith(("fsdp-migrate verify: ended by", "Traceback")) for line in lines)
