"""The comments by which a migration marks what a person has to look at, until they are removed."""

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.text import comments
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.file import NEWLINE
from fsdp_migrate.findings import Action

RULE = Rule("FSDP098", "review-comment")

_COMMENT = re.compile(r"# fsdp-migrate: review\[([A-Z0-9, ]*)\]")
_MESSAGE = "This comment marks what fsdp-migrate left to you: see `fsdp-migrate explain {}`. Remove it when that is done."


@codemod(words=("fsdp-migrate: review",))
def find(context: Context) -> Iterator[Found]:
    """A finding for each of these comments."""
    text = context.file.text
    known = comments(text)
    for number, line in enumerate(NEWLINE.split(text), 1):
        comment = _COMMENT.search(line)
        if comment is None or not any(comment[0] in each for each in known):
            continue
        start = len(line[: comment.start()].encode())
        end = len(line[: comment.end()].encode())
        node = ast.Pass(lineno=number, end_lineno=number, col_offset=start, end_col_offset=end)
        codes = [code.strip() for code in comment[1].split(",") if code.strip()]
        message = _MESSAGE.format(" and ".join(codes) or "CODE")
        yield Found(RULE, node, Action.MANUAL, message, comment[0])
