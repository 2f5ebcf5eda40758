"""The report: one file that needs nothing, shows both curves and lets no text become markup."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fsdp_migrate.cli import exit_code
from fsdp_migrate.verify import show
from fsdp_migrate.verify.causes import find
from fsdp_migrate.verify.compare import compare
from fsdp_migrate.verify.errors import ProgramFailed
from fsdp_migrate.verify.page import render
from fsdp_migrate.verify.records import Rank, Run
from fsdp_migrate.verify.sources import Sources
from fsdp_migrate.verify.verdict import Verdict

EVIL = "<script>alert('x')</script> & \"quoted\""
DIFF = f"--- a/t.py\n+++ b/t.py\n@@ -1 +1 @@\n-FSDP(m)  # {EVIL}\n+fully_shard(m)  # {EVIL}\n"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def run(*ranks: list[float], micro: int = 1) -> Run:
    def rank(number: int, losses: list[float]) -> Rank:
        steps = [index // micro + 1 for index in range(len(losses))]
        count = max(steps, default=0)
        squares = [1 / step for step in range(1, count + 1)]
        return Rank(number, losses, steps, squares, [[0.1]] * count, "gloo", {"all_gather": 7})

    return Run([rank(number, losses) for number, losses in enumerate(ranks)], seconds=1.5)


def verdict(one: Run, other: Run) -> Verdict:
    comparison = compare(one, other, 1e-6)
    return Verdict(
        *vars(comparison).values(),
        1e-6,
        "gloo",
        {"enter.weight": 0.0, EVIL: 0.25},
        one,
        other,
        causes=find(min(comparison.differences, default=None), one, other, ""),
        uncompared=[EVIL],
        notes=[EVIL],
        sources=Sources(DIFF),
        environment={"torch": "2.13.0", "arguments": EVIL},
    )


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
    drawn = "".join(re.findall(r' d="([^"]*)"', page))
    assert not re.search("nan|inf", drawn)


def test_both_curves_are_drawn() -> None:
    page = render(VERDICTS["different"], "train.py")
    for kind in ("original", "migrated"):
        losses, norms = re.findall(rf'<path class="curve {kind}" d="(M[^"]+)"', page)
        assert losses.count("L") == norms.count("L") == 3
    one, other = (
        re.findall(rf'"curve {kind}" d="(.*?)"', page)[0] for kind in ("original", "migrated")
    )
    assert one.split("L")[0] == other.split("L")[0]  # both begin in the same place
    assert one != other
    assert "loss differs first at step 2 on rank 1: 2 against 2.5" in page
    assert "Cause: not known" in page
    assert '<td class="off">0.5</td>' in page
    assert "2 of 2" not in page
    assert "1 of 2 differ" in page


def test_what_is_no_number_is_marked() -> None:
    page = render(VERDICTS["no number"], "train.py")
    for title in ("original, step 2: nan", "migrated, step 1: inf", "migrated, step 3: -inf"):
        assert f"<title>{title}</title>" in page


def test_the_summary_is_markdown() -> None:
    text = show.markdown(VERDICTS["different"], "train.py")
    assert text.startswith(
        "### ❌ fsdp-migrate verify: `train.py`\n\ndifferent: loss differs first"
    )
    assert "**Cause:** not known." in text
    assert "| optimizer steps | 4 | 4 |" in text
    assert "<script>" not in text.replace("\\<script\\>", "")
    assert show.markdown(VERDICTS["the same"], "train.py").startswith("### ✅")
    failure = ProgramFailed("migrated", "rank 1 raised ValueError: x", "Traceback\nValueError: x")
    assert "````\nTraceback\nValueError: x\n````" in show.markdown_of_failure(failure, "train.py")


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here to open the page with")
@pytest.mark.parametrize("name", ["different", "no number"])
def test_a_browser_has_nothing_to_complain_about(name: str, tmp_path: Path) -> None:
    assert CHROMIUM
    (tmp_path / "page.html").write_text(render(VERDICTS[name], EVIL), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    done = subprocess.run(
        [
            CHROMIUM,
            *options,
            f"--user-data-dir={tmp_path / 'profile'}",
            "--dump-dom",
            f"file://{tmp_path / 'page.html'}",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "CONSOLE" not in done.stderr  # what the page itself gave rise to
    assert done.stdout.count('class="curve') >= 4


@pytest.mark.parametrize("option", ["--json", "--report", "--summary"])
def test_a_file_that_cannot_be_written_is_named_before_the_program_runs(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, file = tmp_path / "train.py", tmp_path / "missing" / "result"
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert exit_code(["verify", str(script), option, str(file)]) == 2
    assert f"{file}: there is no such folder" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
