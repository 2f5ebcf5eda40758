"""FSDP1 of Accelerate, transformers and Lightning as Python sets it: in calls and in dictionaries."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.libraries import rules
from fsdp_migrate.codemods.rule import Found

RULES = rules.RULES


def find(context: Context) -> Iterator[Found]:
    """Calls and dictionaries that set FSDP1 for another library."""
    text = context.file.text
    imported = "lightning" in text or "FullyShardedDataParallelPlugin" in text
    calls = [
        call
        for call in context.file.of(ast.Call)
        if imported or any(str(keyword.arg).startswith("fsdp") for keyword in call.keywords)
    ]
    literals = [
        literal
        for literal in context.file.of(ast.Dict)
        for key in literal.keys
        if isinstance(key, ast.Constant) and str(key.value).startswith("fsdp")
    ]
    if calls or literals:
        from fsdp_migrate.codemods.libraries.settings import Reader  # few files have any

        yield from Reader(context).find(calls, list(dict.fromkeys(literals)))
