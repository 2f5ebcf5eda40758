"""The last values, and the models that a recorder finds."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fsdp_migrate.verify import values
from fsdp_migrate.verify.recorder.values import write
from fsdp_migrate.verify.values import Values

torch = pytest.importorskip("torch")


def test_buffers_are_compared_by_name_and_rank() -> None:
    mean, count = torch.zeros(3), torch.tensor(4)
    first = {"mean": mean, "count": count}
    one = Values(buffers=[first, {"mean": mean, "extra": mean}])

    def apart(*buffers: dict[str, Any]) -> tuple[float, str]:
        return values.buffers_difference(one, Values(buffers=[*buffers]))[:2]

    assert apart(*one.buffers) == (0.0, "")
    assert apart(first, {"mean": mean + 0.5}) == (0.5, "mean on rank 1")
    assert apart({"mean": mean, "count": count + 2}, {}) == (2.0, "count on rank 0")
    assert apart({"mean": torch.zeros(2)}, {}) == (float("inf"), "mean on rank 0")


def test_a_tensor_is_put_together_from_parts() -> None:
    def part(offsets: list[int], flat: bool, value: Any) -> dict[str, Any]:
        return {"name": "w", "shape": [2, 3], "offsets": offsets, "flat": flat, "value": value}

    expected = torch.arange(6.0).view(2, 3)
    flat = [part([0], True, torch.arange(4.0)), part([4], True, torch.tensor([4.0, 5.0]))]
    rows = [part([0, 0], False, expected[:1]), part([1, 0], False, expected[1:])]
    for ranks in (flat, rows):
        whole, problem = values.whole(ranks)
        assert problem == ""
        assert torch.equal(whole["w"], expected)
    assert "do not make a whole" in values.whole(flat[:1])[1]


def test_models_with_the_same_names_are_told_apart() -> None:
    from fsdp_migrate.verify.recorder.census import Census

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


def test_a_view_of_a_model_is_no_model_of_its_own() -> None:
    from fsdp_migrate.verify.recorder.census import roots

    class InPlace(torch.nn.Linear):
        def _get_fsdp_state(self) -> None:
            return None

    model = InPlace(2, 2)
    view = object.__new__(torch.nn.Linear)  # as `model.module` gives it
    object.__setattr__(view, "__dict__", vars(model))
    assert [root for root in roots() if root in (model, view)] == [model]


def test_a_run_that_is_ended_while_it_writes_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--quick` ends both programs at the first difference, wherever they are."""
    path = tmp_path / "end.pt"

    def interrupted(_: object, to: str) -> None:
        Path(to).write_bytes(b"half of a file")
        raise KeyboardInterrupt

    census: Any = SimpleNamespace(
        complete=True, first={}, untrained_parts=lambda: [], buffers=lambda: {}
    )
    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write(census, str(path))
    assert not path.exists()
    assert write(census, str(path)) == ""
    assert torch.load(path) == {"parameters": [], "buffers": {}}
