import gc
from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore


@pytest.fixture(scope="module")
def one_rank() -> Iterator[None]:
    """A process group of one rank in this process, enough to construct on."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    gc.collect()  # models first: FSDP1's may abort the process if its group goes before them
    dist.destroy_process_group()


@pytest.fixture
def rank_of_four(request: pytest.FixtureRequest) -> Iterator[int]:
    """One of four ranks, alone: its collectives leave everything as it is."""
    dist.init_process_group("fake", store=FakeStore(), rank=request.param, world_size=4)
    yield request.param
    gc.collect()
    dist.destroy_process_group()
