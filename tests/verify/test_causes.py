"""From the shape of a difference to its cause, on runs written down by hand."""

import math
from dataclasses import replace
from typing import Any

import pytest

from fsdp_migrate.findings import Action, Finding
from fsdp_migrate.verify import causes
from fsdp_migrate.verify.compare import FILES, Difference, compare
from fsdp_migrate.verify.outputs import Printed
from fsdp_migrate.verify.records import Run
from fsdp_migrate.verify.where.lines import GOES_ON, MEET, Line, Pair

from .written import rank


def run(losses: list[float], norms: list[float], micro: int = 1, **how: object) -> Run:
    """Two ranks; each holds half of the gradient's square."""
    given: dict[str, Any] = {"collectives": {"reduce_scatter": 6}, **how}
    squares = [norm**2 / 2 for norm in norms]
    ranks = [replace(rank(losses, n, micro), squares=squares, **given) for n in range(2)]
    return Run(ranks, seconds=1.0)


LOSSES, NORMS = [3.0, 2.0, 1.0], [1.0, 0.9, 0.8]
RIGHT = run(LOSSES, NORMS)
CLIPPED = run(LOSSES, [0.5, 0.5, 0.5])
FOUR = run([3.0, 3.0, 2.0, 2.0], [1.0, 0.9], micro=2)


def cause(one: Run, other: Run, buffers: str = "") -> str:
    found = causes.find(min(compare(one, other).differences, default=None), one, other, buffers)
    return found.name if found else ""


def test_which_program_alone_clips() -> None:
    clips = [["0.5"]] * 3
    clipped = run(LOSSES, [0.5] * 3, limits=clips)
    plain = run(LOSSES, [2.0, 1.8, 1.6], limits=[[]] * 3)
    first = min(compare(clipped, plain, None).differences)
    found = causes.find(first, clipped, plain, "")
    assert found is not None
    assert found.name == "clipping"
    assert found.title == "the original clips gradients to a norm of 0.5, and the migrated program does not clip"  # fmt: skip
    assert cause(plain, clipped) == "clipping"
    # What is below the limit may have been clipped without a call.
    assert cause(clipped, run(LOSSES, [0.4] * 3, limits=[[]] * 3)) == "unknown"
    assert cause(clipped, run(LOSSES, [2.0] * 3, limits=[["2"]] * 3)) == "unknown"
    by_value = run(LOSSES, [0.5] * 3, limits=[["0.1 of each value"]] * 3)
    assert cause(by_value, plain) == "unknown"


BF16 = {"dtype": "torch.bfloat16", "gradient_dtype": "torch.float32"}


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (RIGHT, RIGHT, ""),
        (RIGHT, run([2.9, 1.9, 0.9], NORMS), "unknown"),
        (RIGHT, run([math.nan] * 3, [math.nan] * 3), "unknown"),
        (RIGHT, run(LOSSES, [2.0, 1.8, 1.6]), "averaging"),
        (RIGHT, run(LOSSES, [0.5, 0.45, 0.4]), "averaging"),
        (RIGHT, run(LOSSES, [1.001, 0.9, 0.8]), "unknown"),
        (RIGHT, run([3.0] * 3, [0.0] * 3), "unknown"),
        (RIGHT, run([3.0] * 3, [0.0] * 3, lost=4), "optimizer-before-sharding"),
        (RIGHT, run([3.0] * 3, [0.0] * 3, collectives={}), "no-sync-not-reset"),
        (CLIPPED, run(LOSSES, [0.5 * 2**0.5] * 3), "local-clip"),
        (FOUR, run([3.0, 3.0, 2.0, 2.0], [1.0] * 4, micro=1), "accumulation"),
        (RIGHT, run([3.0, 2.1, 1.1], NORMS), "unknown"),
        (RIGHT, run([3.0, 2.0 + 6e-6 / 8, 1.0], NORMS), ""),
        (RIGHT, run([3.0, 2.0 + 4e-6 / 8, 1.0], [1.0, 0.9, 0.8 + 1e-6]), "unknown"),
        (run(LOSSES, NORMS, **BF16), run(LOSSES, [1.01, 0.9, 0.8], **BF16), "rounding"),
        (run(LOSSES, NORMS, **BF16), run([3.0, 2.0, math.nan], NORMS, **BF16), "unknown"),
        (run(LOSSES, NORMS, **BF16), run(LOSSES, [1.1, 0.9, 0.8], **BF16), "unknown"),
        (RIGHT, run(LOSSES, NORMS, learning_rates=[[0.2]] * 3), "learning-rate"),
        (RIGHT, run(LOSSES[:2], NORMS[:2]), "steps"),
        (RIGHT, Run(RIGHT.ranks[:1], 1.0), "ranks"),
    ],
)
def test_a_cause_is_named_where_the_records_show_it(one: Run, other: Run, expected: str) -> None:
    assert cause(one, other) == expected


def test_what_a_stopped_run_has_not_counted_is_no_cause() -> None:
    ended = replace(run([3.0] * 3, [0.0] * 3, collectives={}), stopped=True)
    assert cause(RIGHT, ended) == "unknown"


