"""From the shape of a difference to its cause, on runs written down by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fsdp_migrate.verify.causes import likeliest
from fsdp_migrate.verify.compare import Difference, compare
from fsdp_migrate.verify.records import Rank, Run
from fsdp_migrate.verify.sources import Sources


def run(losses: list[float], norms: list[float], micro: int = 1, **how: object) -> Run:
    """Two ranks; each holds half of the gradient's square."""
    rank = Rank(
        rank=0,
        losses=losses,
        loss_steps=[index // micro + 1 for index in range(len(losses))],
        squares=[norm**2 / 2 for norm in norms],
        learning_rates=[[0.1]] * len(norms),
        collectives={"reduce_scatter": 6},
    )
    rank = replace(rank, **how)  # type: ignore[arg-type]
    return Run([rank, replace(rank, rank=1)], seconds=1.0)


LOSSES, NORMS = [3.0, 2.0, 1.0], [1.0, 0.9, 0.8]
RIGHT = run(LOSSES, NORMS)
CLIPPED = run(LOSSES, [0.5, 0.5, 0.5])
FOUR = run([3.0, 3.0, 2.0, 2.0], [1.0, 0.9], micro=2)


def cause(one: Run, other: Run, sources: Sources | None = None) -> str:
    differences = compare(one, other, 1e-6).differences
    first = min(differences, default=None)
    found = likeliest(first, one, other, sources or Sources())
    return found[0].name if found else ""


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (RIGHT, RIGHT, ""),
        (RIGHT, run([2.9, 1.9, 0.9], NORMS), "initial-weights"),
        (RIGHT, run([2.999, 2.0, 1.0], NORMS), "input-dtype"),
        (RIGHT, run([math.nan] * 3, [math.nan] * 3), "overflow"),
        (RIGHT, run(LOSSES, [2.0, 1.8, 1.6]), "averaging"),
        (RIGHT, run(LOSSES, [0.5, 0.45, 0.4]), "averaging"),
        (RIGHT, run(LOSSES, [1.001, 0.9, 0.8]), "reduce-dtype"),
        (RIGHT, run([3.0] * 3, [0.0] * 3), "optimizer-before-sharding"),
        (RIGHT, run([3.0] * 3, [0.0] * 3, collectives={}), "no-sync-not-reset"),
        (CLIPPED, run(LOSSES, [0.5 * 2**0.5] * 3), "local-clip"),
        (CLIPPED, run(LOSSES, [0.8, 0.7, 0.6]), "not-clipped"),
        (FOUR, run([6.0, 6.0, 4.0, 4.0], [2.0, 1.8], micro=2), "accumulation"),
        (FOUR, run([3.0, 3.0, 2.0, 2.0], [0.7, 0.6], micro=2), "accumulation"),
        (FOUR, run([3.0, 3.0, 2.0, 2.0], [1.0] * 4, micro=1), "accumulation"),
        (FOUR, run([3.0, 3.1, 2.0, 2.0], [1.0, 0.9], micro=2), "data"),
        (RIGHT, run([3.0, 2.1, 1.1], NORMS), "optimizer-update"),
        (RIGHT, run([3.0, 2.00001, 1.0], NORMS), "rounding"),
        (RIGHT, run(LOSSES, NORMS, learning_rates=[[0.2]] * 3), "learning-rate"),
        (RIGHT, run(LOSSES[:2], NORMS[:2]), "steps"),
        (RIGHT, Run(RIGHT.ranks[:1], 1.0), "ranks"),
    ],
)
def test_a_shape_has_a_cause(one: Run, other: Run, expected: str) -> None:
    told = Sources("MixedPrecision clip_grad no_sync", "")
    assert cause(one, other, told if expected == "input-dtype" else None) == expected


def test_other_first_values_are_told_as_such() -> None:
    for what, expected in (
        ("first parameters", "initial-weights"),
        ("first parameters of the ranks", "initial-weights"),
        ("first buffers", "initial-buffers"),
    ):
        first = Difference(0, -1, -1, what, "enter.weight: by up to 1")
        assert likeliest(first, RIGHT, RIGHT, Sources())[0].name == expected


def test_of_causes_with_one_shape_the_programs_words_decide() -> None:
    other = run([2.999, 2.0, 1.0], NORMS)
    both = "MixedPrecision(buffer_dtype) BatchNorm"
    assert cause(RIGHT, other, Sources(both, "MixedPrecision BatchNorm")) == "buffer-dtype"
    assert cause(RIGHT, other, Sources(both, both)) == "batch-norm-dtype"
    assert cause(RIGHT, other, Sources("sync_module_states=True", "")) == "initial-weights"
    later = run([3.0, 2.1, 1.1], NORMS)
    assert cause(RIGHT, later, Sources("model.eval()", "model.eval()")) == "evaluation"
