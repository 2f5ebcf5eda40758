"""Runs of the test programs, each done once however many tests look at it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fsdp_migrate.verify import values
from fsdp_migrate.verify.compare import largest
from fsdp_migrate.verify.folders import copy
from fsdp_migrate.verify.options import Options, Recording
from fsdp_migrate.verify.records import Run
from fsdp_migrate.verify.run import run_program

PROGRAMS = Path(__file__).parent / "programs"

RunProgram = Callable[..., Run]


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder of the test programs."""
    return PROGRAMS


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunProgram:
    """Run a program, once however often it is asked for: `run("original", "--flat", ranks=4)`."""
    done: dict[tuple[object, ...], Run] = {}

    def do(
        name: str,
        *arguments: str,
        ranks: int = 2,
        launcher: str = "torchrun",
        recording: Recording = Recording(),  # noqa: B008 (frozen)
    ) -> Run:
        key = (name, arguments, ranks, launcher, recording)
        if key not in done:
            folder = tmp_path_factory.mktemp(name)
            program = copy(name, PROGRAMS / f"{name}.py", folder / "copy")
            how = Options(
                launcher=launcher,
                ranks=ranks,
                arguments=[*arguments, "--nproc", str(ranks)],
                device="cpu",
                timeout=120,
            )
            done[key] = run_program(program, folder, how, recording)
        return done[key]

    return do


def last_apart(one: Run, other: Run) -> float:
    """How far the last parameters of two runs are apart."""
    distances, problem = values.last_differences(values.last(one), values.last(other))
    assert not problem
    return largest(distances.values())
