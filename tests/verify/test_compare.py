"""The comparison, on runs written down by hand."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fsdp_migrate.cli import exit_code
from fsdp_migrate.verify.compare import FILES, Comparison, Difference, compare
from fsdp_migrate.verify.errors import ProgramFailed
from fsdp_migrate.verify.records import Run
from fsdp_migrate.verify.show import markdown, markdown_of_failure, show
from fsdp_migrate.verify.verdict import Verdict

from .written import rank, run, verdict


def first(comparison: Comparison) -> str:
    return str(comparison.differences[0])


@pytest.mark.parametrize(
    ("loss", "tolerance", "same", "bitwise"),
    [
        (2.0, 0, True, True),
        (2.0 + 1e-6, 1e-6, True, False),
        (math.nextafter(2.0, 3.0), 0, False, False),
    ],
)
def test_within_the_tolerance_runs_are_the_same(
    loss: float, tolerance: float, same: bool, bitwise: bool
) -> None:
    comparison = compare(run([3.0, 2.0]), run([3.0, loss]), tolerance)
    assert (comparison.differences == [], comparison.bitwise) == (same, bitwise)
    assert comparison.max_abs_loss == pytest.approx(loss - 2.0)


def test_the_first_step_and_rank_that_differ_are_named() -> None:
    one = run([3.0, 2.0, 1.0], [3.0, 2.0, 1.0])
    other = run([3.0, 2.0, 1.5], [3.0, 2.1, 1.5])
    comparison = compare(one, other, 1e-6)
    assert first(comparison) == "loss differs first at step 2 on rank 1: 2 against 2.1"


def test_a_backward_among_several_of_a_step_is_named() -> None:
    comparison = compare(
        run([4.0, 3.0, 2.0, 1.0], micro=2), run([4.0, 3.0, 2.0, 1.5], micro=2), 1e-6
    )
    text = "loss differs first at step 2 on rank 0: 1 against 1.5 (backward 2 of the step)"
    assert first(comparison) == text


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_the_same_strange_number_in_both_is_equal(number: float) -> None:
    comparison = compare(run([1.0, number]), run([1.0, number]), 0)
    assert comparison.differences == []
    assert comparison.bitwise
    assert comparison.max_abs_loss == 0


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_strange_number_in_one_is_a_difference_under_every_tolerance(number: float) -> None:
    assert compare(run([1.0]), run([number]), 10.0).differences
    assert compare(run([number]), run([1.0]), 10.0).differences
    assert not math.isfinite(compare(run([1.0]), run([number]), 10.0).max_abs_loss)
    assert verdict(run([1.0]), run([number])).to_json()["max_abs_loss_diff"] is None


def test_fewer_steps_are_a_difference_where_they_end() -> None:
    comparison = compare(run([3.0, 2.0, 1.0]), run([3.0, 2.0]), 1e-6)
    assert first(comparison) == "number of backwards differs first at step 3 on rank 0: 3 against 2"
    assert not comparison.bitwise


def test_a_learning_rate_counts_however_the_groups_are_cut() -> None:
    one, other = run([3.0, 2.0]), run([3.0, 2.0])
    split = replace(other.ranks[0], learning_rates=[[0.1, 0.1], [0.1, 0.1]])
    assert compare(one, Run([split], 1.0), 0).differences == []
    comparison = compare(one, run([3.0, 2.0], lr=0.2), 0)
    assert first(comparison) == "learning rate differs first at step 1 on rank 0: 0.1 against 0.2"


def test_the_gradient_norm_is_the_ranks_sum() -> None:
    one = Run([replace(rank([1.0], n), squares=[s]) for n, s in enumerate([9.0, 16.0])], 1.0)
    assert one.grad_norms == [5.0]
    other = Run([replace(rank([1.0], n), squares=[s]) for n, s in enumerate([12.5, 12.5])], 1.0)
    assert compare(one, other, 0).differences == []
    wrong = Run([replace(rank([1.0], n), squares=[36.0]) for n in range(2)], 1.0)
    assert "gradient norm differs first at step 1: 5 against" in first(compare(one, wrong, 1e-6))


def test_last_parameters_are_told_by_the_first_that_differs() -> None:
    odd = Difference(2, 5, -1, "last parameters", "w by up to 0.001", parameter="w")
    result = replace(verdict(run([3.0]), run([3.0])), differences=[odd])
    assert result.line().startswith("different: last parameters differ: w by up to 0.001; largest")
    assert result.to_json()["first_difference"] == {
        "what": "last parameters",
        "step": None,
        "rank": None,
        "text": "w by up to 0.001",
        "parameter": "w",
    }


def test_the_json_is_the_contract() -> None:
    data = verdict(run([3.0, math.nan], [1.0, 2.0]), run([3.0, math.nan], [1.0, 2.5])).to_json()
    json.dumps(data, allow_nan=False)
    keys = """
        version equal bitwise tolerance ranks backend steps max_abs_loss_diff max_rel_grad_norm_diff max_abs_param_diff
        original migrated first_difference causes parameters notes environment max_abs_buffer_diff arithmetic emulated
        aligned plain deterministic uncompared cost quirks said clipping printed compared where line next
    """
    assert list(data) == keys.split()
    assert data["first_difference"] == {
        "what": "loss",
        "step": 2,
        "rank": 1,
        "text": "2 against 2.5",
        "parameter": None,
    }
    assert (data["version"], data["equal"], data["ranks"], data["steps"]) == (1, False, 2, 2)
    keys = "losses grad_norms seconds peak_memory_bytes collectives collective_bytes"
    assert list(data["original"]) == keys.split()
    assert data["original"]["losses"] == [[3.0, None], [1.0, 2.0]]
    assert data["max_abs_loss_diff"] == 0.5


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Callable[[Verdict], list[str]]:
    def lines(result: Verdict) -> list[str]:
        show(result)
        return capsys.readouterr().out.splitlines()

    return lines


def test_a_long_table_keeps_both_ends(shown: Callable[[Verdict], list[str]]) -> None:
    losses = [float(n) for n in range(300, 0, -1)]
    other = losses.copy()
    other[149] += 1.0
    steps = [line.split()[0] for line in shown(verdict(run(losses), run(other))) if line.strip()]
    assert {"1", "12", "289", "300", "…"} <= set(steps)
    assert len(steps) < 60
    assert "differs first at step 150" in shown(verdict(run(losses), run(other)))[-1]


@pytest.mark.parametrize("steps", [20, 1, 300])
def test_curves_are_drawn_of_more_than_a_few_losses(
    steps: int, shown: Callable[[Verdict], list[str]]
) -> None:
    losses = [float(steps - n) for n in range(steps)]
    lines = shown(verdict(run(losses), run([*losses[:-1], math.nan])))
    curves = [line.split()[1] for line in lines if line.split()[0] in ("original", "migrated")]
    assert len(curves) == (2 if steps > 4 else 0)
    for curve in curves:
        assert len(curve) == min(steps, 60)
        assert curve.startswith("██" if steps == 300 else "█")
    assert [curve[-1] for curve in curves] == (["▁", "?"] if curves else [])
    assert any("add --report FILE.html" in line for line in lines)


def test_what_was_compared_is_listed(shown: Callable[[Verdict], list[str]]) -> None:
    files = [f"m{number}.pt (3 tensors, 0 other values)" for number in range(20)]
    result = replace(verdict(run([3.0, 2.0], [3.0, 2.0]), run([3.0, 2.0], [3.0, 2.0])), files=files)
    trained, written = shown(result)[:2]
    assert trained == (
        "compared: 2 losses on each of 2 ranks; the gradient norm and the learning rates of 2 steps; "
        "1 parameter after the last step, and the buffers"
    )
    assert written.startswith("compared files: m0.pt (3 tensors, 0 other values); m1.pt")
    assert written.endswith("m11.pt (3 tensors, 0 other values); 8 more files")
    assert result.to_json()["compared"][-1] == files[-1]


def test_what_is_compared_at_the_end_is_at_no_step() -> None:
    twenty = [1.0] * 20
    file = Difference(21, FILES, -1, "checkpoint a/m.pt", "w by up to 1")
    result = replace(verdict(run(twenty), run(twenty)), differences=[file])
    assert result.line() == (
        "different: checkpoint a/m.pt: w by up to 1; largest difference of a loss 0"
    )
    assert result.to_json()["first_difference"]["step"] is None
    late = [
        replace(rank(twenty), losses=[*twenty, 1.0 + n], loss_steps=[*range(1, 22)])
        for n in range(2)
    ]
    found = compare(*(Run([one], 1.0) for one in late), 1e-6)
    told = "loss differs first at a backward after the last step on rank 0: 1 against 2"
    assert [str(difference) for difference in found.differences] == [told]
    fewer = compare(run(twenty), run(twenty[:18]), 1e-6)
    assert first(fewer).startswith("number of backwards differs first at step 19")


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (("bfloat16", "float32"), ""),
        (("float32", "float32"), "w is used in bfloat16 against float32 (and 1 more)"),
        (
            ("bfloat16", "bfloat16"),
            "the gradient of w is reduced in float32 against bfloat16 (and 1 more)",
        ),
    ],
)
def test_another_precision_is_a_difference_where_losses_are_equal(
    now: tuple[str, str], told: str
) -> None:
    def of(compute: str, reduce: str) -> Run:
        one = replace(rank([3.0, 2.0]), precisions={name: [compute, reduce] for name in "wv"})
        return Run([one], 1.0)

    found = compare(of("bfloat16", "float32"), of(*now), 1e-2)
    assert [difference.text for difference in found.differences] == [told] * bool(told)


def test_the_summary_is_markdown() -> None:
    odd = replace(verdict(run([3.0, 2.0]), run([3.0, 2.25])), notes=["<script> & *"])
    text = markdown(odd, "train.py")
    start = "### ❌ fsdp-migrate verify: `train.py`\n\ndifferent: loss differs first"
    assert text.startswith(start)
    assert "| optimizer steps | 2 | 2 |" in text
    assert "<script>" not in text.replace("\\<script\\>", "")
    assert markdown(verdict(run([3.0]), run([3.0])), "train.py").startswith("### ✅")
    failure = ProgramFailed("migrated", "rank 1 raised ValueError: x", "Traceback\nValueError: x")
    assert "````\nTraceback\nValueError: x\n````" in markdown_of_failure(failure, "train.py")


@pytest.mark.parametrize("option", ["--json", "--report", "--summary"])
def test_a_file_that_cannot_be_written_is_named_before_the_program_runs(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, file = tmp_path / "train.py", tmp_path / "missing" / "result"
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert exit_code(["verify", str(script), option, str(file)]) == 2
    assert f"{file}': No such file or directory" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
