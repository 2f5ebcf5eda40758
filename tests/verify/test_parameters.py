"""The last values, from files written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.verify import parameters
from fsdp_migrate.verify.records import Rank, Run

torch = pytest.importorskip("torch")


def run(folder: Path, name: str, *buffers: dict[str, Any]) -> Run:
    ranks = []
    for number, values in enumerate(buffers):
        path = folder / f"{name}-{number}.pt"
        torch.save({"parameters": [], "buffers": values}, path)
        ranks.append(Rank(number, [], [], [], [], parameters=path))
    return Run(ranks, 1.0)


def test_buffers_are_compared_by_name_and_rank(tmp_path: Path) -> None:
    mean, count = torch.zeros(3), torch.tensor(4)
    one = run(tmp_path, "one", {"mean": mean, "count": count}, {"mean": mean, "extra": mean})
    assert parameters.buffers_difference(one, one) == (0.0, "")
    other = run(tmp_path, "other", {"mean": mean, "count": count}, {"mean": mean + 0.5})
    assert parameters.buffers_difference(one, other) == (0.5, "mean on rank 1")
    counted = run(tmp_path, "counted", {"mean": mean, "count": count + 2}, {"mean": mean})
    assert parameters.buffers_difference(one, counted) == (2.0, "count on rank 0")
    shaped = run(tmp_path, "shaped", {"mean": torch.zeros(2)}, {})
    assert parameters.buffers_difference(one, shaped) == (float("inf"), "mean on rank 0")


def test_a_tensor_is_put_together_from_parts() -> None:
    def part(offsets: list[int], flat: bool, value: Any) -> dict[str, Any]:
        return {"name": "w", "shape": [2, 3], "offsets": offsets, "flat": flat, "value": value}

    expected = torch.arange(6.0).view(2, 3)
    flat = [[part([0], True, torch.arange(4.0))], [part([4], True, torch.tensor([4.0, 5.0]))]]
    rows = [[part([0, 0], False, expected[:1])], [part([1, 0], False, expected[1:])]]
    for ranks in (flat, rows):
        whole, problem = parameters.whole(ranks)
        assert problem == ""
        assert torch.equal(whole["w"], expected)
    assert "do not make a whole" in parameters.whole(flat[:1])[1]
