"""Which of `like_fsdp1`'s switches a program in torch's form needs, and whether its findings name them.

The line with `like_fsdp1` goes back into the migrated program. With the switches on that findings name the program must do as
it did; one without which it does not is an assumption that does not hold for it. What is named and not needed explains nothing.
"""

import inspect
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fsdp_migrate.codemods.assumptions import lines
from fsdp_migrate.codemods.assumptions.table import ASSUMPTIONS
from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Found
from fsdp_migrate.engine import analyse_source
from fsdp_migrate.runtime import like_fsdp1
from fsdp_migrate.settings import Options
from fsdp_migrate.source import Source

_GIVEN = inspect.signature(like_fsdp1).parameters.values()
SWITCHES = sorted(each.name for each in _GIVEN if each.default is True)
_OF_CONDITIONS = {each.condition: each.switch for each in ASSUMPTIONS}
_OF_NAMES = {each.name: each.switch for each in ASSUMPTIONS}
_ASSUMED = re.compile(r"Assumes (.*?)\. ")

_BY_HAND = lines._by_hand
ALL = "all switches that are named"


def named(source: str) -> dict[str, str]:
    """The switches that findings in torch's form name, and where: at a line of their own, or at the constructor."""
    at_lines: set[str] = set()

    def by_hand(context: Context, line: lines.Line) -> Found:
        at_lines.add(_OF_NAMES[line.switch])
        return _BY_HAND(context, line)

    with patch.object(lines, "_by_hand", by_hand):
        findings = report_of(source, "torch").findings
    assumed = [_ASSUMED.match(finding.message) for finding in findings if finding.assumption]
    at_constructor = {_OF_CONDITIONS[match[1]] for match in assumed if match}
    found = dict.fromkeys(at_constructor - {""}, "at the constructor")
    found |= dict.fromkeys(at_lines - {""}, "at its line")
    assert found.keys() <= {*SWITCHES}, found
    return found


def under_switches(source: str) -> dict[str, str]:
    """A program in torch's form, but under `like_fsdp1` with all switches on that are named, and without each of them."""
    known = named(source).keys()
    return {name: _with_switches(source, known - {name}) for name in (ALL, *known)}


def _with_switches(source: str, on: Collection[str]) -> str:
    # A function instead of `partial(fully_shard, ...)`, around which no block can be.
    in_function = patch("fsdp_migrate.codemods.constructor.form._is_expression", lambda code: False)
    with patch.object(Construction, "like_fsdp1", True), in_function:
        text = report_of(source, "torch").changes[0].after.decode()
    text = re.sub(r", parameter_attributes=\w+", "", text)  # named where it is to be on
    off = "".join(f", {name}=False" for name in SWITCHES if name not in on)
    after, count = re.subn(r"with like_fsdp1\(([^,()]+)", rf"with like_fsdp1(\1{off}", text)
    is_sharded = re.search(r"\bfully_shard\b", text)  # else its constructor is by hand
    assert count or not is_sharded, text
    return after.replace('"cuda"', '"cpu"')


def report_of(source: str, form: str) -> Any:
    """What the tool says of a program, and makes of it."""
    given = Source(Path("/nowhere/train.py"), "train.py", source.encode())
    report = analyse_source(given, Options(form))
    assert not report.errors, report.errors
    return report


def migrated(source: str, form: str) -> str:
    """A program after its migration."""
    after = source
    for change in report_of(source, form).changes:  # none where its constructors are by hand
        after = change.after.decode()
    return after.replace('"cuda"', '"cpu"')
