"""The device to train on, with an accelerator that is made up: torch names devices that a machine does not have."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fsdp_migrate.runtime import mesh

CURRENT = 1
ON = {
    "nothing": [],
    "cpu": [torch.device("cpu")],
    "meta, then cpu": [torch.device("meta"), torch.device("cpu")],
    "first": [torch.device("cpu"), torch.device("cuda", 0)],
    "current": [torch.device("cuda", CURRENT)],
}


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What is made the current device."""
    made: list[int] = []
    accelerator = SimpleNamespace(
        is_available=lambda: True,
        current_accelerator=lambda: torch.device("cuda"),
        current_device_index=lambda: CURRENT,
        set_device_index=made.append,
    )
    monkeypatch.setattr(torch, "accelerator", accelerator)
    return made


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("on", "device_id", "expected"),
    [
        ("nothing", None, "cuda:1"),
        ("cpu", None, "cuda:1"),
        ("meta, then cpu", None, "cuda:1"),
        ("cpu", "cpu", "cpu"),
        ("cpu", "cuda:0", "cuda:0"),
        ("first", None, "cuda:0"),
        ("first", 0, "cuda:0"),
        ("current", None, "cuda:1"),
        ("current", "cuda:1", "cuda:1"),
    ],
)
def test_devices(on: str, device_id: Any, expected: str, became: list[int]) -> None:
    parameters: Any = [SimpleNamespace(device=device) for device in ON[on]]
    device_id = torch.device("cuda", device_id) if device_id == 0 else device_id
    assert mesh.compute_device(parameters, device_id) == torch.device(expected)
    assert became == ([0] if expected == "cuda:0" else [])


@pytest.mark.usefixtures("became")
def test_a_device_without_an_index_is_the_current_one() -> None:
    with pytest.warns(UserWarning, match="has no index: using the current device"):
        assert mesh.compute_device([], "cuda") == torch.device("cuda", CURRENT)
    given: Any = SimpleNamespace(device_type="cpu")
    assert mesh.compute_device([], None, given) == torch.device("cpu")


@pytest.mark.usefixtures("became")
def test_a_model_on_another_device_is_refused() -> None:
    parameters: Any = [SimpleNamespace(device=torch.device("cuda", 0))]
    with pytest.raises(ValueError, match="Inconsistent compute device and `device_id`: cuda:0 vs"):
        mesh.compute_device(parameters, "cuda:1")


def test_without_an_accelerator() -> None:
    assert mesh.compute_device([]) == torch.device("cpu")
    with pytest.raises(ValueError, match="is not a device of this machine"):
        mesh.compute_device([], "cuda:1")
