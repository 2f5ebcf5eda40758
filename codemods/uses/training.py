"""`model.clip_grad_norm_(...)` and `model.no_sync()`: methods of FSDP1's class in the training loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context, has_torch
from fsdp_migrate.codemods.rule import Edit, Found, Import, Rule
from fsdp_migrate.facts.names import RUNTIME
from fsdp_migrate.findings import Action

CLIP = Rule("FSDP301", "clip-method")
NO_SYNC = Rule("FSDP311", "no-sync")
RULES = (CLIP, NO_SYNC)

_RULES = {"clip_grad_norm_": CLIP, "no_sync": NO_SYNC}
_TORCH = "torch.nn.utils.clip_grad_norm_"
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
# Of these parameters some are no DTensors, or on the CPU: torch's function refuses them.
_MIXED = ("CPUOffload", "cpu_offload", "ignored_modules", "ignored_states", "ignored_parameters")


def find(context: Context) -> Iterator[Found]:
    """The two methods of expressions that can hold a model, sharded in any form."""
    for attribute, call in _uses(context):
        if attribute.attr == "clip_grad_norm_" and call is not None and context.plain:
            if _torch_will_do(context, call):
                yield _clip(context, attribute, call, _TORCH)
                continue
        if context.form != "torch":
            message = f"the model answers {attribute.attr} as FSDP1's did"
            yield Found(_RULES[attribute.attr], attribute, Action.RUNTIME, message)
        elif not context.means(attribute.attr, attribute, f"{RUNTIME}.{attribute.attr}"):
            message = f"a model of fully_shard has no such method: the runtime's {attribute.attr}(model) does the same"
            yield Found(_RULES[attribute.attr], attribute, Action.MANUAL, message)
        elif attribute.attr == "no_sync":
            if call is None or not (call.args or call.keywords):
                yield _no_sync(context, attribute, call)
        elif call is not None:
            yield _clip(context, attribute, call, "clip_grad_norm_")


def _uses(context: Context) -> Iterator[tuple[ast.Attribute, ast.Call | None]]:
    for name in _RULES:
        for attribute in context.file.attributes.get(name, ()):
            parent = context.file.parents[attribute]
            called = isinstance(parent, ast.Call) and parent.func is attribute
            if isinstance(attribute.ctx, ast.Load) and _may_be_model(context, attribute):
                yield attribute, parent if called and isinstance(parent, ast.Call) else None


def _may_be_model(context: Context, attribute: ast.Attribute) -> bool:
    """Whether a method may be FSDP1's. In torch's form any is that no other name means: the runtime's functions call the
    method of what is no sharded model."""
    if context.form != "torch" or not context.references:
        return context.can_be_model(attribute.value)
    is_self = getattr(attribute.value, "id", "") == "self"
    return not is_self and not context.dotted(attribute)


def _no_sync(context: Context, attribute: ast.Attribute, call: ast.Call | None) -> Found:
    model = context.source(attribute.value)
    # One without a call is to be called later.
    becomes = f"no_sync({model})" if call else f"partial(no_sync, {model})"
    return Found(
        NO_SYNC,
        attribute,
        Action.RUNTIME,
        "becomes no_sync(model), which turns gradient reduction off and on again, of a model in any form",
        edits=lambda: [context.replace(call or attribute, becomes)],
        imports=(Import(RUNTIME, "no_sync"), *(() if call else (Import("functools", "partial"),))),
        removed=(attribute,),
    )


def _clip(context: Context, attribute: ast.Attribute, call: ast.Call, function: str) -> Found:
    by_torch = function == _TORCH

    def edits() -> list[Edit]:
        start, end = context.file.span(attribute)
        bracket = context.file.text.index("(", end) + 1
        model = context.source(attribute.value)
        comma = ", " if call.args or call.keywords else ""
        first = f"{model}.parameters()" if by_torch else model
        return [Edit(start, bracket, f"{function}({first}{comma}")]

    return Found(
        CLIP,
        attribute,
        Action.REWRITE if by_torch else Action.RUNTIME,
        "becomes torch.nn.utils.clip_grad_norm_, which takes the norm over all shards"
        if by_torch
        else "becomes clip_grad_norm_ of the runtime, which returns a plain tensor as FSDP1's did",
        edits=edits,
        imports=() if by_torch else (Import(RUNTIME, "clip_grad_norm_"),),
        removed=(attribute,),
    )


def _torch_will_do(context: Context, call: ast.Call) -> bool:
    """Whether torch's function does the same: result unused, a finite norm, all reduced, all parameters DTensors."""
    if not isinstance(context.file.parents[call], ast.Expr):
        return False
    norm = [*call.args[1:2], *(k.value for k in call.keywords if k.arg == "norm_type")]
    finite = all(isinstance(n, ast.Constant) and isinstance(n.value, int | float) for n in norm)
    starred = any(isinstance(a, ast.Starred) for a in call.args) or any(
        keyword.arg is None for keyword in call.keywords
    )
    mixed = context.program.has("|".join(_MIXED))
    own = context.program.has("def clip_grad_norm_")
    receiver = context.can_be_model(call.func.value)  # type: ignore[attr-defined]
    simple = finite and receiver and not (starred or mixed or own) and has_torch(context, call)
    return simple and not _follows_each_backward(context, call)


def _follows_each_backward(context: Context, call: ast.Call) -> bool:
    """Whether a loop clips without a condition where it uses `no_sync`, so that some gradients are not reduced yet."""

    def innermost(node: ast.AST, *kinds: type[ast.AST]) -> ast.AST | None:
        return next((n for n in context.file.ancestors(node) if isinstance(n, kinds)), None)

    loop = innermost(call, ast.If, *_LOOPS)
    uses = context.file.attributes.get("no_sync", ())
    return isinstance(loop, _LOOPS) and any(innermost(use, *_LOOPS) is loop for use in uses)
