"""Code around FSDP1's wrapper that means the model itself now, and what cannot be done to a model that is sharded in place."""

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.codemods.by_hand.taken import is_known_as_whole
from fsdp_migrate.codemods.constructor.silent import is_taken_off
from fsdp_migrate.codemods.constructor.wrappers import keeps_wrappers
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.nodes import receiver
from fsdp_migrate.facts.program import is_module
from fsdp_migrate.facts.wrapped import wrapped_of
from fsdp_migrate.findings import Action, Severity
from fsdp_migrate.source import is_test

WRAPPER = Rule("FSDP526", "no-wrapper")
SHARDED = Rule("FSDP527", "after-sharding", Severity.RAISES)

_CLASS = (
    "This test was false for FSDP1's wrapper and is true now, so its branch runs, and takes a part of the model. Remove "
    "the branch if the whole model is needed."
)
_FORWARD = (
    "This assignment makes `forward` call itself without end: there is no wrapper any more, so `m.module` is `m` itself. "
    "Remove the assignment; `forward` needs no change."
)
_NAME = (
    "This text matches no name under FSDP2, because names no longer contain `_fsdp_wrapped_module`. Remove that part "
    "from the text."
)
_FLAT_NAME = (
    "This name matches no parameter under FSDP2, which has no flat parameters. Write the names of the parameters "
    "themselves."
)
_COPY = (
    "This call raises for a sharded model. Copy the model before sharding it, or create another one and load the state "
    "dict."
)
_REPLACED = (
    "This call raises after sharding, because the new modules hold DTensors that FSDP2 does not gather. Convert the "
    "model before sharding it."
)
_DRAWN = (
    "This draws different random numbers for DTensors than for FSDP1's shards. Initialize the model before sharding it, "
    "or load a state dict."
)
_CALLS = {"convert_sync_batchnorm": _REPLACED, "deepcopy": _COPY}
_CALLS |= dict.fromkeys(("init_weights", "initialize_weights", "reset_parameters"), _DRAWN)
_PART = re.compile(r".\._fsdp_wrapped_module\b|\b_fsdp_wrapped_module\.\w|.\._flat_param$")
_SETS_FORWARD = re.compile(r"(setattr\()?([\w.]+)(?(1), 'forward', |\.forward = )\2\.module\.")


@codemod(
    words=(
        "isinstance",
        ".module.",
        "_fsdp_w",
        "_flat_param",
        "deepcopy",
        "convert_sync",
        "_parameters",
        "init",
    )
)
def find(context: Context) -> Iterator[Found]:
    """Code of both kinds."""
    if not context.models.shards():
        return
    if context.in_place:
        of_wrappers = [*_of_wrappers(context)]
        if of_wrappers and not keeps_wrappers(context):
            yield from of_wrappers
    of_fsdp2 = "fully_shard" in context.file.calls and not context.references
    if of_fsdp2:
        return
    for name, message in _CALLS.items():
        severity = None
        if message is _DRAWN:
            severity = Severity.SILENT
        for call in context.file.calls.get(name, ()):
            model = _model_of(call, is_drawn=message is _DRAWN)
            if model is None or not _is_sharded(context, model):
                continue
            if not is_known_as_whole(context, call):
                construct = f"{name}(...)"
                yield Found(SHARDED, call, Action.MANUAL, message, construct, severity=severity)


def _of_wrappers(context: Context) -> Iterator[Found]:
    """Code that expects a wrapper around a module."""
    for node, message in (*_classes(context), *_names(context)):
        yield Found(WRAPPER, node, Action.MANUAL, message)
    for attribute in context.file.attributes.get("module", ()):
        statement = context.file.statement(attribute)
        if _SETS_FORWARD.match(ast.unparse(statement)):
            yield Found(WRAPPER, statement, Action.MANUAL, _FORWARD, severity=Severity.RAISES)


def _model_of(call: ast.Call, *, is_drawn: bool) -> ast.expr | None:
    """The model that a call is about: its first argument, or of one that draws values also its object."""
    model = None
    if is_drawn:
        model = receiver(call)
    if model is None and call.args:
        model = call.args[0]
    return model


def _is_sharded(context: Context, model: ast.expr) -> bool:
    """Whether an expression can be a sharded model, be it by the name of the module that FSDP1 wrapped."""
    if context.can_be_model(model):
        return True
    return context.in_place and wrapped_of(context.models).is_inside(model, context.file)


def _classes(context: Context) -> Iterator[tuple[ast.AST, str]]:
    """`model.inner if isinstance(model, Outer) else model`, and the same by statements."""
    for call in context.file.calls.get("isinstance", ()):
        around = context.file.parents[call]
        tested = ast.unparse(call.args[0])
        if isinstance(around, ast.If | ast.IfExp) and isinstance(call.args[1], ast.Name):
            first: ast.AST
            if isinstance(around, ast.If):
                first = around.body[0]
            else:
                first = around.body
            made = context.program.definition(call.args[1], context.file)
            unwraps = ast.unparse(first).removeprefix(f"{tested} = ").startswith(f"{tested}.")
            if unwraps and made is not None and isinstance(made.node, ast.ClassDef):
                own = is_module(context.program, made) and not context.models.is_subclass(made)
                if own and context.can_be_model(call.args[0]):
                    yield call, _CLASS


def _names(context: Context) -> Iterator[tuple[ast.AST, str]]:
    """`"module._fsdp_wrapped_module.layer"` in a test, but where that is taken off: other code keeps a model on the bridge."""
    file = context.file
    wraps = context.models.constructors(file) or not is_test(str(file.path))
    if wraps:
        return
    for node in file.of(ast.Constant):
        if isinstance(node.value, str) and _PART.search(node.value):
            if not isinstance(file.parents[node], ast.Expr) and not is_taken_off(file, node):
                yield node, _FLAT_NAME if node.value.endswith("._flat_param") else _NAME
