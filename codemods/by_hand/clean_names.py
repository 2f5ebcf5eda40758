"""Whether a program takes FSDP1's prefixes off the names of parameters and modules by itself."""

import ast
import re

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.nodes import assigned_value

PREFIX = "_fsdp_wrapped_module"
# `".".join(part for part in name.split(".") if not part.startswith("_"))`
_OWN_PARTS = re.compile(r"startswith\([\"']_[\"']\)")


def _is_made_clean(context: Context, key: ast.AST) -> bool:
    """Whether FSDP1's prefixes are taken off in an expression."""
    text = context.source(key)
    return PREFIX in text or _OWN_PARTS.search(text) is not None


def is_clean(context: Context, read: ast.Name) -> bool:
    """Whether FSDP1's prefixes are taken off a name above the place where it is read."""
    for binding in context.file.bindings(read):
        value = assigned_value(binding)
        if value is not None and value.lineno <= read.lineno:
            if _is_made_clean(context, value):
                return True
    return False
