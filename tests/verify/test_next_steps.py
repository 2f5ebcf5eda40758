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
from fsdp_migrate.verify.where.lines import Line

from .written import run, verdict

SCRIPT = Path("train.py")
COPIED = Programs(SCRIPT, None, changed=["train.py"], options="--nproc 2 -- --steps 6")
OWN = Programs(Path("v1/train.py"), Path("v2/train.py"), options="--nproc 2")
OWN_AGAIN = "Verify again: `fsdp-migrate verify v1/train.py --migrated v2/train.py --nproc 2`"
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
    left = ["FSDP003 at train.py:4", "FSDP507 at train.py:7"]
    torch = replace(COPIED, form="torch", left=left)
    assert texts(torch, same()) == [
        f"{UNCHANGED} Next:",
        "  1. Read the 2 findings that need you: `fsdp-migrate check train.py --form torch`. "
        "In this run, training is the same.",
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
    assert (first, step) == (
        "Next:",
        "  1. Test clipping, which this run did not: for a trial, set a lower limit in both programs, and run "
        "`fsdp-migrate verify v1/train.py --migrated v2/train.py --nproc 2`. Then set the limit back.",
    )


def test_a_finding_that_changes_only_what_is_printed_comes_last() -> None:
    count = "FSDP507 at train.py:7"
    odd = same(printed=[Printed(0, "n #", "'n 1' against 'n 2'", f"a count; {count} `p.numel`: x")])
    assert texts(replace(COPIED, left=[count]), odd)[1:] == [
        "  1. Write the migration into train.py: `fsdp-migrate train.py`",
        "  2. Training is the same, and only what is printed changed. If you need the old number, change the code as "
        "the cause says (FSDP507 at train.py:7 of the original). If not, leave it.",
    ]


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
        "Next:",
        "  1. Change the migrated program (v2/train.py) as the cause says. Leave the original (v1/train.py) as it is.",
        f"  2. {OWN_AGAIN}",
    ]
    assert texts(COPIED, different()) == [
        f"{UNCHANGED} Next:",
        "  1. Keep the original: `cp train.py original_train.py`",
        "  2. Write the migration into train.py: `fsdp-migrate train.py`",
        "  3. Change train.py as the cause says. Lines above are numbered as in the original.",
        "  4. Compare with what you kept: "
        "`fsdp-migrate verify original_train.py --migrated train.py --nproc 2 -- --steps 6`",
    ]
    assert "If the difference grows" in texts(COPIED, different("rounding"))[3]


def test_a_folder_is_kept_next_to_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "program"
    root.mkdir()
    monkeypatch.chdir(root)
    both = replace(COPIED, changed=["train.py", "model.py"])
    files = ("train.py", "model.py")
    apart = replace(different(), migrated=ran([2.5], files=files))
    steps = texts(both, apart)
    assert steps[1] == "  1. Keep the original: `cp -r . ../program.original`"
    assert "`fsdp-migrate verify ../program.original/train.py --migrated train.py" in steps[4]
    (tmp_path / "program.original").mkdir()
    steps = texts(replace(both, original=root, entry=SCRIPT), apart)
    assert steps[1] == f"  1. Keep the original: `cp -r {root} {root}.original2`"
    assert f"`fsdp-migrate verify {root}.original2 --migrated {root} --entry train.py " in steps[4]


def test_an_original_that_is_not_the_same_twice_is_changed_itself() -> None:
    undecided = different(control=verdict(run([2.0]), run([2.1])))
    assert texts(OWN, undecided) == [
        "Whether the migration is right is not known. Next:",
        "  1. Change the original (v1/train.py) as the cause says, until two runs of it are equal.",
        f"  2. {OWN_AGAIN}",
    ]


def failure(which: str, reason: str = "rank 0 raised ValueError", place: str = "") -> ProgramFailed:
    failed = ProgramFailed(which, reason, "the trace")
    failed.place = place
    return failed


