"""What the runtime knows of a module is in one place, and goes with the module."""

import gc
import inspect
import re
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from fsdp_migrate import runtime
from fsdp_migrate.runtime.notes import QUIRKS, Notes, notes_of

pytestmark = [pytest.mark.usefixtures("one_rank"), pytest.mark.filterwarnings("ignore")]
X = torch.ones(2, 4)


def in_place(**options: Any) -> Any:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with runtime.like_fsdp1(model):
        for module, own in runtime.units(model, **options):
            fully_shard(module, **own)
    return model


def bridge(**options: Any) -> Any:
    return runtime.FullyShardedDataParallel(nn.Sequential(nn.Linear(4, 4)), **options)


@pytest.mark.parametrize("make", [in_place, bridge])
def test_notes_go_with_their_module(make: Any) -> None:
    model = make(forward_prefetch=True)
    model(X).sum().backward()
    assert type(model.module) is nn.Sequential
    notes = [weakref.ref(notes_of(each)) for each in model.modules()]
    kept = weakref.ref(model)
    del model
    gc.collect()
    assert kept() is None
    assert [each() for each in notes] == [None] * len(notes)


def test_what_a_unit_does_is_noted() -> None:
    seen = []

    class Asking(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(notes_of(self).is_running)
            return super().forward(x)

    model = Asking(4, 4)
    with runtime.like_fsdp1(model):
        fully_shard(model)
    assert not notes_of(model).is_prepared
    model(X).sum().backward()
    with runtime.summon_full_params(model):
        assert notes_of(model).is_summoned
    notes = notes_of(model)
    assert seen == [True]
    assert [notes.is_running, notes.is_summoned, notes.is_prepared] == [False, False, True]
    assert notes.is_outermost(model)
    assert notes.arguments is None


def test_notes_print_what_is_noted() -> None:
    module = nn.Linear(1, 1)
    assert repr(notes_of(module)) == "Notes()"
    runtime.run_in_full_precision(module)
    notes_of(module).is_running = True
    assert repr(notes_of(module)) == "Notes(is_exempt=True, is_running=True)"
    assert notes_of(nn.Linear(1, 1)) is not notes_of(module)
    assert "switched_off" in repr(notes_of(in_place()))
    assert Notes().quirks == QUIRKS


def test_quirks_are_the_switches_of_like_fsdp1() -> None:
    switches = inspect.signature(runtime.like_fsdp1).parameters.values()
    assert {each.name for each in switches if isinstance(each.default, bool)} == QUIRKS
    sources = [file.read_text() for file in Path(runtime.__file__).parent.glob("*.py")]
    asked = {
        name for text in sources for name in re.findall(r'"(\w+)" (?:not )?in \S+\.quirks', text)
    }
    assert len(asked) > 5
    assert asked <= QUIRKS
