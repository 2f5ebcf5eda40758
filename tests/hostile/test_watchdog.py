"""A file that takes too long is named, and the others are done."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate import engine, migration
from fsdp_migrate.cli import exit_code

PROGRAM = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(m)\n"


def endless_in(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plants a rule that never ends in one file, whatever it catches."""
    swap: Callable[..., Any] = migration.swap

    def endless(context: Any, *given: Any) -> Any:
        while context.file.path == path:
            try:
                "".join("x")
            except Exception:
                continue
        return swap(context, *given)

    monkeypatch.setattr(migration, "swap", endless)
    monkeypatch.setattr(engine, "SECONDS", 0.1)


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.parametrize(
    ("command", "changed"), [(("check",), False), (("migrate", "--allow-dirty"), True)]
)
def test_a_file_that_never_ends_is_named_and_the_others_follow(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
    changed: bool,
    jobs: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    files = [tmp_path / f"{name}{n}.py" for name in ("first", "then") for n in range(8)]
    slow = tmp_path / "slow.py"
    for file in (*files, slow):
        file.write_text(PROGRAM)
    endless_in(slow, monkeypatch)
    assert exit_code([*command, ".", "--jobs", jobs]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if "slow.py" in line]
    assert len(said) == 1
    assert "left alone: not done after 0 s, please report it" in said[0]
    assert slow.read_text() == PROGRAM
    assert all(("fsdp_migrate.runtime" in file.read_text()) == changed for file in files)


def test_the_limit_ends_with_its_block() -> None:
    with engine.limited(0):
        assert 0 < signal.getitimer(signal.ITIMER_VIRTUAL)[0] < engine.SECONDS + 1
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGVTALRM) is signal.SIG_DFL
