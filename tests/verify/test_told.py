"""What a reader is told of a verdict: lines that differ in a few rows, and nothing that does not matter for it."""

from dataclasses import replace

import pytest

from fsdp_migrate.verify import causes
from fsdp_migrate.verify.causes import Cause
from fsdp_migrate.verify.outputs import Printed
from fsdp_migrate.verify.quirks import Line as Quirks
from fsdp_migrate.verify.where.lines import Line, Pair
from fsdp_migrate.verify.where.text import in_words, surprise

from .written import run, verdict

NOISE = ("arithmetic:", "time and memory:", "not compared:", "gradient norms:")


def texts(*lines: Line, verbose: bool = False) -> list[str]:
    return [text for text, _ in in_words(lines, verbose=verbose)]


def line(*pairs: Pair, number: int = 7, rules: tuple[str, ...] = ()) -> Line:
    return Line("train.py", number, "rate = RATES.get(kind)", pairs, 0, rules)


def test_a_variable_has_a_row_and_long_values_have_their_own() -> None:
    long = "list of 12 (dict of 2 ('lr': 0.01, 'params': weight), 2)"
    pairs = (Pair("rate", "0.05", "None"), Pair("return", long, long.replace("0.01", "0.2")))
    assert texts(line(*pairs, rules=("FSDP529",))) == [
        "differs first at train.py:7 (FSDP529): `rate = RATES.get(kind)`",
        "    rate: original 0.05, migrated None",
        "    the result:",
        f"      original {long}",
        f"      migrated {long.replace('0.01', '0.2')}",
    ]


def test_only_the_first_lines_are_shown_and_the_others_counted() -> None:
    lines = [line(Pair("x", "1", "2"), number=n) for n in range(1, 7)]
    assert texts(*lines)[::2] == [
        "differs first at train.py:1: `rate = RATES.get(kind)`",
        "then at train.py:2: `rate = RATES.get(kind)`",
        "then at train.py:3: `rate = RATES.get(kind)`",
        "and 3 more lines (-v shows them)",
    ]
    assert len(texts(*lines, verbose=True)) == 12


@pytest.mark.parametrize(
    ("original", "migrated", "said"),
    [
        ("'_fsdp_wrapped_module.head.bias'", "'head.bias'", "Only the original has FSDP1's names"),
        ("~part of a flat parameter (44,)", "~DTensor (8, 8)", "Only the original has FSDP1's names"),
        ("parameters a.bias", "parameters 8 of no module", "The migrated program lost"),
        ("1", "2", ""),
    ],
)  # fmt: skip
def test_which_program_is_the_unusual_one(original: str, migrated: str, said: str) -> None:
    found = surprise(line(Pair("n", original, migrated)))
    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_noise_is_told_where_it_is_asked_for() -> None:
    same = replace(
        verdict(run([2.0, 1.0]), run([2.0, 1.0])), routine=["evaluations"], canonical=True
    )
    assert not [
        text for text in same.notable(verbose=False) if text.startswith((*NOISE, "tolerance"))
    ]
    told = "\n".join(same.notable(verbose=True))
    assert all(word in told for word in NOISE)
    assert "evaluations" in same.to_json()["uncompared"]
    near = verdict(run([2.0, 1.0]), run([2.0, 1.0 + 1e-8]))
    assert [text for text in near.notable(verbose=False) if text.startswith("gradient norms")]


def test_what_a_differing_run_needed_is_no_advice() -> None:
    idle = Quirks("train.py:4", "like_fsdp1(model)")
    acted = {"zero_gradients": {"count": 1, "examples": ["a"]}}
    busy = Quirks(
        "train.py:4",
        "like_fsdp1(model)",
        acted,
        ("interface",),
        "like_fsdp1(model, interface=False)",
    )
    different = replace(verdict(run([2.0]), run([2.5])), quirks=[idle, busy])
    assert [*different.seen(verbose=False)] == []
    (told,) = different.seen(verbose=True)
    assert "interface=False" not in told
    assert different.line().startswith(
        "different: loss differs first at step 1 on rank 0: 2 against 2.5 (original against migrated); "
    )
    same = replace(verdict(run([2.0]), run([2.0])), quirks=[idle])
    assert "nothing of it was needed" in "\n".join(same.seen(verbose=False))
    for line in (busy, replace(idle, findings=("FSDP530 at train.py:2",))):
        kept = replace(same, quirks=[line])
        assert [*kept.seen(verbose=False)] == []
        assert [*kept.seen(verbose=True)] == [line.text()]


def test_a_note_that_is_the_cause_is_told_once() -> None:
    title = "FSDP529 at train.py:7: Looks up a class"
    cause = Cause("by-hand", title, "Then verify again.")
    different = replace(
        verdict(run([2.0]), run([2.5])), cause=cause, notes=[f"1 finding needs you: {title}."]
    )
    assert not [text for text in different.notable(verbose=True) if text.startswith("note:")]
    head = "2 findings need you: FSDP529 at train.py:7 and train.py:9"
    several = replace(different, notes=[f"{head}: Looks up a class."])
    notes = [text for text in several.notable(verbose=False) if text.startswith("note:")]
    assert notes == [f"note: {head}."]
    others = replace(different, notes=[f"{head}: Looks up a class. And 2 more, which x lists."])
    assert f"note: {head}. And 2 more, which x lists." in [*others.notable(verbose=False)]
    whole = replace(cause, title=f"{head}: Looks up a class")
    once = replace(several, cause=whole)
    assert not [text for text in once.notable(verbose=False) if text.startswith("note:")]
    unknown = replace(several, cause=Cause("unknown", "not known", ""))
    assert f"note: {head}: Looks up a class." in [*unknown.notable(verbose=False)]


def test_a_printed_number_that_follows_from_the_cause_is_left_out() -> None:
    lost = Printed(0, "loss", "'loss 1' against 'loss 2'", causes.TRAINED_DIFFERENTLY)
    count = replace(lost, words="size", cause="a count")
    cause = Cause("averaging", "a title", "Do this.")
    different = replace(verdict(run([2.0]), run([2.5])), cause=cause, printed=[lost, count])
    assert [*different.seen(verbose=False)] == [str(count)]
    assert [*different.seen(verbose=True)] == [str(lost), str(count)]
    unknown = replace(different, cause=replace(cause, name="unknown"))
    assert len([*unknown.seen(verbose=False)]) == 2
