"""What was said of FSDP1's wrapper, and is said of the model itself where that is sharded in place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.codemods.constructor.silent import is_taken_off
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.file import last_name
from fsdp_migrate.facts.models import is_module
from fsdp_migrate.facts.program import Definition
from fsdp_migrate.facts.reach import reach_of
from fsdp_migrate.findings import Action

RULE = Rule(
    "FSDP526",
    "no-wrapper",
    "a model that is sharded in place is what FSDP1's wrapper held, and has its class and names",
)
RULES = (RULE,)

_CLASS = "was false for FSDP1's wrapper, and is true for the model itself, which is unwrapped now"
_FORWARD = "calls itself without an end: the model inside of the wrapper is the model, and its forward stays as it is"
_NAME = "no module or parameter has such a name: FSDP1's wrappers were parts of it"
_PART = re.compile(
    r"[\w}]\._fsdp_wrapped_module\b|\b_fsdp_wrapped_module\.[\w{]|[\w}]\._flat_param$"
)
_TAKING_OFF = frozenset({"lstrip", "removeprefix", "replace", "split", "strip", "sub"})


def find(context: Context) -> Iterator[Found]:
    """Tests for a wrapper of the program's own, the inner forward, and names with FSDP1's parts."""
    if not context.plain or not context.models.shards():
        return
    for node, message in (*_classes(context), *_forwards(context), *_names(context)):
        yield Found(RULE, node, Action.MANUAL, message)


def _classes(context: Context) -> Iterator[tuple[ast.AST, str]]:
    """`model.inner if isinstance(model, Outer) else model`, and the same by statements."""
    for call in context.file.calls.get("isinstance", ()):
        if len(call.args) == 2 and isinstance(call.args[1], ast.Name | ast.Attribute):
            made = context.program.definition(call.args[1], context.file)
            if made is None or not isinstance(made.node, ast.ClassDef):
                continue
            own = is_module(context.program, Definition(made.file, made.node))
            if own and not context.models.is_subclass(made) and context.can_be_model(call.args[0]):
                if _unwraps(context, call):
                    yield call, _CLASS


def _unwraps(context: Context, call: ast.Call) -> bool:
    """Whether a part takes the place of what is tested."""
    around, tested = context.file.parents[call], ast.unparse(call.args[0])
    body = getattr(around, "body", None) if isinstance(around, ast.If | ast.IfExp) else None
    first = body[0] if isinstance(body, list) else body
    if isinstance(first, ast.Assign):
        first = first.value if ast.unparse(first.targets[0]) == tested else None
    return isinstance(first, ast.Attribute) and ast.unparse(first.value) == tested


def _forwards(context: Context) -> Iterator[tuple[ast.AST, str]]:
    """`model.forward = model.module.__call__`."""
    for name in ("__call__", "forward"):
        for attribute in context.file.attributes.get(name, ()):
            around, inner = context.file.parents[attribute], attribute.value
            if not isinstance(inner, ast.Attribute) or inner.attr not in (
                "module",
                "_fsdp_wrapped_module",
            ):
                continue
            owner = ast.unparse(inner.value)
            is_set = (
                isinstance(around, ast.Assign)
                and ast.unparse(around.targets[0]) == f"{owner}.forward"
            )
            if is_set or ast.unparse(around).startswith(f"setattr({owner}, 'forward', "):
                yield around, _FORWARD


def _names(context: Context) -> Iterator[tuple[ast.AST, str]]:
    """`"module._fsdp_wrapped_module.layer"` in a test, but where that is taken off: other code keeps a model on the bridge."""
    file, reach = context.file, reach_of(context.program)
    wraps = context.models.constructors(file) or not reach.is_test(str(file.path))
    for node in file.of(ast.Constant) if not wraps else ():
        if not isinstance(node.value, str) or not _PART.search(node.value):
            continue
        around = file.parents[node]
        text = around if isinstance(around, ast.JoinedStr) else node
        call = file.parents[text]
        taken_off = isinstance(call, ast.Call) and last_name(call.func) in _TAKING_OFF
        if not (taken_off or is_taken_off(file, node) or isinstance(call, ast.Expr)):
            yield text, _NAME
