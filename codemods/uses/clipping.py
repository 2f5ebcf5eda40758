"""`model.clip_grad_norm_(...)` as torch's function."""

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.codemods.constructor.ignored import may_ignore
from fsdp_migrate.codemods.constructor.mixed import are_mixed
from fsdp_migrate.codemods.context import Context, has_torch
from fsdp_migrate.codemods.edit import layout
from fsdp_migrate.codemods.edit.taken_away import without_comments_above
from fsdp_migrate.codemods.edit.text import indentation, newline, step
from fsdp_migrate.codemods.rule import Edit, Found, Import, Rule
from fsdp_migrate.facts.names import CLASS
from fsdp_migrate.findings import Action, Severity

RULE = Rule("FSDP301", "clip-method")

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_TORCH = "torch.nn.utils.clip_grad_norm_"
# Comments that say why it was FSDP1's method.
_ABOUT_CLIPPING = re.compile(
    r"(?:fsdp|fullysharded).*clip_grad|clip_grad.*(?:fsdp|fullysharded)", re.I
)
_BY_TORCH = f"Replaced by `{_TORCH}`. It computes the norm in the dtype of the gradients; FSDP1 used float32."
_MIXED = (
    f"Replaced by `{_TORCH}`, which raises if some parameters are ignored by FSDP2: clip those in a second call. With CPU "
    'offloading it also needs a backend for the CPU: write `init_process_group("cpu:gloo,cuda:nccl")`.'
)
_OFFLOADED = (
    f"Replaced by `{_TORCH}`. With CPU offloading it raises without a backend for the CPU: write "
    '`init_process_group("cpu:gloo,cuda:nccl")`.'
)
_EARLY = (
    f"Replaced by `{_TORCH}`, which does not see gradients that are not reduced yet; FSDP1 clipped those as well. "
    "Clip after the last backward pass of a step."
)
_INFINITE = (
    f"Replaced by `{_TORCH}`. With this type of norm it raises if a rank has no part of some gradient, because a "
    "parameter has fewer rows than there are ranks (the bias of a small last layer). Use a finite norm."
)


def find(context: Context, attribute: ast.Attribute) -> Iterator[Found]:
    """`model.clip_grad_norm_(...)`, or `FSDP.clip_grad_norm_(model, ...)`, as torch's function."""
    call = context.call_of(attribute)
    is_of_class = context.fsdp1(attribute.value) == CLASS
    if call is None or (is_of_class and not _starts_with_model(call)):
        message = f"An FSDP2 model has no `clip_grad_norm_`. Use `{_TORCH}(model.parameters(), max_norm)`."
        yield Found(RULE, attribute, Action.MANUAL, message, severity=Severity.RAISES)
        return
    model = attribute.value
    given = [*call.args]
    if is_of_class:
        model = given.pop(0)
    norm = [*given[1:2], *[k.value for k in call.keywords if k.arg == "norm_type"]]
    action, message = Action.REWRITE, _BY_TORCH
    severity = None
    if _follows_each_backward(context, call):
        action, message = Action.MANUAL, _EARLY
    elif context.program.once(are_mixed):
        action, message = Action.MANUAL, _OFFLOADED
        if context.program.once(may_ignore):
            message = _MIXED
        severity = Severity.RAISES
    elif any(map(_is_infinite, norm)):
        action, message = Action.MANUAL, _INFINITE
        severity = Severity.RAISES
    is_used = _is_used_as_tensor(context, call, norm)
    imports = () if has_torch(context, call) else (Import("torch", ""),)
    yield Found(
        RULE,
        attribute,
        action,
        message,
        edits=lambda: [
            *without_comments_above(context.file, context.file.statement(call), _ABOUT_CLIPPING),
            *_clip_edits(context, call, model, is_used),
        ],
        imports=imports,
        removed=(attribute,) if is_of_class else (),
        severity=severity,
    )


def _starts_with_model(call: ast.Call) -> bool:
    return bool(call.args) and not isinstance(call.args[0], ast.Starred)


def _is_infinite(norm: ast.expr) -> bool:
    """Whether a norm is written as the largest value: `float("inf")`, `math.inf`, `"inf"`."""
    match norm:
        case ast.Call(ast.Name("float"), [ast.Constant(str() as text)]) | ast.Constant(
            str() as text
        ):
            return text.strip("+ ").lower() in ("inf", "infinity")
        case ast.Attribute(_, "inf"):
            return True
    return False


def _clip_edits(context: Context, call: ast.Call, model: ast.expr, is_used: bool) -> list[Edit]:
    file = context.file
    tail = ".full_tensor()" * is_used
    start, behind = file.span(call)
    others = [each for each in call.args if each is not model]
    source = context.source(model)
    if not isinstance(model, ast.Name | ast.Attribute | ast.Subscript | ast.Call):
        source = f"({source})"
    begins = f"{_TORCH}({source}.parameters()"
    if len(others) < len(call.args):
        edits = [Edit(start, file.span(model)[1], begins)]
    else:
        bracket = file.text.index("(", file.span(call.func)[1]) + 1
        has_more = others or call.keywords
        edits = [Edit(start, bracket, begins + (", " if has_more else ""))]
    if is_used:
        edits.append(Edit(behind, behind, tail))
    line = call.lineno
    first = file.line_starts[call.lineno - 1]
    end_of_line = file.lines(call)[1]
    added = sum(len(edit.text) - (edit.end - edit.start) for edit in edits)
    length = len(file.text[first:end_of_line].rstrip())
    if call.end_lineno == line and length <= context.line_length < length + added:
        inside = [context.source(each) for each in (*others, *call.keywords)]
        indent = len(indentation(file, file.statement(call)))
        code = layout.call(
            _TORCH,
            [f"{source}.parameters()", *inside],
            room=0,
            line=context.line_length - indent,
            step=step(file),
        )
        code = code.replace("\n", newline(file) + " " * indent) + tail
        return [Edit(start, behind, code)]
    return edits


def _is_used_as_tensor(context: Context, call: ast.Call, norm: list[ast.expr]) -> bool:
    """Whether the norm is used for more than its number, which a DTensor of a finite norm gives by `item()`."""
    is_finite = all(isinstance(n, ast.Constant) and isinstance(n.value, int | float) for n in norm)
    parent = context.file.parents[call]
    if isinstance(parent, ast.Expr):
        return False
    if not is_finite:
        return True
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
        reads = context.file.reads(parent.targets[0])
        return not all(_is_item(context, read) for read in reads)
    return not _is_item(context, call)


def _is_item(context: Context, value: ast.expr) -> bool:
    return getattr(context.file.parents[value], "attr", "") == "item"


def _follows_each_backward(context: Context, call: ast.Call) -> bool:
    """Whether a loop clips without a condition where it uses `no_sync`, so that some gradients are not reduced yet."""

    def innermost(node: ast.AST, *kinds: type[ast.AST]) -> ast.AST | None:
        return next((n for n in context.file.ancestors(node) if isinstance(n, kinds)), None)

    loop = innermost(call, ast.If, *_LOOPS)
    uses = context.file.attributes.get("no_sync", ())
    return isinstance(loop, _LOOPS) and loop in [innermost(use, *_LOOPS) for use in uses]
