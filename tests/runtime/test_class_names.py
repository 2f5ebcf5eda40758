"""Classes that go on being printed as they were."""

from __future__ import annotations

import pytest
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

from fsdp_migrate import runtime


class Own(nn.Sequential):
    class Inner(nn.Linear): ...


@pytest.mark.usefixtures("one_rank")
def test_classes_are_printed_as_they_were() -> None:
    model = Own(Own.Inner(2, 2), nn.Linear(2, 2))
    before = [str(type(module)) for module in model.modules()]
    for module in reversed(list(model.modules())):
        fully_shard(module)
    assert [str(type(module)) for module in model.modules()] != before
    assert runtime.keep_class_names(model) is model
    assert [str(type(module)) for module in model.modules()] == before
    assert all(isinstance(module, FSDPModule) for module in model.modules())
    assert type(model).__name__ == "FSDPOwn"
