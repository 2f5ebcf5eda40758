"""Gradient synchronisation that is switched off and never on again."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.contract.facts import breach, holds
from fsdp_migrate.codemods.expressions import given_for
from fsdp_migrate.codemods.rule import Draft, Example, Rule

_HEADER = """\
from torch.distributed.fsdp import fully_shard

for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
"""
RULE = Rule(
    "FSDP710",
    "sync-never-on",
    "set_requires_gradient_sync(False) needs a True before the last backward",
    """The flag stays as it is set. Without a True before the last micro-batch's backward the gradients are kept unsharded,
out of the optimizer's sight: every `p.grad` is None, `optimizer.step()` changes nothing, and no error says so (seen on two
ranks). `model.set_requires_gradient_sync(is_last)` before each micro-batch sets it both ways. Nothing is said where any
call of the project can switch it on.""",
    (
        Example(
            "off for good",
            _HEADER + "for batch in batches:\n"
            "    model.set_requires_gradient_sync(False)\n"
            "    model(batch).backward()\n"
            "optimizer.step()\n",
            message="changes nothing",
        ),
        Example(
            "on for the last",
            _HEADER + "for batch in batches:\n"
            "    model.set_requires_gradient_sync(batch is last)\n"
            "    model(batch).backward()\n"
            "optimizer.step()\n",
            quiet=True,
        ),
        Example(
            "off and on",
            _HEADER + "model.set_requires_gradient_sync(False)\n"
            "model(first).backward()\n"
            "model.set_requires_gradient_sync(True)\n"
            "model(last).backward()\n",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_SETTER = "set_requires_gradient_sync"


def find(context: Context) -> Iterator[Draft]:
    """Calls that switch it off in a project that never switches it on."""
    if _SETTER not in context.module.text:
        return
    calls = [
        call
        for call in context.module.calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr == _SETTER
        and not _is_on(call)
        and holds(context, call.func.value)
    ]
    if not calls or any(
        _may_switch_on(attribute, module.parents[attribute])
        for module in context.project.modules
        for attribute in module.attributes
        if attribute.attr == _SETTER
    ):
        return
    for call in calls:
        message = "nothing switches it on again: the gradients stay out of sight, and the optimizer's step changes nothing"
        yield breach(RULE, context, call, message)


def _is_on(call: ast.Call) -> bool:
    """Whether a call can set the flag to True."""
    value = given_for(call, "requires_gradient_sync", 0)
    return not (isinstance(value, ast.Constant) and value.value is False)


def _may_switch_on(attribute: ast.Attribute, parent: ast.AST) -> bool:
    """Whether a use of the setter can set the flag to True; one that is no call may do anything."""
    if isinstance(parent, ast.Call) and parent.func is attribute:
        return _is_on(parent)
    return True
