"""What programs print and write: compared by their numbers and by their content."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fsdp_migrate.verify import outputs
from fsdp_migrate.verify.compare import Difference
from fsdp_migrate.verify.judge import judge
from fsdp_migrate.verify.options import Recording
from fsdp_migrate.verify.records import Rank, Run

from .written import verdict

torch = pytest.importorskip("torch")


def run(*outputs: str) -> Run:
    texts = enumerate(outputs or [""])
    return Run([Rank(n, [1.0], [1], [1.0], [[0.1]], output=one) for n, one in texts], seconds=1.0)


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [
        ("eval loss 2.315", "eval loss 2.315", False),
        ("eval loss 2.315", "eval loss 2.316", False),  # one in the last digit
        ("eval loss 2.315", "eval loss 2.318", True),
        ("12 tensors", "13 tensors", True),
        ("accuracy 1.5e-3", "accuracy 1.9e-3", True),
        ("epoch took 3.2s", "epoch took 9.9s", False),
        ("avg_epoch_time, 3.2", "avg_epoch_time, 9.9", False),
        ("overall token per day: 17350984", "overall token per day: 35109127", False),
        ("memory 312 MiB", "memory 900 MiB", False),
        ("wrote /tmp/run1/x.pt", "wrote /tmp/run2/x.pt", False),
        ("a 1\na 2", "a 2\na 1", False),  # ranks that share an output
        ("a 1\na 2", "a 1", False),
        ("a nan", "a nan", False),
    ],
)
def test_numbers_that_are_printed(one: str, other: str, differs: bool) -> None:
    found = outputs.printed(run("same 1", one), run("same 1", other), 1e-6)
    assert [line.rank for line in found] == [1] * differs


@pytest.mark.parametrize(
    ("ones", "others", "cause"),
    [
        (["512 parameters", ""], ["1024 parameters", ""], "a count or sum"),
        (["model has 0.5 M params", ""], ["model has 1.0 M params", ""], "a count or sum"),
        (["loss 0.5", ""], ["loss 1.0", ""], ""),
        (["500 params", "524 params"], ["1024 params"] * 2, "a count or sum"),
        (["norm 3.0", "norm 4.0"], ["norm 5.0"] * 2, "a norm"),
        (["norm 3.0", "norm 4.0"], ["norm 5.5"] * 2, ""),
    ],
)
def test_what_is_printed_is_no_verdict(ones: list[str], others: list[str], cause: str) -> None:
    judged = judge(run(*ones), run(*others), 0, Recording())
    assert judged.equal
    (line,) = judged.printed
    assert line.cause.startswith(cause)
    assert bool(line.cause) == bool(cause)
    text = "same: 1 loss on 2 ranks bitwise equal, largest difference 0; 1 printed line differs"
    assert judged.line() == text
    assert str(line) in judged.seen


def test_that_nothing_was_trained_is_said() -> None:
    idle = Run([Rank(0, [1.0], [1], [], [])], seconds=1.0)
    said = [judge(one, one, 0, Recording()).uncompared for one in (idle, run())]
    assert ["training: no optimizer took a step" in texts for texts in said] == [True, False]


def test_a_line_in_which_the_original_differs_from_itself_is_left_out() -> None:
    one, other = run("port 1", "loss 1"), run("port 2", "loss 2")
    both = judge(one, other, 0, Recording())
    kept = both.without(judge(run("port 1", "loss 1"), run("port 3", "loss 1"), 0, Recording()))
    assert [line.words for line in kept.printed] == ["loss #"]
    assert kept.deterministic


def test_an_original_that_differs_from_itself_is_the_verdict() -> None:
    first = Difference(1, 1, 0, "loss", "1 against 2", 0)
    twice = replace(verdict(run(), run()), differences=[first])
    found = replace(twice, control=twice, emulated=True)
    assert not found.equal
    begins = "undecided (CUDA emulated): the original program differs from itself: loss differs"
    assert found.line().startswith(begins)
    assert found.to_json()["deterministic"] is False


def test_checkpoints_that_both_wrote(tmp_path: Path) -> None:
    trees = {
        "one": {"model": {"w": torch.ones(3)}, "step": 7, "seconds": 1.5},
        "same": {"model": {"w": torch.ones(3)}, "step": 7, "seconds": 9.5},
        "other": {"model": {"w": torch.ones(3) + 0.5}, "step": 7, "seconds": 1.5},
        "later": {"model": {"w": torch.ones(3)}, "step": 8, "seconds": 1.5},
        "less": {"model": {}, "step": 7, "seconds": 1.5},
    }
    told = {}
    for name, tree in trees.items():
        (tmp_path / name).mkdir()
        before = outputs.files(tmp_path / name)
        torch.save(tree, tmp_path / name / "m.pt")
        told[name] = outputs.checkpoints(tmp_path / name, before)
    texts = {
        name: [d.text for d in outputs.compare(told["one"], told[name], 2, 1e-6, 0.0)[1]]
        for name in trees
    }
    assert texts["one"] == texts["same"] == []
    assert texts["other"] == ["model.w by up to 0.5"]
    assert texts["later"] == ["step is 7 against 8"]
    assert texts["less"] == ["model.w is in one of them only"]
    alone = outputs.compare(told["one"], {}, 2, 1e-6, 0.0)
    assert alone[2] == ["only one program wrote m.pt (1 such checkpoints)"]
    assert outputs.checkpoints(tmp_path / "one", outputs.files(tmp_path / "one")) == {}
