"""What is said while programs run: how far they are, and the first difference with the parameters that differ."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.verify import command, main
from fsdp_migrate.verify.folders import Program
from fsdp_migrate.verify.live import Live
from fsdp_migrate.verify.options import Options, Progress

NAMES = ["enter", "block", "leave"]


class Told(Progress):
    """What was said."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.last = ""

    def stage(self, text: str) -> None:
        self.stages.append(text)

    def now(self, text: str) -> None:
        self.last = text


def write(folder: Path, name: str, rank: int, **values: Any) -> None:
    """One more step of a rank, as the recorder writes it."""
    path = folder / name / "records" / f"process-{rank + 1}.steps"
    path.parent.mkdir(parents=True, exist_ok=True)
    line = {
        **{"rank": rank, "world": 2, "dtypes": ["torch.float32"] * 2, "rates": [0.1], "time": 1.0},
        **{"losses": [2.0], "square": 3.0, "gradients": [1.0, 1.0, 1.0], "values": [1.0, 4.0, 9.0]},
        **({} if path.exists() else {"names": NAMES}),
    }
    with path.open("a") as file:
        file.write(json.dumps({**line, **values}) + "\n")


def step(folder: Path, **migrated: Any) -> None:
    """One more step of both programs; the second rank of the migrated one has other values."""
    for rank in (0, 1):
        write(folder, "original", rank)
        write(folder, "migrated", rank, **(migrated if rank else {}))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            {"gradients": [1.0, 2.0, 1.0], "square": 4.0},
            "gradient norm differs first at step 2: 2.4494897 against 2.6457513; the gradient of block differs",
        ),
        (
            {"gradients": [2.0, 2.0, 1.0], "square": 5.0},
            "gradient norm differs first at step 2: 2.4494897 against 2.8284271; the gradients of 2 parameters "
            "differ, the last in the order of the model is block",
        ),
        (
            {"losses": [2.5], "values": [1.0, 4.5, 9.5]},
            "loss differs first at step 2 on rank 1: 2 against 2.5; 2 parameters differ, the first in the order of the model "
            "is block",
        ),
        # Where all differ, no name tells anything.
        (
            {"losses": [2.5], "values": [1.5, 4.5, 9.5]},
            "loss differs first at step 2 on rank 1: 2 against 2.5",
        ),
        ({"losses": [2.5]}, "loss differs first at step 2 on rank 1: 2 against 2.5"),
        ({"rates": [0.2]}, "learning rate differs first at step 2 on rank 1: 0.1 against 0.2"),
    ],
)
@pytest.mark.parametrize("quick", [True, False])
def test_the_first_difference_is_said_at_once(
    values: dict[str, Any], text: str, quick: bool, tmp_path: Path
) -> None:
    told = Told()
    live = Live(tmp_path, Options(quick=quick, progress=told))
    assert not live.look()
    step(tmp_path)
    assert not live.look()
    assert (told.stages, told.last) == ([], "original: step 1, migrated: step 1")
    step(tmp_path, **values)
    assert live.look() == quick
    assert str(live.first) == text
    step(tmp_path, losses=[9.0])
    live.look()
    assert told.stages == [f"so far: {text}"], "only the first one"


def test_a_step_counts_when_every_rank_has_finished_it(tmp_path: Path) -> None:
    live = Live(tmp_path, Options())
    write(tmp_path, "original", 0)
    write(tmp_path, "migrated", 0, losses=[9.0])
    live.look()
    assert (live.steps("original"), live.first) == (0, None)
    write(tmp_path, "original", 1)
    (tmp_path / "migrated" / "records" / "process-2.steps").write_text('{"rank": 1, "wor')
    live.look()
    assert (live.steps("original"), live.first) == (1, None)
    (tmp_path / "migrated" / "records" / "process-2.steps").unlink()
    write(tmp_path, "migrated", 1)
    live.look()
    assert "loss differs first at step 1 on rank 0" in str(live.first)


@pytest.mark.parametrize("terminal", [True, False])
def test_how_far_it_is_shows_on_a_terminal_only(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(command, "is_terminal", lambda: terminal)
    progress = command._Progress()
    progress.stage("running the original program")
    progress.now("original: step 3")
    progress.stage("comparing")
    shown = capfdbinary.readouterr().err.split(b"\r\x1b[K")
    stages = [b"running the original program\n", b"comparing\n"]
    if terminal:
        assert shown == [b"", stages[0], b"original: step 3, 0 s", stages[1]]
    else:
        assert shown == [b"".join(stages)]


@pytest.mark.parametrize(
    ("options", "script", "expected"),
    [
        ({"ranks": 1}, "", True),
        ({"ranks": 2}, "", False),
        ({"ranks": 2, "side_by_side": True}, "", True),
        ({"ranks": 1, "side_by_side": False}, "", False),
        ({"ranks": 1, "arguments": ["--out=/data/run"]}, "", False),
        ({"ranks": 1, "device": "cuda"}, "", False),
        ({"ranks": 1, "align_init": True, "side_by_side": True}, "", False),
        ({"ranks": 1}, "import torch\ntorch.multiprocessing.spawn(f)\n", False),
    ],
)
def test_what_runs_side_by_side(
    options: dict[str, Any],
    script: str,
    expected: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    (tmp_path / "train.py").write_text(script)
    how = Options(**{"device": "cpu", **options})
    program = Program("original", tmp_path, tmp_path / "train.py", tmp_path)
    pair = main.Pair(program.script, None, how)
    assert pair._side_by_side(program) == expected


@pytest.mark.ranks
@pytest.mark.thorough
def test_quick_ends_both_programs_at_the_first_difference(programs: Path) -> None:
    told = Told()
    verdict = main.verify(
        programs / "original.py",
        programs / "migrated.py",
        arguments=["--steps", "20000", "--fault", "lr"],
        launcher="torchrun",
        device="cpu",
        quick=True,
        side_by_side=True,
        progress=told,
    )
    assert "learning rate differs first at step 1 on rank 0" in verdict.line()
    assert verdict.original.steps < 20000
    assert told.stages[1].startswith("running the migrated program"), "beside the original"
    assert [text for text in told.stages if text.startswith("so far: learning rate")]
