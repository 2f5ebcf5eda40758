"""What losses do not show: last parameters and buffers, clipping that never acted, losses that are no numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from fsdp_migrate.verify import clipping, trained
from fsdp_migrate.verify.compare import compare
from fsdp_migrate.verify.errors import Unverifiable
from fsdp_migrate.verify.judge import check_proof, judge
from fsdp_migrate.verify.options import Recording
from fsdp_migrate.verify.records import Run
from fsdp_migrate.verify.values import Values
from fsdp_migrate.verify.verdict import Verdict

from .written import rank

torch = pytest.importorskip("torch")

RunProgram = Callable[..., Run]
Judged = Callable[..., Verdict]

CANONICAL = Recording(canonical=True)

programs = pytest.mark.usefixtures("forked")


@pytest.fixture
def judged(run: RunProgram) -> Judged:
    """The verdict on a program with some arguments in FSDP1, and with others in FSDP2."""

    def do(arguments: str = "", migrated: str | None = None) -> Verdict:
        now = arguments if migrated is None else migrated
        one = run("beside", *arguments.split(), recording=CANONICAL)
        words = ["--fsdp2", *now.split()]
        other = run("beside", *words, recording=CANONICAL)
        verdict = judge(one, other, None, CANONICAL)
        check_proof(verdict)
        return verdict

    return do


@programs
@pytest.mark.ranks
def test_what_is_the_same_stays_the_same(judged: Judged) -> None:
    verdict = judged()
    assert verdict.line() == "same: 3 losses on 2 ranks bitwise equal, largest difference 0"
    assert verdict.to_json()["clipping"]["original"] == {"limits": {}, "steps_clipped": 0}


@programs
@pytest.mark.ranks
@pytest.mark.parametrize(
    ("arguments", "migrated", "first", "cause"),
    [
        ("--decay 0.1", None, "last parameters differ: unused.", "unused-parameters"),
        pytest.param(
            "--decay 0.1 --optimizer SGD",
            None,
            "last parameters differ: unused.",
            "unused-parameters",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "",
            "--writes unused",
            "last parameters differ: unused.weight by up to 0.000",
            "",
            marks=pytest.mark.thorough,
        ),
        ("", "--writes used", "last parameters differ: block.up.weight by up to 0.000", ""),
        ("", "--writes buffer", "last buffers differ: count on rank 0 by up to 1", "unknown"),
    ],
)
def test_last_values_belong_to_the_verdict(
    arguments: str, migrated: str | None, first: str, cause: str, judged: Judged
) -> None:
    verdict = judged(arguments, migrated)
    assert verdict.bitwise, "the losses say nothing of it"
    assert not verdict.equal
    assert str(verdict.first).startswith(first)
    assert verdict.line().startswith(f"different: {first}")
    assert verdict.cause is not None
    assert verdict.cause.name == (cause or verdict.cause.name)
    assert verdict.first is not None
    assert verdict.first.parameter in first or verdict.first.parameter.startswith("unused.")


@programs
@pytest.mark.ranks
def test_losses_that_are_no_numbers_prove_nothing(judged: Judged) -> None:
    with pytest.raises(Unverifiable, match="nothing is proved: every loss is NaN or infinite"):
        judged("--nan 1")
    verdict = judged("--nan 1 --decay 0.1", "--nan 1 --decay 0.1 --writes unused")
    assert verdict.line().startswith("different: last parameters differ: unused.")
    partly = judged("--nan 3")
    assert partly.line() == "same: 2 losses on 2 ranks bitwise equal, largest difference 0"
    assert partly.uncompared[0] == "2 of 6 losses, which are NaN or infinite, the first at step 3"


@pytest.mark.parametrize(
    ("losses", "squares", "proved"),
    [
        ([1.0, 1.0], [1.0, 1.0], True),
        ([math.nan, math.nan], [math.nan, math.nan], False),
        ([math.inf, math.nan], [1.0, math.nan], False),
        ([1.0, math.nan], [math.nan, math.nan], False),  # trained by nothing that is a number
        ([1.0, math.nan], [1.0, math.nan], True),
        ([math.nan, 1.0], [math.nan, math.nan], True),
    ],
)
def test_what_proves_something(losses: list[float], squares: list[float], proved: bool) -> None:
    one = Run([replace(rank(losses), squares=squares)], 1.0)
    assert (trained.unproved(one) == "") == proved


@programs
@pytest.mark.ranks
@pytest.mark.parametrize(
    ("arguments", "migrated", "text"),
    [
        ("--clip 1000", "", "limit 1000 against no limit"),
        pytest.param(
            "--clip 1000", "--clip 500", "limit 1000 against limit 500", marks=pytest.mark.thorough
        ),
        (
            "--clip 1000 --clip-by value",
            "--clip 1000",
            "limit 1000 of each value against limit 1000",
        ),
        pytest.param("", "--clip 1000", "no limit against limit 1000", marks=pytest.mark.thorough),
    ],
)
def test_a_clip_that_is_lost_shows_where_none_acted(
    arguments: str, migrated: str, text: str, judged: Judged
) -> None:
    verdict = judged(arguments, migrated)
    first = f"clipping differs first at step 1: {text}, and no gradient reached it"
    assert str(verdict.first) == first
    assert verdict.cause is not None
    assert verdict.cause.name == "clipping"


@programs
@pytest.mark.ranks
@pytest.mark.parametrize(
    "idle",
    [
        "--clip 1000",
        pytest.param("--clip 1000 --clip-by value", marks=pytest.mark.thorough),
        pytest.param("--clip 1000 --clip-by factor", marks=pytest.mark.thorough),
    ],
)
def test_a_clip_that_never_acted_is_told(idle: str, judged: Judged) -> None:
    verdict = judged(idle)
    assert verdict.equal, verdict.line()
    assert verdict.line().endswith("largest difference 0; clipping never acted")
    assert verdict.uncompared[0].startswith("clipping: no gradient reached a limit in 3 calls")
    assert verdict.to_json()["clipping"]["migrated"]["steps_clipped"] == 0


@programs
@pytest.mark.ranks
@pytest.mark.parametrize(
    "acting",
    ["--clip 0.05", pytest.param("--clip 0.001 --clip-by value", marks=pytest.mark.thorough)],
)
def test_a_clip_that_acted_is_not(acting: str, judged: Judged) -> None:
    verdict = judged(acting)
    assert verdict.equal, verdict.line()
    assert "clipping" not in verdict.line()
    assert verdict.to_json()["clipping"]["migrated"]["steps_clipped"] == 3
    assert "original 3 calls with limit 0.0" in "\n".join(verdict.remarks)


@programs
@pytest.mark.ranks
def test_a_clip_without_a_call_counts_where_it_acts(judged: Judged) -> None:
    with_factor = judged("--clip 0.05", "--clip 0.05 --clip-by factor")
    assert with_factor.equal, with_factor.line()
    assert "migrated 3 calls with limit 0.05" in "\n".join(with_factor.remarks)
    verdict = judged("--clip 0.05", "--clip 0.05 --clip-by hand")
    assert verdict.equal, verdict.line()
    assert clipping.told(verdict.original, verdict.migrated) == (
        "clipping: original 3 calls with limit 0.05, 3 of 3 steps clipped; migrated no calls"
    )


@programs
@pytest.mark.ranks
@pytest.mark.parametrize(
    "shape", ["2", *(pytest.param(s, marks=pytest.mark.thorough) for s in ("1", "1,1"))]
)
def test_a_loss_has_any_shape_of_one_element(shape: str, judged: Judged) -> None:
    verdict = judged(f"--shape {shape}")
    assert verdict.equal, verdict.line()
    losses = verdict.original.ranks[0].losses
    assert len(losses) == (6 if shape == "2" else 3)
    assert all(isinstance(loss, float) for loss in losses)


@programs
@pytest.mark.ranks
@pytest.mark.parametrize(
    ("before", "cause", "count"),
    [
        ("--before evaluate", "optimizer-of-gathered-parameters", "6 gathered parameters"),
        pytest.param(
            "--before unshard",
            "optimizer-of-gathered-parameters",
            "6 gathered parameters",
            marks=pytest.mark.thorough,
        ),
        # Nothing is trained then, as where the optimizer is older than the sharding.
        pytest.param(
            "--before evaluate --root-alone",
            "optimizer-of-gathered-parameters",
            "12 gathered parameters",
            marks=pytest.mark.thorough,
        ),
        ("--before reshard", "", ""),  # evaluates first
    ],
)
def test_an_optimizer_of_gathered_parameters_has_its_own_cause(
    before: str, cause: str, count: str, judged: Judged
) -> None:
    verdict = judged("", before)
    assert verdict.equal == (not cause)
    assert (verdict.cause.name if verdict.cause else "") == cause
    assert count in (verdict.cause.title if verdict.cause else "")


# The gradient of `noise` is nothing but rounding, and Adam makes steps of the learning rate of it.
NAMES = ["layer", "noise"]


def rounded(*squares: list[float], losses: tuple[float, ...] = (3.0, 2.0)) -> Run:
    names, values = [NAMES] * 2, [[1.0, 1.0]] * 2
    one = rank([*losses], lr=0.1)
    told = replace(one, names=names, gradients=[*squares], values=values, squares=[1.0, 1.0])
    return Run([told], 1.0)


@pytest.mark.parametrize(
    ("last", "odd"),
    [
        ({"layer": 1e-7, "noise": 0.15}, ""),
        ({"layer": 1e-7, "noise": 0.5}, "noise by up to 0.5"),  # two steps of 0.1 in both
        ({"layer": 1e-3, "noise": 0.15}, "layer by up to 0.001"),
    ],
)
def test_a_parameter_may_be_apart_where_its_gradient_is_rounding(
    last: dict[str, float], odd: str
) -> None:
    one = rounded([1.0, 1e-16], [1.0, 2e-16])
    other = rounded([1.0, 3e-16], [1.0, 1e-16], losses=(3.0, 2.0 + 1e-7))
    ends = Values({name: torch.ones(2) for name in NAMES})
    comparison = compare(one, other)
    assert not comparison.bitwise
    found = trained.differences(comparison, (one, other), (ends, ends), last, {}, 1e-6)
    assert [difference.text for difference in found] == ([odd] if odd else [])
    same = trained.differences(compare(one, one), (one, one), (ends, ends), last, {}, 1e-6)
    assert bool([*same]), "where all gradients are the same to the last bit, nothing excuses it"


AVERAGE = "untrained model.noise"


@pytest.mark.parametrize(("distance", "is_odd"), [(1e-7, False), (3e-7, True)])
def test_a_moving_average_may_be_as_far_apart_as_what_it_averages(
    distance: float, is_odd: bool
) -> None:
    one = rounded([1.0, 1e-16], [1.0, 2e-16])
    other = rounded([1.0, 3e-16], [1.0, 1e-16])
    ends = Values({**{name: torch.ones(2) for name in NAMES}, AVERAGE: torch.full((2,), 1e-3)})
    last = {"layer": 0.0, "noise": 2e-7, AVERAGE: distance}
    found = trained.differences(compare(one, other), (one, other), (ends, ends), last, {}, 1e-6)
    assert [difference.parameter for difference in found] == [AVERAGE] * is_odd
