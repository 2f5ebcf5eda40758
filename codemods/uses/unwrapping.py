"""`model.module`: the module inside of the wrapper. A model under `like_fsdp1` answers it; in torch's form `unwrap` does."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Found, Import, Rule
from fsdp_migrate.facts.names import RUNTIME
from fsdp_migrate.findings import Action

RULE = Rule("FSDP009", "dot-module")
RULES = (RULE,)
_NAMES = ("module", "_fsdp_wrapped_module")


def find(context: Context) -> Iterator[Found]:
    """`.module` of what can hold a model; in torch's form nothing answers it any more."""
    changes = context.form == "torch" and context.means(
        "unwrap", context.file.tree, f"{RUNTIME}.unwrap"
    )
    for name in _NAMES:
        for attribute in context.file.attributes.get(name, ()):
            if isinstance(attribute.ctx, ast.Load) and context.can_be_model(attribute.value):
                if context.form == "torch" and not changes:
                    message = "a model of fully_shard has no wrapper: the runtime's unwrap(model) is the module"
                    yield Found(RULE, attribute, Action.MANUAL, message, f".{name}")
                    continue
                if not changes:
                    message = f"the model answers {name} as FSDP1's did"
                    yield Found(RULE, attribute, Action.RUNTIME, message, f".{name}")
                    continue
                code = f"unwrap({context.source(attribute.value)})"
                yield Found(
                    RULE,
                    attribute,
                    Action.RUNTIME,
                    "becomes unwrap(model): a model of fully_shard is itself, one of DDP has a wrapper",
                    f".{name}",
                    edits=lambda at=attribute, to=code: [context.replace(at, to)],  # type: ignore[misc]
                    imports=(Import(RUNTIME, "unwrap"),),
                )
