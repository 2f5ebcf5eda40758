"""What a run needed of `like_fsdp1`: told line by line, over all ranks, with the edit that follows."""

import inspect
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fsdp_migrate.cli import cli
from fsdp_migrate.codemods.assumptions.table import ASSUMPTIONS
from fsdp_migrate.runtime.in_place import like_fsdp1
from fsdp_migrate.verify import quirks
from fsdp_migrate.verify.command import verify_command
from fsdp_migrate.verify.errors import ProgramFailed
from fsdp_migrate.verify.main import verify
from fsdp_migrate.verify.records import Rank, Run

KNOWN = ["zero_gradients", "whole_state_dicts", "class_names", "interface"]
SOURCE = """\
from fsdp_migrate.runtime import like_fsdp1
from fsdp_migrate import runtime

with like_fsdp1(model):
    pass
with (
    torch.no_grad(),
    runtime.like_fsdp1(
        self.model, class_names=False, interface=keeps
    ),
):
    pass
"""


def record(place: str, *off: str, **acted: tuple[int, list[str]]) -> dict[str, Any]:
    done = {name: {"count": n, "examples": each} for name, (n, each) in acted.items()}
    return {"place": place, "switched_off": [*off], "acted": done, "known": KNOWN}


ZEROS = "`zero_gradients` gave 1 unused parameter gradients of zeros (a)"
REST = (
    "`whole_state_dicts` returned 1 whole state dict; `class_names` printed 1 name of classes as FSDP1 did; "
    "`interface` gave the model 1 name of FSDP1's interface (x)"
)


def told(folder: Path, *ranks: list[dict[str, Any]]) -> list[str]:
    (folder / "train.py").write_text(SOURCE)
    run = Run([Rank(n, [], [], [], [], quirks=each) for n, each in enumerate(ranks)], 1.0)
    return [line.text() for line in quirks.read(run, folder)]


def test_what_nothing_needed_may_go(tmp_path: Path) -> None:
    idle = record("train.py:4", zero_gradients=(0, []))
    assert told(tmp_path, [idle], [idle]) == [
        "train.py:4 like_fsdp1(model): nothing of it was needed in this run. You can remove the line and dedent "
        "its block, if no code compares class names"
    ]
    assert told(tmp_path, [], []) == []


