"""`check --watch`: what starts the next check, and what ends it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fsdp_migrate.watch

Cli = Callable[..., Any]

FSDP1 = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"


def test_each_change_starts_a_check(
    folder: Path, real_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a.py").write_text(f"{FSDP1}FSDP(model)\n")
    steps = iter(
        [
            lambda: (folder / "b.py").write_text(f"{FSDP1}FSDP(other)\n"),
            lambda: (folder / "notes.txt").write_text("FSDP"),
            lambda: (folder / "a.py").unlink(),
        ]
    )

    def pause(_: float) -> None:
        step = next(steps, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    monkeypatch.setattr(fsdp_migrate.watch, "sleep", pause)
    result = real_cli("check", ".", "-q", "--watch")
    assert result.code == 130
    places = [line.partition(" ")[0] for line in result.text.splitlines() if line]
    assert places == ["a.py:2:1", "a.py:2:1", "b.py:2:1", "b.py:2:1"]
    assert result.err.count("Ctrl-C") == 3


@pytest.mark.parametrize("other", [("-",), (".", "--write-baseline", "b.json")])
def test_what_cannot_be_watched(other: tuple[str, ...], folder: Path, real_cli: Cli) -> None:
    result = real_cli("check", "--watch", *other)
    assert result.code == 2
    assert "--watch" in result.err
