"""The first values: what is the same, what is taken over, and what is a fault."""

from pathlib import Path

import pytest

from fsdp_migrate.verify import main, values
from fsdp_migrate.verify.values import Values
from fsdp_migrate.verify.verdict import Verdict

torch = pytest.importorskip("torch")


def verify(programs: Path, *arguments: str, align_init: bool = False) -> Verdict:
    return main.verify(
        programs / "late_original.py",
        programs / "late_migrated.py",
        arguments=["--steps", "2", *arguments],
        launcher="torchrun",
        device="cpu",
        tolerance=0,
        align_init=align_init,
        repeat=False,
    )


@pytest.mark.ranks
@pytest.mark.usefixtures("forked")
def test_what_is_drawn_for_shards_is_taken_over(programs: Path) -> None:
    verdict = verify(programs, align_init=True)
    assert verdict.equal, verdict.line()
    assert "shift.shift" in verdict.migrated.aligned
    assert "blocks.0.up.weight" in verdict.migrated.aligned
    assert "blocks.0.norm.weight" not in verdict.migrated.aligned, "it was the same"
    assert any("took over: " in text for text in verdict.uncompared)


@pytest.mark.ranks
@pytest.mark.thorough  # `weights not synchronised` of test_traps has the parameters in each run
@pytest.mark.usefixtures("forked")
def test_without_it_the_first_parameter_that_differs_is_named(programs: Path) -> None:
    verdict = verify(programs, "--fault", "buffer")
    assert "first parameters differs first at the start: enter.weight: by up to" in verdict.line()
    buffer = "first buffers differs first at the start on rank 0: shift.shift: by up to"
    assert any(buffer in str(difference) for difference in verdict.differences)
    assert verdict.migrated.aligned == []


def of(**parameters: float) -> Values:
    tensors = {name: torch.full((4,), value) for name, value in parameters.items()}
    return Values(tensors, buffers=[{}, {}])


def test_the_starts_are_compared_by_name() -> None:
    assert list(values.first_differences(of(a=1.0, b=2.0), of(b=2.0, a=1.0), set(), 0)) == []
    (found,) = values.first_differences(of(a=1.0, b=2.0, c=3.0), of(a=1.0, b=2.5, c=4.0), set(), 0)
    text = "first parameters differs first at the start: b: by up to 0.5 (and 1 more)"
    assert str(found) == text
    assert list(values.first_differences(of(a=1.0), of(a=1.0 + 1e-6), set(), 1e-4)) == []
    assert list(values.first_differences(of(a=1.0), Values(problem="none"), set(), 0)) == []
    (found,) = values.first_differences(of(a=1.0), of(a=float("nan")), set(), 1e-4)
    assert "by up to nan" in str(found)


def test_a_buffer_that_was_cast_before_the_first_call_is_the_same() -> None:
    third = torch.full((3,), 1 / 3)
    one, other = Values(buffers=[{"b": third}]), Values(buffers=[{"b": third.bfloat16()}])
    assert list(values.first_differences(one, other, set(), 0)) == []
    (found,) = values.first_differences(one, Values(buffers=[{"b": third + 1}]), set(), 0)
    assert str(found).startswith(
        "first buffers differs first at the start on rank 0: b: by up to 1"
    )


def test_ranks_that_should_hold_the_same_and_do_not() -> None:
    one, other = of(a=1.0), Values(of(a=1.0).parameters, torn={"a": (0, 2)})
    (found,) = values.first_differences(one, other, {"a"}, 0)
    assert "a: rank 0 and rank 2 do not hold the same" in str(found)
    assert list(values.first_differences(other, other, set(), 0)) == [], "so it is in the original"
