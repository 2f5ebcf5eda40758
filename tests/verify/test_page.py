"""The report: one file that needs nothing, shows both curves and lets no text become markup."""

import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from fsdp_migrate.verify.causes import find
from fsdp_migrate.verify.page import render
from fsdp_migrate.verify.records import Run
from fsdp_migrate.verify.verdict import Verdict
from fsdp_migrate.verify.where.lines import Line, Pair

from . import written
from .written import run

EVIL = "<script>alert('x')</script> & \"quoted\""
DIFF = f"--- a/t.py\n+++ b/t.py\n@@ -1 +1 @@\n-FSDP(m)  # {EVIL}\n+fully_shard(m)  # {EVIL}\n"


def verdict(one: Run, other: Run) -> Verdict:
    both = written.verdict(one, other)
    return replace(
        both,
        parameters={"enter.weight": 0.0, EVIL: 0.25},
        cause=find(both.first, one, other, ""),
        uncompared=[EVIL],
        notes=[EVIL],
        diff=DIFF,
        environment={"torch": "2.13.0", "arguments": EVIL},
        where=LINES,
    )


LINES = [
    Line(
        "train.py",
        28,
        f"if name == {EVIL}:",
        (Pair("name", f"'_fsdp_wrapped_module.{EVIL}'", f"'{EVIL}'"),),
        rank=1,
        rules=("FSDP007",),
        around=((27, "for name in names:"), (28, f"    if name == {EVIL}:")),
    )
]
DOWN = [3.0, 2.0, 1.5, 1.25]
VERDICTS = {
    "the same": verdict(run(DOWN, DOWN), run(DOWN, DOWN)),
    "different": verdict(run(DOWN, DOWN), run(DOWN, [3.0, 2.5, 2.0, 1.75])),
    "one step": verdict(run([1.0]), run([1.0])),
    "no loss": verdict(run([]), run([])),
    "no number": verdict(run([1.0, math.nan, 3.0]), run([math.inf, math.nan, -math.inf])),
    "enormous": verdict(run([1e308, -1e308]), run([-1e308, 1e308])),
    "other ranks": verdict(run(DOWN, DOWN), run(DOWN[:2])),
    "accumulated": verdict(run(DOWN, micro=2), run(DOWN, micro=2)),
}


class _Balanced(HTMLParser):
    """Complains about an element that is not closed, or not by its own end."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)


@pytest.mark.parametrize("name", VERDICTS)
def test_a_page_is_whole_and_needs_nothing(name: str) -> None:
    page = render(VERDICTS[name], EVIL)
    parser = _Balanced()
    parser.feed(page)
    assert parser.open == []
    assert "script" not in parser.tags
    assert not {"link", "img", "iframe", "object"} & set(parser.tags)
    assert "http://" not in page
    assert "https://" not in page
    assert EVIL not in page
    assert page.count("&lt;script&gt;") >= 5  # title, note, diff, parameter, environment
    drawn = "".join(re.findall(r' (?:d|[xy][12]?)="([^"]*)"', page))
    assert not re.search("nan|inf", drawn)


def test_both_curves_are_drawn() -> None:
    page = render(VERDICTS["different"], "train.py")
    for kind in ("original", "migrated"):
        losses, norms = re.findall(rf'<path class="{kind}" d="(M[^"]+)"', page)
        assert losses.count("L") == norms.count("L") == 3
    one, other = (re.findall(rf'"{kind}" d="(.*?)"', page)[0] for kind in ("original", "migrated"))
    assert one.split("L")[0] == other.split("L")[0]  # both begin in the same place
    assert one != other
    assert "loss differs first at step 2 on rank 1: 2 against 2.5" in page
    assert "Cause: not known" in page
    assert "<td>1.25</td><td>1.75</td><td>0.5</td><td>2</td>" in page  # the second rank
    assert "1 of 2 differ" in page


def test_what_is_no_number_is_marked() -> None:
    page = render(VERDICTS["no number"], "train.py")
    for title in ("original, step 2: nan", "migrated, step 1: inf", "migrated, step 3: -inf"):
        assert f"<title>{title}</title>" in page


def test_a_line_that_differs_is_a_link_with_both_values_beside_it() -> None:
    page = render(VERDICTS["different"], "train.py")
    assert page.count('<a href="#line-train.py:28">train.py:28</a>') == 1
    assert page.count('id="line-train.py:28"') == 1
    assert "train.py:28, rank 1, FSDP007" in page
    # Once beside the link, once in the table.
    assert page.count("_fsdp_wrapped_module.&lt;script&gt;") == 2
    text = VERDICTS["different"].to_json()["where"][0]
    assert (text["file"], text["line"], text["rank"]) == ("train.py", 28, 1)
    assert text["pairs"][0]["migrated"] == f"'{EVIL}'"
    assert text["text"].startswith("train.py:28: `if name ==")


def test_without_such_lines_the_page_has_no_part_for_them() -> None:
    page = render(replace(VERDICTS["different"], where=[]), "train.py")
    assert "Lines that differ" not in page
    assert "Where the programs differ" not in page
