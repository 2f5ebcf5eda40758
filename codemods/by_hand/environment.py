"""FSDP1's environment variables, which FSDP2 does not read."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.findings import Action

RULE = Rule("FSDP217", "environment")

# What the program gets under FSDP2 where it sets one of them, and what to do. The page of the rule shows the same.
VARIABLES = {
    "FSDP_USE_FULL_PREC_IN_EVAL": (
        "This variable has no effect under FSDP2: evaluation now runs in `param_dtype`. To evaluate in full precision, "
        "shard another copy of the model without mixed precision."
    ),
    "FSDP_USE_UNSAFE_SETATTR": (
        "This variable has no effect under FSDP2, which always sets parameters through a module's own `__setattr__`. If "
        "a module overrides that method, it must pass parameters on to `nn.Module`."
    ),
}


@codemod(words=("FSDP_USE_",))
def find(context: Context) -> Iterator[Found]:
    """Places that name one of them: `os.environ["FSDP_USE_FULL_PREC_IN_EVAL"] = "1"`."""
    if not context.models.shards():
        return
    for node in ast.walk(context.file.tree):
        if isinstance(node, ast.Constant) and node.value in VARIABLES:
            yield Found(RULE, node, Action.MANUAL, VARIABLES[node.value], str(node.value))
