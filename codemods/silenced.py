"""Comments that silence rules on their line, and those that silence nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.codemods.edit.text import comments
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.file import NEWLINE
from fsdp_migrate.findings import Action

RULE = Rule("FSDP099", "unused-ignore", "a comment that silences nothing is reported")
RULES = (RULE,)

_COMMENT = re.compile(r"#\s*fsdp-migrate:\s*ignore\b(?:\[([A-Za-z0-9,\s]*)\])?")


class Silenced:
    """The comments of one file; it notes which of them silence something."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._found: dict[int, re.Match[str]] = {}
        self._used: set[tuple[int, str]] = set()
        if "fsdp-migrate:" in text:
            for number, line in enumerate(NEWLINE.split(text), 1):
                if comment := _COMMENT.search(line):
                    self._found[number] = comment

    def __call__(self, rule: Rule, node: ast.AST) -> bool:
        """Whether a comment silences a rule on a node's first line."""
        line = getattr(node, "lineno", 1)
        if line not in self._found:
            return False
        codes = _codes(self._found[line])
        code = rule.code if codes else ""
        self._used.add((line, code))
        return not codes or code in codes

    def unused(self) -> Iterator[Found]:
        """A finding for each comment, or code in one, that silenced nothing of what was asked before."""
        known = set(comments(self._text)) if self._found else set()
        for line, comment in self._found.items():
            if not any(comment[0] in each for each in known):  # words in a string
                continue
            codes = _codes(comment)
            idle = [code for code in codes or [""] if (line, code) not in self._used]
            if idle:
                what = ", ".join(idle) + " " if codes else ""
                message = f"{what}silences nothing: move it to the line where a construct begins, or remove it"
                yield Found(RULE, self._at(line, comment), Action.MANUAL, message, comment[0])

    def _at(self, line: int, comment: re.Match[str]) -> ast.AST:
        start, end = (len(comment.string[:at].encode()) for at in comment.span())
        return ast.Pass(lineno=line, end_lineno=line, col_offset=start, end_col_offset=end)


def _codes(comment: re.Match[str]) -> list[str]:
    return [code.strip().upper() for code in (comment[1] or "").split(",") if code.strip()]
