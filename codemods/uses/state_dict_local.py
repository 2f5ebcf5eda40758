"""LOCAL_STATE_DICT: the flat shard of a rank, which only FSDP1 has."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.findings import Action

LOCAL = Rule(
    "FSDP334",
    "local-state-dict",
    "LOCAL_STATE_DICT is a rank's flat shard, which FSDP2 does not have",
)
_SETTERS = ("state_dict_type", "set_state_dict_type")


def raises(node: ast.AST) -> Found:
    """The finding where LOCAL_STATE_DICT is asked for."""
    message = (
        "raises for this type, because FSDP2 has no flat parameters: load such files once with FSDP1, on as many ranks, and "
        "save them as FULL_STATE_DICT or SHARDED_STATE_DICT"
    )
    return Found(LOCAL, node, Action.MANUAL, message)


def given(context: Context) -> Iterator[Found]:
    """LOCAL_STATE_DICT as a default, or as the value of a name or an argument: a context far away will ask for it."""
    for member in context.file.attributes.get("LOCAL_STATE_DICT", ()):
        place = context.file.parents[member]
        call = context.file.parents[place]
        is_asked = isinstance(call, ast.Call) and getattr(call.func, "attr", "") in _SETTERS
        if context.fsdp1(member.value) == "StateDictType" and not is_asked:
            if isinstance(place, ast.Assign | ast.AnnAssign | ast.arguments | ast.keyword):
                yield raises(member)