def test_of_a_copy_the_place_is_in_the_users_file_and_the_form_torch_is_the_way(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(SOURCE)
    ran = Run([Rank(0, [], [], [], [], quirks=[record("train.py:4")])], 1.0)
    (line,) = quirks.read(ran, tmp_path)
    line = replace(line, place="train.py:9", is_written=True)
    start = (
        "train.py:9 like_fsdp1(model), written for this line: nothing of it was needed in this run."
    )
    assert line.text() == (
        f"{start} `--form torch` writes the program without it, if no code compares class names"
    )
    assert line.may_go
    found = tuple(f"FSDP529 at train.py:{n}" for n in range(1, 6))
    line = replace(line, findings=found)
    assert line.text() == (
        f"{start} To do without it, use `--form torch` and look at its findings: FSDP529 at train.py:1, "
        "FSDP529 at train.py:2, FSDP529 at train.py:3 and 2 more"
    )
    assert not line.may_go


def test_a_quirk_is_needed_if_any_rank_needed_it(tmp_path: Path) -> None:
    one = record("train.py:4", zero_gradients=(3, ["a", "b"]), whole_state_dicts=(2, ["saved"]))
    other = record("train.py:4", zero_gradients=(9, ["b", "c", "d"]))
    assert told(tmp_path, [one], [other]) == [
        "train.py:4 like_fsdp1(model): `zero_gradients` gave 4 unused parameters gradients of zeros (a, b, c, ...); "
        "`whole_state_dicts` returned 2 whole state dicts. "
        "Nothing else was needed in this run, so you can write `like_fsdp1(model, interface=False)`"
    ]


def test_of_several_models_of_one_line_the_one_with_most_counts(tmp_path: Path) -> None:
    one = record("train.py:4", whole_state_dicts=(1, []))
    two = record("train.py:4", whole_state_dicts=(2, []))
    assert told(tmp_path, [one, two], [one, two])[0].startswith(
        "train.py:4 like_fsdp1(model): `whole_state_dicts` returned 2 whole state dicts. Nothing else was needed"
    )


def test_what_is_switched_off_stays_so_and_a_flag_is_replaced(tmp_path: Path) -> None:
    one = record("train.py:8", "class_names", zero_gradients=(1, ["head.weight"]))
    assert told(tmp_path, [one]) == [
        "train.py:8 runtime.like_fsdp1(self.model, class_names=False, interface=keeps): `zero_gradients` gave "
        "1 unused parameter gradients of zeros (head.weight). Nothing else was needed in this run, so you can write "
        "`runtime.like_fsdp1(self.model, "
        "class_names=False, whole_state_dicts=False, interface=False)`"
    ]


def test_where_all_acted_there_is_nothing_to_change(tmp_path: Path) -> None:
    acted: Any = {name: (1, ["x"]) for name in KNOWN}
    (line,) = told(tmp_path, [record("elsewhere.py:4", **acted, newer=(2, ["y"]))])
    assert line == (
        f"elsewhere.py:4 like_fsdp1(...): {ZEROS.replace('(a)', '(x)')}; {REST}; `newer` acted 2 times (y)"
    )


def test_there_are_words_for_every_quirk() -> None:
    parameters = inspect.signature(like_fsdp1).parameters.values()
    known = [each.name for each in parameters if isinstance(each.default, bool)]
    assert sorted(known) == sorted(quirks._WORDS)
    assert {assumption.switch for assumption in ASSUMPTIONS} == {*known, ""}


@pytest.mark.ranks
@pytest.mark.usefixtures("forked")
def test_every_report_says_what_the_run_needed(programs: Path, tmp_path: Path) -> None:
    script = programs / "kept" / "train.py"
    files = {name: tmp_path / name for name in ("json", "summary")}
    options = [part for name, file in files.items() for part in (f"--{name}", str(file))]
    arguments = [str(script), "--device", "cpu", "-v", *options]
    result = CliRunner().invoke(verify_command, [*arguments, "--tolerance", "0"])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[-1].startswith("same: 3 losses on 2 ranks bitwise equal")
    assert lines[-4].startswith(
        "train.py:20 like_fsdp1(model), written for this line: `zero_gradients` gave "
    )
    assert "Nothing else was needed in this run, so you can write `like_fsdp1(model, " in lines[-4]
    for line, place in zip(
        lines[-3:-1], ("21 like_fsdp1(teacher)", "22 like_fsdp1(reference)"), strict=True
    ):
        assert line.startswith(f"train.py:{place}, written for this line: nothing of it was needed")
    model, *others = json.loads(files["json"].read_text())["quirks"]
    assert set(model["acted"]) == {"zero_gradients", "whole_state_dicts", "interface"}
    assert (model["place"], model["may_go"]) == ("train.py:20", False)
    assert [other["may_go"] for other in others] == [True, True]
    assert "nothing of it was needed in this run" in files["summary"].read_text()


@pytest.mark.ranks
@pytest.mark.usefixtures("forked")
def test_the_line_may_not_go_where_the_form_torch_has_findings(
    programs: Path, tmp_path: Path
) -> None:
    script = programs / "kept" / "own_names.py"
    verdict = verify(script, device="cpu")
    (line,) = verdict.quirks
    assert verdict.equal
    assert line.text() == (
        "own_names.py:23 like_fsdp1(model), written for this line: nothing of it was needed in this run. To do without "
        "it, use `--form torch` and look at its findings: FSDP530 at own_names.py:14"
    )
    migrated = tmp_path / "own_names.py"
    migrated.write_bytes(script.read_bytes())
    assert CliRunner().invoke(cli, [str(migrated), "--allow-dirty"]).exit_code == 0
    (line,) = verify(script, migrated, device="cpu").quirks
    assert line.place == "own_names.py:26"
    assert not line.may_go


@pytest.mark.ranks
@pytest.mark.usefixtures("forked")
def test_the_runtimes_warnings_are_listed_by_place(programs: Path, tmp_path: Path) -> None:
    script = programs / "kept" / "clips.py"
    files = {name: tmp_path / name for name in ("json", "report", "summary")}
    options = [part for name, file in files.items() for part in (f"--{name}", str(file))]
    arguments = [str(script), "--form", "bridge", "--device", "cpu", *options]
    result = CliRunner().invoke(verify_command, arguments)
    assert result.exit_code == 0, result.output
    (said,) = json.loads(files["json"].read_text())["said"]
    assert (said["code"], said["place"]) == ("FSDP302", "clips.py:13")
    line = f"clips.py:13 FSDP302: {said['message']}"
    assert line in result.stdout.splitlines()
    for name in ("report", "summary"):
        assert "clips.py:13 FSDP302" in files[name].read_text()


RAISES = """\
import multiprocessing, os, sys, torch
def work():
    raise ValueError("no data")
if sys.argv[1] == "child":
    child = multiprocessing.get_context("fork").Process(target=work, name="loader")
    child.start(), child.join()
    sys.exit(child.exitcode)
if os.environ["RANK"] == "1":
    work()
"""


@pytest.mark.ranks
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("how", "who"),
    [("child", "loader, a process that is no rank,"), ("rank", "rank 1, before it trained,")],
)
def test_a_process_that_raised_is_named_with_the_place(how: str, who: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(RAISES)
    with pytest.raises(ProgramFailed) as caught:
        verify(script, script, device="cpu", launcher="torchrun", arguments=[how])
    assert caught.value.reason == f"{who} raised ValueError: no data (train.py:3)"
