"""`values` records what a program's constructs are given, and what `--values` makes plain trains the same."""

from __future__ import annotations

import json
import sys
from collections import UserDict
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.cli import exit_code
from fsdp_migrate.runtime.record import constructs
from fsdp_migrate.values import merged
from fsdp_migrate.verify import ProgramFailed, migration
from fsdp_migrate.verify.folders import copy_program
from fsdp_migrate.verify.launch import Launcher
from fsdp_migrate.verify.main import run_program, verify
from fsdp_migrate.verify.options import Options
from fsdp_migrate.verify.values import record

from ..bundled import FIXTURES, RUNS

SCRIPT = Path(__file__).parent / "programs" / "configured" / "train.py"
PLACE = {"call": "FullyShardedDataParallel", "file": "train.py", "line": 3, "function": "main"}


def call(**said: Any) -> dict[str, Any]:
    return {**PLACE, "arguments": {}, "names": {}, **said}


def test_what_differs_between_calls_is_said_and_not_known() -> None:
    one = call(
        arguments={"sharding_strategy": "A", "device_id": "None"}, names={"n": "1"}, meta=True
    )
    other = call(arguments={"sharding_strategy": "B"}, names={"n": "2"}, meta=True)
    (entry,) = merged([one, other])
    assert entry["arguments"] == {}
    assert entry["differs"] == {
        "device_id": ["<not given>", "None"],
        "sharding_strategy": ["A", "B"],
    }
    assert (entry["names"], entry["meta"], entry["times"]) == ({}, True, 2)
    (again,) = merged([entry, one])  # another run
    assert again["differs"]["sharding_strategy"] == ["A", "B"]
    assert again["times"] == 3


class Settings(UserDict[str, Any]):
    """A configuration as omegaconf's: a mapping whose values may be missing, and whose own fields say nothing."""

    def __getitem__(self, key: str) -> Any:
        if self.data[key] == "???":
            raise ValueError(f"{key} is missing")
        return self.data[key]


def test_names_of_a_mapping_are_its_keys() -> None:
    settings = Settings(fsdp=Settings(strategy="hybrid"), steps=3)
    unset = Settings(steps="???")
    assert settings["steps"] == 3
    with pytest.raises(ValueError, match="missing"):
        unset["steps"]
    names = constructs._names(sys._getframe())
    names = {name: text for name, text in names.items() if name.startswith(("settings", "unset"))}
    assert names == {"settings.fsdp.strategy": "'hybrid'", "settings.steps": "3"}


@pytest.mark.ranks
@pytest.mark.usefixtures("forked")
def test_a_configuration_is_recorded_made_plain_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    recorded = record(SCRIPT, file, device="cpu")
    document = json.loads(file.read_text())
    entry, *read = document["constructs"]
    assert {(e["call"], e["function"], e["of_wrapper"], e["times"]) for e in read} == {
        ("module", "depth", True, 2),
        ("module", "main", False, 2),
    }
    assert entry["file"].endswith("tests/verify/programs/configured/train.py")
    assert entry["function"] == "main"
    assert entry["arguments"]["sharding_strategy"] == "ShardingStrategy.SHARD_GRAD_OP"
    assert entry["names"]["args.strategy"] == "'SHARD_GRAD_OP'"
    assert entry["units"] == {"torch.nn.Linear": ["blocks.0.inner", "blocks.1.inner"]}
    assert (entry["all_of_classes"], entry["parameters_held"], entry["times"]) == (False, False, 2)
    assert entry["has_units"] is False

    verdict = verify(SCRIPT, device="cpu", tolerance=0, recorded=recorded)
    assert verdict.equal, verdict.line()
    assert verdict.bitwise
    added = [line[1:] for line in verdict.sources.diff.splitlines() if line.startswith("+    ")]
    assert added == [
        "    return len(model.blocks)",
        "    options = sharding(args)",
        "    # As a run recorded: sharding_strategy=SHARD_GRAD_OP, units by name",
        '    assert set(options) <= {"forward_prefetch", "sharding_strategy"}',
        '    assert options["sharding_strategy"].name == "SHARD_GRAD_OP"',
        "    assert args.least == 60",
        "    for module in (model.blocks[0].inner, model.blocks[1].inner):",
        "        fully_shard(module, reshard_after_forward=False)",
        "    fully_shard(model, reshard_after_forward=False)",
    ]

    program = copy_program("migrated", SCRIPT, None, tmp_path / "copy")
    migration.migrate(program.root, values=recorded)
    how = Options(arguments=["--strategy", "NO_SHARD"], device="cpu", timeout=60)
    with pytest.raises(ProgramFailed, match="AssertionError"):
        run_program(program, tmp_path, how)


@pytest.mark.ranks
@pytest.mark.thorough
@pytest.mark.usefixtures("forked")
def test_a_program_on_the_bridge_is_recorded_as_it_was(tmp_path: Path) -> None:
    entry, *read = record(SCRIPT, tmp_path / "run.json", device="cpu").entries
    bridged = copy_program("bridged", SCRIPT, None, tmp_path / "bridged")
    migration.migrate(bridged.root, "bridge")
    there, *read_there = record(bridged.script, tmp_path / "bridge.json", device="cpu").entries
    assert read_there == read
    for key in ("arguments", "names", "units", "all_of_classes", "parameters_held"):
        assert there[key] == entry[key], key


@pytest.mark.ranks
@pytest.mark.thorough
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("case", "settings"),
    [pytest.param(*run.values, id=run.id) for run in RUNS if "--compile" not in run.id],
)
def test_every_fixture_trains_the_same_by_what_a_run_gave(
    case: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    script = FIXTURES / case / "original" / settings["entry"]
    how: dict[str, Any] = {"ranks": settings["ranks"], "arguments": settings["arguments"]}
    how |= {"launcher": Launcher(settings["launcher"]), "device": "cpu"}
    recorded = record(script, tmp_path / "run.json", **how)
    verdict = verify(script, tolerance=settings["tolerance"], recorded=recorded, **how)
    assert verdict.equal, verdict.line()
    assert verdict.bitwise or settings["tolerance"]


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("values", "--output"),
        *(("verify", o) for o in ("--values", "--json", "--report", "--summary")),
    ],
)
def test_a_file_that_cannot_be_written_is_named_before_the_program_runs(
    command: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, file = tmp_path / "train.py", tmp_path / "missing" / "run.json"
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert exit_code([command, str(script), option, str(file)]) == 2
    assert f"{file}: there is no such folder" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
