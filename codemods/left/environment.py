"""FSDP1's environment variables, which FSDP2 does not read."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.findings import Action

RULE = Rule("FSDP217", "environment")
RULES = (RULE,)

_VARIABLES = RULE.table


def find(context: Context) -> Iterator[Found]:
    """Places that name one of them: `os.environ["FSDP_USE_FULL_PREC_IN_EVAL"] = "1"`."""
    if not context.models.shards():
        return
    for node in ast.walk(context.file.tree):
        if isinstance(node, ast.Constant) and node.value in _VARIABLES:
            yield Found(RULE, node, Action.MANUAL, _VARIABLES[node.value], str(node.value))
