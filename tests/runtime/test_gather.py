"""Which rank is the first of those that share shards."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from fsdp_migrate.runtime.gather import is_first, is_sharded


@pytest.fixture
def rank_of_four(request: pytest.FixtureRequest) -> Iterator[int]:
    dist.init_process_group("fake", store=FakeStore(), rank=request.param, world_size=4)
    yield request.param
    gc.collect()
    dist.destroy_process_group()


@pytest.mark.parametrize("rank_of_four", range(4), indirect=True)
def test_the_first_rank_is_that_of_the_shards(rank_of_four: int) -> None:
    def of(shape: tuple[int, ...], *placements: Any) -> DTensor:
        mesh = DeviceMesh("cpu", torch.arange(4).view(shape))
        return DTensor.from_local(torch.ones(2), mesh, placements)

    shards, hybrid = of((4,), Shard(0)), of((2, 2), Replicate(), Shard(0))
    same = of((4, 1), Replicate(), Shard(0))
    assert [is_sharded(t) for t in (shards, hybrid, same)] == [True, True, False]
    assert is_first(shards) == (rank_of_four == 0)
    assert is_first(hybrid) == (rank_of_four in (0, 2))
    assert is_first(same) == (rank_of_four == 0)
