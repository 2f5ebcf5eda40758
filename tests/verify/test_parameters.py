"""The last values, and the models that a recorder finds."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from fsdp_migrate.verify import values
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


def keeping(**kept: float) -> Values:
    return Values(kept={name: torch.full((3,), value) for name, value in kept.items()})


def test_a_model_without_an_optimizer_may_be_as_far_apart_as_what_is_trained() -> None:
    one, other = keeping(mean=1.0, teacher=2.0), keeping(mean=1.25, teacher=2.0)
    assert values.kept_difference(one, one, 0, 0, 0) == (None, "")
    found, _ = values.kept_difference(one, other, 0, 1e-6, 0.125)
    assert str(found) == "model without an optimizer differs first at the start: mean by up to 0.25"
    assert values.kept_difference(one, other, 0, 1e-6, 0.25) == (None, "")
    assert values.kept_difference(one, other, 0, 0.5, 0) == (None, "")
    found, _ = values.kept_difference(one, other, 0, 0, 0.25)
    assert found is not None, "a tolerance of 0 asks for the same bits"
    note = "only one program keeps teacher (1 such names)"
    assert values.kept_difference(one, keeping(mean=1.0), 0, 0, 0) == (None, note)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the recorder knows of the models that are made in a test."""
    from fsdp_migrate.runtime.record.census import Kept

    for name in ("__init__", "__setstate__"):
        monkeypatch.setattr(torch.nn.Module, name, getattr(torch.nn.Module, name))
    return Kept()


def test_models_are_kept_in_the_order_in_which_they_were_made(kept: Any) -> None:
    from fsdp_migrate.runtime.record.census import Census

    trained = torch.nn.Linear(2, 2)
    mean, teacher = copy.deepcopy(trained), torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False))
    again = copy.deepcopy(trained)
    census = Census()
    census.look(trained.parameters(), 0, 1)
    kept.look()
    names = [name for name, _ in kept.census(census, 0, 1).parts]
    expected = ["Linear.weight", "Linear.bias", "Sequential.0.weight"]
    assert names == [*expected, "Linear 2.weight", "Linear 2.bias"]
    del mean, again
    assert [name for name, _ in kept.census(census, 0, 1).parts] == names, "they are held"
    late = torch.nn.Linear(2, 2)
    kept.look()
    names = [name for name, _ in kept.census(census, 0, 1).parts]
    assert names == ["Sequential.0.weight", "Linear.weight", "Linear.bias"], (
        "what was dropped is let go"
    )
    assert (len(teacher), late.in_features) == (1, 2), "they are still used here"


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


def test_a_model_has_one_name_whatever_stands_before_its_class(kept: Any) -> None:
    from fsdp_migrate.runtime.record.census import Census, roots

    class FSDPModule:
        def _get_fsdp_state(self) -> None:
            return None

    class Mine(torch.nn.Linear):
        pass

    class Sharded(FSDPModule, Mine):
        pass

    class InPlace(Sharded):
        pass

    model = InPlace(2, 2)
    view = object.__new__(Mine)  # as `model.module` gives it
    object.__setattr__(view, "__dict__", vars(model))
    assert [root for root in roots() if root in (model, view)] == [model]
    kept.look()
    parts = kept.census(Census(), 0, 1).parts
    assert {name for name, _ in parts} >= {"Mine.weight", "Mine.bias"}