def test_a_failure_names_the_file_to_repair(tmp_path: Path) -> None:
    assert [*OWN.after_failure(failure("original", place="train.py:7")).texts()] == [
        "Nothing was compared: the program fails before any migration. Next:",
        "  1. Repair the original at v1/train.py:7, or what it needs: arguments, files, packages.",
        f"  2. {OWN_AGAIN}",
    ]
    assert [*OWN.after_failure(failure("migrated", place="train.py:9")).texts()] == [
        "Nothing was compared. Next:",
        "  1. Repair the migrated program at v2/train.py:9. Leave the original (v1/train.py) as it is.",
        f"  2. {OWN_AGAIN}",
    ]
    found = failure("migrated", place="train.py:9")
    found.found = ["FSDP003 at train.py:4"]
    told = [*COPIED.after_failure(found).texts()]
    assert told[0] == f"Nothing was compared. {UNCHANGED} Next:"
    assert told[3] == "  3. Repair what failed at train.py:9, as the finding says."
    other = failure("migrated", place="train.py:9")
    other.where = [Line("train.py", 4, "model = FSDP(net)", (), 0)]
    assert (
        "look first at train.py:4, where it begins to differ"
        in COPIED.after_failure(other).steps[2]
    )
    other.where = []
    other.others = ["FSDP003 at train.py:4"]
    told = [*COPIED.after_failure(other).texts()]
    assert told[3] == "  3. Repair what failed at train.py:9; a finding may say how."
    assert str(other).endswith("A finding may explain it: FSDP003 at train.py:4")
    copied = failure("migrated", place="train.py:9")
    copied.written = 12
    copied.default_form = True
    copied.hints = ["cause: only some ranks make this call."]
    torch = replace(COPIED, form="torch")
    told = [*torch.after_failure(copied).texts()]
    assert told[3:] == [
        "  3. Repair what failed at train.py:9 (line 12 once it is migrated), as the cause says.",
        "  4. Compare with what you kept: "
        "`fsdp-migrate verify original_train.py --migrated train.py --nproc 2 -- --steps 6`",
        "  5. Instead of these steps, you can migrate without `--form torch`: "
        "`fsdp-migrate verify train.py --nproc 2 -- --steps 6`",
    ]


def test_a_missing_file_may_be_outside_of_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "program"
    folder.mkdir()
    repository = Programs(tmp_path, None, entry=Path("run.py"), options="--nproc 2")
    missing = failure("original", "rank 0 raised ModuleNotFoundError: data")
    told = [*repository.after_failure(missing).texts()]
    assert told[2].endswith(
        f"`fsdp-migrate verify {tmp_path} --entry run.py --link PATH --nproc 2`"
    )
    monkeypatch.chdir(folder)
    state, _, outer, again = COPIED.after_failure(missing).texts()
    assert f"It ran in a temporary copy of {folder}, without files from outside" in state
    assert "`fsdp-migrate verify .. --entry program/train.py --nproc 2 -- --steps 6`" in outer
    assert again.endswith("`fsdp-migrate verify train.py --nproc 2 -- --steps 6`")
    monkeypatch.chdir(tmp_path)
    below = replace(COPIED, original=Path("program/train.py"))
    outer = [*below.after_failure(missing).texts()][2]
    assert "`fsdp-migrate verify . --entry program/train.py " in outer


def test_a_file_that_is_not_in_the_copy_has_the_command_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "program"
    folder.mkdir()
    monkeypatch.chdir(folder)
    lost = "rank 0 raised FileNotFoundError: [Errno 2] No such file or directory: '../a b.pt' (train.py:7)"
    missing = failure("original", lost, "train.py:7")
    _, repair, again = COPIED.after_failure(missing).texts()
    assert repair == "  1. Put '../a b.pt' in its place, or correct the path at train.py:7."
    assert again.endswith("`fsdp-migrate verify train.py --nproc 2 -- --steps 6`")
    (tmp_path / "a b.pt").touch()
    (text,) = COPIED.after_failure(missing).texts()
    assert text.endswith(
        f"It ran in a temporary copy of {folder}, without files from outside of that folder. Next: the file is outside "
        "of that folder. Verify the folder that has both: "
        "`fsdp-migrate verify .. --entry program/train.py --nproc 2 -- --steps 6`"
    )
    repository = Programs(tmp_path, None, entry=Path("program/train.py"), options="--nproc 2")
    (text,) = repository.after_failure(missing).texts()
    assert text.endswith(
        f"link the file, which git ignores: `fsdp-migrate verify {tmp_path} --entry program/train.py "
        "--link 'a b.pt' --nproc 2`"
    )


def test_the_reports_say_it_as_well() -> None:
    result = replace(different(), next=OWN.after(different()))
    assert result.to_json()["next"] == [*result.next.steps]
    assert "1. Change the migrated program" in markdown(result, "train.py")
    failed = failure("migrated")
    failed.next = OWN.after_failure(failed)
    assert "1. Repair the migrated program" in markdown_of_failure(failed, "train.py")
