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


def test_models_with_the_same_names_are_told_apart() -> None:
    from fsdp_migrate.runtime.record.census import Census

    larger = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 2))
    first = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    census = Census()
    # In the order in which the optimizer has them, whichever model is larger.
    census.look([*first.parameters(), *larger.parameters()], 0, 1)
    names = [name for name, _ in census.parts]
    assert names[:2] == ["0.weight", "0.bias"]
    assert "model 2.0.weight" in names
    assert len(names) == 8
    assert "1.running_mean" in census.buffers()
    census.look([*larger.parameters()], 0, 1)  # nothing new
    assert [name for name, _ in census.parts] == names
