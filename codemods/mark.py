"""Marks in the code: a comment with the rule's code above what is left to be done by hand."""

from __future__ import annotations

import libcst as cst

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.comments import with_leading_comments
from fsdp_migrate.codemods.rule import Draft, Edit, Edited

PREFIX = "# fsdp-migrate:"


def mark(context: Context, draft: Draft) -> Edit | None:
    """The edit that marks a construct; None where it is marked already."""
    try:
        node = context.syntax.line(context.module.statement(draft.node))
    except LookupError:
        return None
    label = f"{PREFIX} {draft.rule.code}"
    comment = f"{label} by hand: {draft.message}"
    lines = getattr(node, "leading_lines", ())
    if any(line.comment is not None and line.comment.value.startswith(label) for line in lines):
        return None

    def apply(updated: cst.CSTNode) -> Edited:
        assert isinstance(updated, cst.SimpleStatementLine | cst.BaseCompoundStatement)
        return Edited(with_leading_comments(updated, [comment]))

    return Edit(node, apply)
