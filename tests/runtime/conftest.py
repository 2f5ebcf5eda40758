import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from ..forkserver import ForkServer


@pytest.fixture(scope="module")
def one_rank() -> Iterator[None]:
    """A process group of one rank in this process, enough to construct on."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    gc.collect()  # models first: FSDP1's may abort the process if its group goes before them
    dist.destroy_process_group()


@pytest.fixture
def fresh(fork_server: ForkServer, tmp_path: Path) -> Callable[[str], None]:
    """Runs a program to its end in a process that has imported torch, and not the runtime."""

    def run(program: str) -> None:
        script, output = tmp_path / "program.py", tmp_path / "output"
        script.write_text(program)
        (tmp_path / "sitecustomize.py").write_text("")
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        command = [sys.executable, str(script)]
        ended = fork_server.run(command, tmp_path, environment, output, timeout=60)
        assert ended.status == 0, output.read_text()

    return run


@pytest.fixture
def rank_of_four(request: pytest.FixtureRequest) -> Iterator[int]:
    """One of four ranks, alone: its collectives leave everything as it is."""
    dist.init_process_group("fake", store=FakeStore(), rank=request.param, world_size=4)
    yield request.param
    gc.collect()
    dist.destroy_process_group()
