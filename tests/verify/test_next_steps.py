"""Every result says what to do next: which file to change, where the migrated program is, how to compare again."""

from dataclasses import replace
from pathlib import Path

import pytest

from fsdp_migrate.verify.advice import Programs
from fsdp_migrate.verify.causes import Cause
from fsdp_migrate.verify.errors import ProgramFailed
from fsdp_migrate.verify.outputs import Printed
from fsdp_migrate.verify.records import Run
from fsdp_migrate.verify.show import markdown, markdown_of_failure
from fsdp_migrate.verify.verdict import Verdict

from .written import run, verdict

SCRIPT = Path("train.py")
COPIED = Programs(SCRIPT, None, changed=["train.py"])
OWN = Programs(Path("v1/train.py"), Path("v2/train.py"))
UNCHANGED = "Your files are unchanged: the migrated program was a temporary copy."


def ran(*losses: list[float], files: tuple[str, ...] = ("train.py",)) -> Run:
    one = run(*losses)
    return replace(one, ranks=[replace(rank, files=[*files]) for rank in one.ranks])


def same(**more: object) -> Verdict:
    return replace(verdict(ran([2.0]), ran([2.0])), **more)  # type: ignore[arg-type]


def different(cause: str = "averaging", **more: object) -> Verdict:
    both = verdict(ran([2.0]), ran([2.5]))
    return replace(both, cause=Cause(cause, "a title", "Do this."), **more)  # type: ignore[arg-type]


def texts(programs: Programs, result: Verdict) -> list[str]:
    return [*programs.after(result).texts()]


def test_a_copy_that_trains_the_same_is_written_next() -> None:
    assert texts(COPIED, same()) == [
        f"{UNCHANGED} Next: write the migration into train.py: `fsdp-migrate train.py`"
    ]
    torch = replace(COPIED, form="torch", left=2)
    assert texts(torch, same()) == [
        f"{UNCHANGED} Next:",
        "  1. Read the 2 findings that need you: `fsdp-migrate check train.py --form torch`. "
        "It changes no training in this run.",
        "  2. Write the migration into train.py: `fsdp-migrate train.py --form torch`",
    ]


def test_a_program_of_the_user_that_trains_the_same_is_ready() -> None:
    assert texts(OWN, same()) == [
        "Next: use the migrated program (v2/train.py) in place of the original (v1/train.py). Nothing needs a change."
    ]
    odd = same(printed=[Printed(0, "n #", "'n 1' against 'n 2'", "")])
    assert texts(OWN, odd)[1:] == [
        "  1. Look at the code that prints what differs without a known cause.",
        "  2. Use the migrated program (v2/train.py) in place of the original (v1/train.py).",
    ]


def test_what_was_not_tested_comes_first() -> None:
    idle = [replace(rank, limits=[["9"]], clipped=[False]) for rank in ran([2.0]).ranks]
    unclipped = verdict(Run(idle, 1.0), Run(idle, 1.0))
    first, step, *_ = texts(OWN, unclipped)
    assert first == "Next:"
    assert "this run did not test clipping" in step


@pytest.mark.parametrize(
    ("original", "entry", "changed", "command"),
    [
        ("train.py", None, ["train.py"], "fsdp-migrate train.py"),
        ("a b/train.py", None, ["train.py"], "fsdp-migrate 'a b/train.py'"),
        ("train.py", None, ["train.py", "model.py"], "fsdp-migrate ."),
        ("src/train.py", None, ["model.py"], "fsdp-migrate src"),
        ("train.py", None, ["train.py", "other.py"], "fsdp-migrate train.py"),  # that did not run
    ],
)
def test_what_ran_and_changed_is_written(
    original: str, entry: str | None, changed: list[str], command: str
) -> None:
    programs = Programs(Path(original), None, changed=changed)
    files = ("train.py", "model.py")
    assert f"`{command}`" in "\n".join(
        texts(programs, verdict(ran([2.0], files=files), ran([2.0], files=files)))
    )


def test_a_difference_names_the_file_to_change() -> None:
    assert texts(OWN, different()) == [
        "Next: change the migrated program (v2/train.py) as the cause says. "
        "Leave the original (v1/train.py) as it is, and verify again."
    ]
    assert texts(COPIED, different()) == [
        f"{UNCHANGED} Next:",
        "  1. Write the migration into train.py: `fsdp-migrate train.py`",
        "  2. Change train.py as the cause says. Lines above are numbered as in the original.",
        "  3. Compare with ORIGINAL, a copy of the program from before step 1: "
        "`fsdp-migrate verify ORIGINAL --migrated train.py`, with the options of this run",
    ]
    assert "If the difference grows" in texts(COPIED, different("rounding"))[2]


def test_an_original_that_is_not_the_same_twice_is_changed_itself() -> None:
    undecided = different(control=verdict(run([2.0]), run([2.1])))
    assert texts(OWN, undecided) == [
        "Whether the migration is right is not known. Next: change the original (v1/train.py) "
        "until two runs of it are equal. Then verify again."
    ]


def failure(which: str, reason: str = "rank 0 raised ValueError", place: str = "") -> ProgramFailed:
    failed = ProgramFailed(which, reason, "the trace")
    failed.place = place
    return failed


def test_a_failure_names_the_file_to_repair(tmp_path: Path) -> None:
    (line,) = OWN.after_failure(failure("original", place="train.py:7")).texts()
    assert line == (
        "Nothing was compared: the program fails before any migration. Next: repair the original at v1/train.py:7, "
        "or what it needs: arguments, files, packages. Then verify again."
    )
    (line,) = OWN.after_failure(failure("migrated", place="train.py:9")).texts()
    assert line == (
        "Nothing was compared. Next: repair the migrated program at v2/train.py:9. "
        "Leave the original (v1/train.py) as it is, and verify again."
    )
    found = failure("migrated", place="train.py:9")
    found.found = ["FSDP003 at train.py:4"]
    told = [*COPIED.after_failure(found).texts()]
    assert told[0] == f"Nothing was compared. {UNCHANGED} Next:"
    assert told[2] == "  2. Repair what failed at train.py:9, as the finding says."
    other = failure("migrated", place="train.py:9")
    other.others = ["FSDP003 at train.py:4"]
    told = [*COPIED.after_failure(other).texts()]
    assert told[2] == "  2. Repair what failed at train.py:9; a finding may say how."
    assert str(other).endswith("A finding may explain it: FSDP003 at train.py:4")
    repository = Programs(tmp_path, None, entry=Path("run.py"))
    missing = failure("original", "rank 0 raised FileNotFoundError: data")
    (line,) = repository.after_failure(missing).texts()
    assert "`--link PATH` links it" in line
    (line,) = COPIED.after_failure(missing).texts()
    assert "`--entry train.py`" in line


def test_the_reports_say_it_as_well() -> None:
    result = replace(different(), next=OWN.after(different()))
    assert result.to_json()["next"] == [*result.next.steps]
    assert "Next: change the migrated program" in markdown(result, "train.py")
    failed = failure("migrated")
    failed.next = OWN.after_failure(failed)
    assert "Next: repair the migrated program" in markdown_of_failure(failed, "train.py")
