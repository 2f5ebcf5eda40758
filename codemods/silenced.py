"""Comments that silence rules on their line: `# fsdp-migrate: ignore[FSDP002]`."""

from __future__ import annotations

import ast
import re

from fsdp_migrate.codemods.rule import Rule
from fsdp_migrate.facts.file import NEWLINE

_COMMENT = re.compile(r"#\s*fsdp-migrate:\s*ignore\b(?:\[([A-Za-z0-9,\s]*)\])?")


class Silenced:
    """The comments of one file."""

    def __init__(self, text: str) -> None:
        self._codes: dict[int, set[str]] = {}  # by line; none for every rule
        if "fsdp-migrate:" in text:
            for number, line in enumerate(NEWLINE.split(text), 1):
                if comment := _COMMENT.search(line):
                    codes = (code.strip().upper() for code in (comment[1] or "").split(","))
                    self._codes[number] = {code for code in codes if code}

    def __call__(self, rule: Rule, node: ast.AST) -> bool:
        """Whether a comment silences a rule on a node's first line."""
        codes = self._codes.get(getattr(node, "lineno", 1))
        return codes is not None and (not codes or rule.code in codes)