def test_findings_by_hand_come_before_a_guess() -> None:
    found = causes.Cause("rounding", "the model computes in bfloat16", "Sums may differ.")
    note = f"2 findings need {causes.BY_HAND}507 at train.py:3: Use it"
    after = causes.behind_findings(found, ["another note", note])
    assert after is not None
    assert (after.name, after.title) == ("by-hand", note)
    assert after.advice.endswith(
        "If the runs still differ: the model computes in bfloat16. Sums may differ."
    )
    assert causes.behind_findings(found, ["another note"]) is found
    told = f"{note}: FSDP529 at a.py:1: Use `x`."
    unknown = causes.behind_findings(causes.Cause("unknown", "not known", "Look at it."), [told])
    assert unknown is not None
    assert f"{unknown.title}. {unknown.advice}" == (
        f"{told} Do what the findings say, then compare again. "
        "If the runs still differ, the records show no cause. Look at it."
    )
    shown = replace(found, name="learning-rate")
    assert causes.behind_findings(shown, [note]) is shown
    assert causes.behind_findings(None, [note]) is None


def test_a_loss_in_bfloat16_has_its_own_floor() -> None:
    one = run(LOSSES, NORMS, loss_dtype="torch.bfloat16")
    near = run([3.0, 2.0 + 2**-7, 1.0], NORMS, loss_dtype="torch.bfloat16")
    assert compare(one, near).differences == []
    assert compare(one, near, 1e-6).differences, "but for a tolerance that is asked for"
    assert compare(one, run([3.0, 2.1, 1.0], NORMS, loss_dtype="torch.bfloat16")).differences


def test_other_first_values_are_told_as_such() -> None:
    for what, expected in (
        ("first parameters", "initial-weights"),
        ("first parameters of the ranks", "initial-weights"),
        ("first buffers", "initial-buffers"),
    ):
        first = Difference(0, -1, -1, what, "enter.weight: by up to 1")
        found = causes.find(first, RIGHT, RIGHT, "")
        assert found is not None
        assert found.name == expected


def test_a_file_of_shards_has_its_cause_and_the_finding_on_it() -> None:
    text = "state.0.exp_avg is a plain tensor against a sharded tensor (DTensor or ShardedTensor)"
    first = Difference(4, FILES, -1, "checkpoint opt0.pt", text)
    found = causes.find(first, RIGHT, RIGHT, "")
    assert found is not None
    assert found.name == "file-layout"
    assert "weights_only=True" in found.advice
    known = causes.behind_findings(found, [], ["FSDP335 at train.py:9: Save it whole."])
    assert known is not None
    assert (known.name, known.title) == ("by-hand", "FSDP335 at train.py:9: Save it whole")
    assert known.advice.startswith("In the files, one program saves plain tensors")
    values = causes.find(replace(first, text="w by up to 0.5"), RIGHT, RIGHT, "")
    assert values is not None
    assert values.name == "unknown"


def test_a_finding_on_the_first_line_that_differs_is_the_cause() -> None:
    unknown = causes.Cause("unknown", "not known", "Look at it.")
    line = Line("train.py", 7, "p.ndim", (), 0, ("FSDP507", "FSDP009"))
    assert causes.at_line(unknown, []) is unknown
    at_line = causes.at_line(replace(unknown, name="learning-rate"), [line])
    assert at_line is not None
    assert at_line.name == "line"
    assert at_line.title.startswith("train.py:7 ")
    skipped = replace(line, pairs=(Pair(GOES_ON, "line 8: schedule.step()", MEET),))
    found = causes.at_line(unknown, [skipped])
    assert found is not None
    assert found.title == (
        "after train.py:7 the original runs line 8: schedule.step(), and the migrated program does not"
    )
    told = replace(line, needs_user=True, message="Use m.ndim.")
    found = causes.at_line(unknown, [told])
    assert found is not None
    assert (found.name, found.title) == ("by-hand", "FSDP507 at train.py:7: Use m.ndim")
    again = replace(told, line=9)
    found = causes.at_line(unknown, [told, line, again])
    assert found is not None
    assert found.title == "FSDP507 at train.py:7 and train.py:9: Use m.ndim"
    shown = replace(unknown, name="clipping")
    assert causes.at_line(shown, [replace(line, needs_user=True)]) is shown


def test_a_line_that_prints_another_loss_is_no_riddle() -> None:
    line = Printed(0, "loss", "'loss 1' against 'loss 2'", "")
    known = replace(line, cause="FSDP507 at train.py:7")
    (told, kept) = causes.of_printed([line, known], is_equal=False)
    assert str(told).endswith("; cause: they train differently")
    assert kept == known
    assert causes.of_printed([line], is_equal=True) == [line]


def test_several_findings_are_noted_as_one_is() -> None:
    """What looks for such a note knows both."""
    place = ("train.py", 7, 1, 7, 2)
    one = Finding(*place, "FSDP507", "shapes", Action.MANUAL, "Use m.ndim.", "p.ndim")
    for findings in ([one], [one, one]):
        note = causes.note_of(findings)
        assert causes.BY_HAND in note
        assert "FSDP507 at train.py:7: Use m.ndim." in note
    other = one._replace(line=9)
    assert causes.note_of([one, other, one._replace(code="FSDP003")]) == (
        "3 findings need you: FSDP507 at train.py:7 and train.py:9: Use m.ndim. "
        "And 1 more, which `fsdp-migrate check` lists."
    )
