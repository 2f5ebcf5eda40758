"""`model.clip_grad_norm_(...)` and `model.no_sync()`: methods of FSDP1's class in the training loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from fsdp_migrate.codemods.constructor.decision import decisions
from fsdp_migrate.codemods.constructor.form import PlainForm
from fsdp_migrate.codemods.constructor.plain import has_torch
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Edit, Found, Import, Rule
from fsdp_migrate.facts.names import RUNTIME
from fsdp_migrate.findings import Action

CLIP = Rule(
    "FSDP301",
    "clip-method",
    "model.clip_grad_norm_(c) becomes a function of a plain model's parameters",
)
NO_SYNC = Rule(
    "FSDP311", "no-sync", "model.no_sync() of a plain model becomes the runtime's no_sync(model)"
)
RULES = (CLIP, NO_SYNC)

_RULES = {"clip_grad_norm_": CLIP, "no_sync": NO_SYNC}
_TORCH = "torch.nn.utils.clip_grad_norm_"
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def find(context: Context) -> Iterator[Found]:
    """The two methods of expressions that can hold a model."""
    uses = list(_uses(context))
    forms = decisions(context).plain_forms(context) if uses else None
    if forms is not None:
        yield from plain(context, forms)
        return
    for attribute, _ in uses:
        rule = _RULES[attribute.attr]
        message = f"{attribute.attr} works on the bridge as it did"
        yield Found(rule, attribute, Action.RUNTIME, message)


def plain(context: Context, forms: Sequence[PlainForm]) -> Iterator[Found]:
    """The calls as functions that take a plain model."""
    for attribute, call in _uses(context):
        if attribute.attr == "no_sync":
            if call is None or not (call.args or call.keywords):
                yield _no_sync(context, attribute, call)
        elif call is not None:
            yield _clip(context, attribute, call, forms)


def _uses(context: Context) -> Iterator[tuple[ast.Attribute, ast.Call | None]]:
    for name in _RULES:
        for attribute in context.file.attributes.get(name, ()):
            parent = context.file.parents[attribute]
            called = isinstance(parent, ast.Call) and parent.func is attribute
            if isinstance(attribute.ctx, ast.Load) and context.can_be_model(attribute.value):
                yield attribute, parent if called and isinstance(parent, ast.Call) else None


def _no_sync(context: Context, attribute: ast.Attribute, call: ast.Call | None) -> Found:
    model = context.source(attribute.value)
    becomes = (
        f"no_sync({model})" if call else f"partial(no_sync, {model})"
    )  # one to be called later
    return Found(
        NO_SYNC,
        attribute,
        Action.RUNTIME,
        "becomes no_sync(model), which turns gradient reduction off and on again",
        edits=lambda: [context.replace(call or attribute, becomes)],
        imports=(Import(RUNTIME, "no_sync"), *(() if call else (Import("functools", "partial"),))),
        removed=(attribute,),
    )


def _clip(
    context: Context, attribute: ast.Attribute, call: ast.Call, forms: Sequence[PlainForm]
) -> Found:
    by_torch = _torch_will_do(context, call, forms)
    function = _TORCH if by_torch else "clip_grad_norm_"

    def edits() -> list[Edit]:
        start, end = context.file.span(attribute)
        bracket = context.file.text.index("(", end) + 1
        parameters = f"{context.source(attribute.value)}.parameters()"
        comma = ", " if call.args or call.keywords else ""
        return [Edit(start, bracket, f"{function}({parameters}{comma}")]

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


def _torch_will_do(context: Context, call: ast.Call, forms: Sequence[PlainForm]) -> bool:
    """Whether torch's function does the same: result unused, a finite norm, all reduced, nothing offloaded."""
    if not isinstance(context.file.parents[call], ast.Expr):
        return False
    norm = [*call.args[1:2], *(k.value for k in call.keywords if k.arg == "norm_type")]
    finite = all(isinstance(n, ast.Constant) and isinstance(n.value, int | float) for n in norm)
    starred = any(isinstance(a, ast.Starred) for a in call.args) or any(
        keyword.arg is None for keyword in call.keywords
    )
    offloads = any("offload_policy" in form.whole.shared for form in forms)
    simple = finite and not starred and not offloads and has_torch(context, call)
    return simple and not _follows_each_backward(context, call)


def _follows_each_backward(context: Context, call: ast.Call) -> bool:
    """Whether a loop clips without a condition where it uses `no_sync`, so that some gradients are not reduced yet."""

    def innermost(node: ast.AST, *kinds: type[ast.AST]) -> ast.AST | None:
        return next((n for n in context.file.ancestors(node) if isinstance(n, kinds)), None)

    loop = innermost(call, ast.If, *_LOOPS)
    uses = context.file.attributes.get("no_sync", ())
    return isinstance(loop, _LOOPS) and any(innermost(use, *_LOOPS) is loop for use in uses)
