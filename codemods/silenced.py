"""The comments that are to silence a finding, and silence none."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Silenced
from fsdp_migrate.codemods.registry import rule_for
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.findings import Action, Severity

RULE = Rule("FSDP099", "unused-ignore", Severity.PRINTS)

_MESSAGE = "This comment silences no finding. Move it to the line where the construct begins, or remove it."
_UNKNOWN = (
    "This comment silences no finding: no rule has the code {}. `fsdp-migrate rules` lists all."
)


def unused(silenced: Silenced) -> Iterator[Found]:
    """A finding for each comment that silenced nothing of what was asked before."""
    for line, comment in silenced.comments.items():
        if line not in silenced.used:
            start, end = [len(comment.string[:at].encode()) for at in comment.span()]
            node = ast.Pass(lineno=line, end_lineno=line, col_offset=start, end_col_offset=end)
            wrong = [code for code in silenced.codes(line) if rule_for(code) is None]
            message = _MESSAGE
            if wrong:
                message = _UNKNOWN.format(wrong[0])
            yield Found(RULE, node, Action.MANUAL, message, comment[0])
