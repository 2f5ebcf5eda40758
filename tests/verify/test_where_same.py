"""Programs that train the same after their migration: no line is said to differ."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.verify.folders import Program, copy
from fsdp_migrate.verify.migrated import migrate
from fsdp_migrate.verify.options import Options, Recording
from fsdp_migrate.verify.where.runs import look

from ..bundled import CASES as FIXTURE_CASES
from ..bundled import FIXTURES
from ..cases.test_cases import DIFFERENT, cases, write_program
from ..test_fixtures_verify import SHORTER
from .test_where import look_at

pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("forked")]

QUICK = {"guards-of-modules"}
"""One; the others are thorough."""


def false_lines(script: Path, folder: Path, how: Options, emulate: int = 0) -> list[str]:
    """The lines that are said to differ between a program and its migration."""
    before = copy("original", script, folder / "original" / "copy")
    after = copy("migrated", script, folder / "migrated" / "copy")
    migrate(after.root, "auto")
    recording = Recording(canonical=True, emulate=emulate, lines=100)

    def again() -> Program:
        return copy("original", script, folder / "again" / "copy")

    return [*map(str, look(before, after, again, folder, how, (recording, recording)))]


def programs() -> Iterator[Any]:
    """Every bundled program, and every case that prints the same."""
    for name in FIXTURE_CASES:
        yield pytest.param(name, [], id=name, marks=_marks(name))
    for case in cases():
        name, arguments = case.values  # type: ignore[attr-defined]
        whole = " ".join([name, *arguments])
        if whole not in DIFFERENT:
            yield pytest.param(name, arguments, id=whole, marks=_marks(whole))


def _marks(name: str) -> list[pytest.MarkDecorator]:
    return [] if name in QUICK else [pytest.mark.thorough]


@pytest.mark.parametrize(("name", "arguments"), [*programs()])
def test_no_line_is_said_to_differ(name: str, arguments: list[str], tmp_path: Path) -> None:
    if name in FIXTURE_CASES:
        settings = FIXTURE_CASES[name]
        settings = {**settings, **settings.get("runs", [{}])[0]}
        how = Options(
            launcher=settings["launcher"],
            ranks=settings["ranks"],
            arguments=[*settings["arguments"], *SHORTER[name]],
            device="cpu",
            timeout=120,
        )
        script = FIXTURES / name / "original" / settings["entry"]
        assert false_lines(script, tmp_path, how) == []
    else:
        script = write_program(name, tmp_path / "program")
        how = Options(launcher="torchrun", arguments=arguments, device="cpu", timeout=120)
        assert false_lines(script, tmp_path, how, emulate=how.ranks) == []


UNWRITTEN = """\
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
fully_shard(model)
{held}numbers = torch.empty(2000)
numbers[:10] = 1.0
model(torch.ones(2, 4)).sum().backward()
torch.optim.SGD(model.parameters(), lr=0.1).step()
"""
"""What `numbers` begins with is what the memory held before."""


def test_memory_that_nothing_was_written_to_is_no_difference(tmp_path: Path) -> None:
    held = "for n in range(9):\n    held = torch.full((2000,), 7.0)\ndel held\n"
    text, migrated = UNWRITTEN.format(held=""), UNWRITTEN.format(held=held)
    assert [*map(str, look_at(text, "auto", tmp_path, migrated))] == []
