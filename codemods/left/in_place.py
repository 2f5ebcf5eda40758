"""Code around FSDP1's wrapper that means the model itself now, and what cannot be done to a model that is sharded in place."""

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.codemods.constructor.silent import is_taken_off
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.left.taken import is_known_as_whole
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.program import is_module
from fsdp_migrate.facts.wrapped import wrapped_of
from fsdp_migrate.findings import Action
from fsdp_migrate.source import is_test

WRAPPER = Rule("FSDP526", "no-wrapper")
SHARDED = Rule("FSDP527", "after-sharding")
RULES = (WRAPPER, SHARDED)

_CLASS = "was false for FSDP1's wrapper, and is true for the model itself, which is unwrapped now"
_FORWARD = "calls itself without an end: the model inside of the wrapper is the model, and its forward stays as it is"
_NAME = "no module or parameter has such a name: FSDP1's wrappers were parts of it"
_COPY = (
    "raises for a sharded model: copy it before that, or make another one and load the state dict"
)
_REPLACED = (
    "makes modules that FSDP2 does not know, which fail on their DTensors: convert before sharding"
)
_DRAWN = "draws other numbers for DTensors than for FSDP1's shards: initialize before sharding, or load a state dict"
_CALLS = {"convert_sync_batchnorm": _REPLACED, "deepcopy": _COPY}
_CALLS |= dict.fromkeys(("init_weights", "initialize_weights", "reset_parameters"), _DRAWN)
_PART = re.compile(r".\._fsdp_wrapped_module\b|\b_fsdp_wrapped_module\.\w|.\._flat_param$")
_SETS_FORWARD = re.compile(r"(setattr\()?([\w.]+)(?(1), 'forward', |\.forward = )\2\.module\.")


def find(context: Context) -> Iterator[Found]:
    """Code of both kinds."""
    if not context.models.shards():
        return
    for node, message in (*_classes(context), *_names(context)) if context.plain else ():
        yield Found(WRAPPER, node, Action.MANUAL, message)
    for attribute in context.file.attributes.get("module", ()) if context.plain else ():
        statement = context.file.statement(attribute)
        if _SETS_FORWARD.match(ast.unparse(statement)):
            yield Found(WRAPPER, statement, Action.MANUAL, _FORWARD)
    of_fsdp2 = "fully_shard" in context.file.text and not context.references
    for name, message in () if of_fsdp2 else _CALLS.items():
        for call in context.file.calls.get(name, ()):
            owner = getattr(call.func, "value", None) if message == _DRAWN else None
            model = owner or (call.args[0] if call.args else None)
            if model is not None and _is_sharded(context, model):
                if not is_known_as_whole(context, call):
                    yield Found(SHARDED, call, Action.MANUAL, message, f"{name}(...)")


def _is_sharded(context: Context, model: ast.expr) -> bool:
    """Whether an expression can be a sharded model, be it by the name of the module that FSDP1 wrapped."""
    if context.can_be_model(model):
        return True
    return context.plain and wrapped_of(context.models).is_inside(model, context.file)


def _classes(context: Context) -> Iterator[tuple[ast.AST, str]]:
    """`model.inner if isinstance(model, Outer) else model`, and the same by statements."""
    for call in context.file.calls.get("isinstance", ()):
        around, tested = context.file.parents[call], ast.unparse(call.args[0])
        if isinstance(around, ast.If | ast.IfExp) and isinstance(call.args[1], ast.Name):
            first = around.body[0] if isinstance(around.body, list) else around.body
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
    for node in file.of(ast.Constant) if not wraps else ():
        if isinstance(node.value, str) and _PART.search(node.value):
            if not isinstance(file.parents[node], ast.Expr) and not is_taken_off(file, node):
                yield node, _NAME
