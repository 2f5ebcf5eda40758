"""How the tests are spread over two workers, what they start processes with, and the command line in this process."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from fsdp_migrate.cli import exit_code
from fsdp_migrate.verify import processes, reproducible
from fsdp_migrate.verify.launch import RECORDER

from .forkserver import ForkServer

# Before a test multiplies, and for every process that one starts.
os.environ.update({**reproducible.SETTINGS, **os.environ})

# `make test` draws few examples, the same each time: it says what a change did. `make thorough` draws many, and others in
# each run: --hypothesis-profile=thorough.
for profile, examples in (("quick", 10), ("thorough", 300)):
    settings.register_profile(
        profile,
        max_examples=examples,
        derandomize=profile == "quick",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("quick")

# What takes longest starts first; what is not named here comes last.
LONGEST = (
    "tests/behaviour/",
    "tests/verify/test_programs.py",
    "tests/checkpoints/",
    "tests/test_fixtures_verify.py",
    "tests/verify/",
    "tests/checkpoint_tool/",
    "tests/cases/",
)
# The tests of a file share what is made once, so that one worker runs them all. Here only both forms of a program share a
# run of the original: `test[program-form]`.
FORMS = ("tests/cases/test_cases.py", "tests/test_fixtures_verify.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        found = (n for n, start in enumerate(LONGEST) if item.nodeid.startswith(start))
        return next(found, len(LONGEST))

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadscope``: the tests of a file stay together, in the order that they have here."""
    if config.getvalue("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Spread(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file, _, _ = nodeid.partition("::")
            return nodeid.rpartition("-")[0] if file in FORMS else file

    config.option.loadscopereorder = False
    return Spread(config, log)


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """A process that has imported torch, and forks the programs that `verify` runs."""
    server = ForkServer(RECORDER)
    yield server
    server.close()


@pytest.fixture(scope="module")
def forked(fork_server: ForkServer) -> Iterator[None]:
    """`verify` forks its programs instead of starting interpreters, for the tests of a file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "run", fork_server.run)
        yield


@pytest.fixture
def interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a file of forked programs, a test that starts the real ones."""
    monkeypatch.setattr(processes, "run", _RUN)


_RUN = processes.run


@dataclass(frozen=True)
class Result:
    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def document(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder outside every repository."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def real_cli(
    folder: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    """Runs a command line in `folder`."""

    def run(*arguments: str) -> Result:
        capsysbinary.readouterr()
        code = exit_code(arguments)
        captured = capsysbinary.readouterr()
        return Result(code, captured.out, captured.err.decode())

    return run
