"""What programs print: compared by words and numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fsdp_migrate.verify import outputs
from fsdp_migrate.verify.compare import Difference
from fsdp_migrate.verify.judge import judge
from fsdp_migrate.verify.options import Recording
from fsdp_migrate.verify.records import Rank, Run

from .written import verdict


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
        ("a 1\na 2", "a 1", True),
        ("a nan", "a nan", False),
        ("a nan", "a 1.5", True),
        ("loss 1", "loss 1.02", True),
        ("tensor([1.])", "tensor([2.])", True),
        # without numbers
        ("saved", "saved", False),
        ("saved the best", "", True),
        ("", "skipped: no model", True),
        ("a\nb", "b\na", False),
        ("wrapped: True", "wrapped: False", True),
        ("<Model at 0x7f12>", "<Model at 0x7f99>", False),
        # times and rates by any name, and what stands beside them
        ("time_taken: 27.7", "time_taken: 31.2", False),
        ("{'stepTime': 0.3}", "{'stepTime': 0.4}", False),
        ("512.0 samples/sec", "498.1 samples/sec", False),
        ("took 900ms", "took 1.2s", False),
        ("took 3.2s, loss 1.5", "took 9.9s, loss 1.9", True),
        ("2026-11-27 03:13:15,123 INFO loss 2.31", "2026-11-27 03:14:02,001 INFO loss 2.41", True),
        ("2026-11-27 03:13:15,123 INFO loss 2.31", "2026-11-27 03:14:02,001 INFO loss 2.31", False),
        ("loss 2.31 at 512 tokens/s", "loss 2.91 at 512 tokens/s", True),
        # one number each
        ("13,648 parameters", "13,648 parameters", False),
        ("13.6K parameters", "27.3K parameters", True),
        ("torch 2.13.0", "torch 2.13.1", True),
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
        (["13,648 parameters", ""], ["27,296 parameters", ""], "a count or sum"),
        (["13.6K params", "13.6K params"], ["27.3K params"] * 2, "a count or sum"),
        (["1_024 elements", "1_024 elements"], ["2_048 elements"] * 2, "a count or sum"),
        # a norm is no whole number
        (["steps 3", "steps 4"], ["steps 5"] * 2, ""),
        (["size 0", "size 512"], ["size 512", "size 512"], "a count or sum"),
        (["30,000 weights", "40,000 weights"], ["50,000 weights"] * 2, ""),
        # one rank's number that has changed, beside a rank that has nothing
        (["average 63.62", "average 0.0"], ["average 63.27", "average 0.0"], ""),
    ],
)
def test_what_is_printed_is_no_verdict(ones: list[str], others: list[str], cause: str) -> None:
    judged = judge(run(*ones), run(*others), 0, Recording())
    assert judged.equal
    (line,) = judged.printed
    assert line.cause.startswith(cause)
    assert bool(line.cause) == bool(cause)
    text = "same: 1 loss on 2 ranks bitwise equal, largest difference 0; 1 printed line differs"
    if not cause:
        text += ", 1 without a known cause: look at the code that prints it"
    assert judged.line() == text
    assert str(line) in judged.seen()


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
    assert found.line().endswith("1 against 2 (its first run against its second)")
    assert found.to_json()["deterministic"] is False
    told = twice.without(twice).cause
    assert told is not None
    assert told.title.startswith("the original trains differently each time")
    assert told.advice.startswith("Look in it for a seed")


def test_many_lines_that_only_one_program_prints_are_counted() -> None:
    before = "\n".join(f"layer {letter}: FullyShardedDataParallel(" for letter in "abcdefghij")
    found = outputs.printed(run(before), run("layers: ten"), 1e-6)
    assert len(found) == 5
    assert found[0].text == "only the original has 'layer a: FullyShardedDataParallel('"
    assert "other classes of modules" in found[0].cause
    assert found[-1].text.endswith("(and 6 more lines)")
