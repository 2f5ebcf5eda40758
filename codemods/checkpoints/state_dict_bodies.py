"""What the body of `with FSDP.state_dict_type(model, ...)` does with the model's state dict.

A body is understood if every call in it either is a state-dict call of the model, or can have no business with one. Anything
else could rely on the type: another function that is given the model, a trainer that has it.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.codemods.checkpoints.loaded_result import loading
from fsdp_migrate.codemods.checkpoints.optimizer_call import OptimizerCall, bound
from fsdp_migrate.codemods.checkpoints.rank_zero import is_of_all_ranks
from fsdp_migrate.codemods.checkpoints.state_dict_calls import (
    CALLS,
    OPTIMIZER_STATE,
    is_other,
    is_plain,
    same_model,
    static_method,
    text_of,
)
from fsdp_migrate.codemods.checkpoints.state_dict_reach import is_defined, reaches
from fsdp_migrate.codemods.checkpoints.state_dict_settings import Settings, arguments, settings
from fsdp_migrate.codemods.context import STATE_DICT, Context
from fsdp_migrate.codemods.expressions import values_given
from fsdp_migrate.index.module import Defined
from fsdp_migrate.index.project import Definition
from fsdp_migrate.index.values import origins

NOTHING = "no state-dict call is in sight"
_ASKING = frozenset({"isinstance", "id", "len", "print", "type", "hasattr", "getattr", "repr"})
_OF_MODEL = frozenset(
    {"buffers", "children", "eval", "modules", "named_buffers", "named_children", "named_modules"}
    | {"named_parameters", "parameters", "requires_grad_", "train", "zero_grad"}
)
_HARMLESS = frozenset(
    {"add_scalar", "append", "as_posix", "barrier", "clone", "close", "copy", "cpu", "cuda"}
    | {"debug", "detach", "dim", "endswith", "error", "exception", "exists", "extend", "flush"}
    | {"format", "get", "get_rank", "get_world_size", "info", "is_dir", "is_file", "item"}
    | {"items", "join", "joinpath", "keys", "log", "lower", "mkdir", "numel", "open", "pop"}
    | {"print", "replace", "setdefault", "size", "split", "startswith", "strip", "time", "to"}
    | {"update", "upper", "values", "wait_for_everyone", "warning", "write"}
)


@dataclass(frozen=True, eq=False)
class Item:
    """One `state_dict_type(...)` of a `with` statement.

    Attributes:
        settings: what it asks for, or why that cannot be told.
        calls: the model's own `state_dict()` and `load_state_dict(...)` in the body.
        reason: why the body cannot be rewritten; empty if it can.
    """

    statement: ast.With
    call: ast.Call
    model: ast.expr | None
    settings: Settings | str
    calls: tuple[ast.Call, ...] = ()
    reason: str = ""

    @property
    def is_local(self) -> bool:
        """Whether it asks for LOCAL_STATE_DICT, which has no counterpart."""
        return isinstance(self.settings, Settings) and self.settings.kind == "LOCAL"


def items(context: Context, statement: ast.With) -> list[Item]:
    """The contexts of a `with` statement that set a type; their bodies are judged together."""
    found = [
        _item(context, statement, item.context_expr, item.optional_vars is not None)
        for item in statement.items
        if isinstance(item.context_expr, ast.Call)
        and static_method(context, item.context_expr) == "state_dict_type"
    ]
    reason = next((item.reason for item in found if item.reason), "")
    if not reason:
        return found
    return [
        item
        if item.reason
        else Item(item.statement, item.call, item.model, item.settings, item.calls, reason)
        for item in found
    ]


def around(context: Context, node: ast.AST) -> Iterator[Item]:
    """The contexts that set a type around a node, innermost first."""
    child = node
    for parent in context.module.ancestors(node):
        if isinstance(parent, ast.With) and isinstance(child, ast.stmt):
            yield from reversed(items(context, parent))
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            if not _is_called_inside(context, parent):
                return
        child = parent


def governing(context: Context, call: ast.Call, model: ast.expr) -> Item | None:
    """The context that sets the type for a call that speaks of a model."""
    for item in around(context, call):
        if item.model is None or same_model(context, item.model, model):
            return item
    return None


def _item(context: Context, statement: ast.With, call: ast.Call, named: bool) -> Item:
    given = arguments(call)
    model = None if given is None else given.get("module")
    asked = settings(context, call)
    if model is None:
        return Item(statement, call, None, asked, reason="the model is not in sight")
    calls: list[ast.Call] = []
    reason = "what the context gives is used" if named else ""
    optimizers: list[ast.Call] = []
    for node in (inner for part in statement.body for inner in ast.walk(part)):
        if isinstance(node, ast.Yield | ast.YieldFrom | ast.Await):
            reason = reason or "other code runs inside of it"
        if not isinstance(node, ast.Call):
            continue
        if _has_own_type(context, statement, node, model):
            continue
        kind = _role(context, statement, node, model)
        if kind == "own":
            calls.append(node)
        elif kind == "optimizer":
            optimizers.append(node)
        elif kind:
            reason = reason or f"`{context.source(node.func)}` {kind}"
    if not calls and not optimizers:
        reason = reason or NOTHING
    if isinstance(asked, str):
        reason = asked
    elif not reason:
        reason = _without_options(context, asked, calls, optimizers)
        if not reason and asked.rank0_only:
            if not is_of_all_ranks(context, context.sites(model)):
                reason = "rank 0 of the model's process group may be another than rank 0 of all"
    return Item(statement, call, model, asked, tuple(calls), reason)


def _has_own_type(context: Context, statement: ast.With, node: ast.AST, model: ast.expr) -> bool:
    """Whether a context inside of the statement gives the same model another type around a node."""
    child = node
    for parent in context.module.ancestors(node):
        if parent is statement:
            return False
        if isinstance(parent, ast.With) and child in parent.body:
            for item in parent.items:
                call = item.context_expr
                if isinstance(call, ast.Call) and static_method(context, call) == "state_dict_type":
                    inner = (arguments(call) or {}).get("module")
                    if inner is None or same_model(context, inner, model):
                        return True
        child = parent
    return False


def _without_options(
    context: Context, asked: Settings, calls: list[ast.Call], optimizers: list[ast.Call]
) -> str:
    """Why the settings of a body that is understood have no options in the functions that it would call."""
    saves = any(isinstance(c.func, ast.Attribute) and c.func.attr == "state_dict" for c in calls)
    no_optimizer = asked.of_optimizer() is None
    if asked.is_default_of_optimizer:  # the runtime's function, unless another type may be set
        no_optimizer = any("set_state_dict_type" in m.text for m in context.project.modules)
    else:
        kept = next((call for call in optimizers if _goes_by_type(context, call)), None)
        if kept is not None:
            return f"`{context.source(kept.func)}` stays a function that goes by the type"
    if (saves and asked.of_model() is None) or (optimizers and no_optimizer):
        return "one of offload_to_cpu and rank0_only alone has no counterpart"
    return ""


def _goes_by_type(context: Context, node: ast.Call) -> bool:
    """Whether a call on an optimizer's states has no function that takes the type as an option."""
    assert isinstance(node.func, ast.Attribute)
    if node.func.attr == "optim_state_dict":
        call = bound(context, node, node.func)
        return not isinstance(call, OptimizerCall) or not call.only("model", "optim")
    if node.func.attr == "optim_state_dict_to_load":
        call = bound(context, node, node.func)
        return not isinstance(call, OptimizerCall) or loading(context, node, call.given) is None
    return False


def _role(context: Context, statement: ast.With, call: ast.Call, model: ast.expr) -> str:
    """`own` and `optimizer` for a call on the model's state, nothing for a bystander, else what is wrong with it."""
    function = call.func
    method = static_method(context, call)
    if method in OPTIMIZER_STATE:
        return "optimizer"
    if method in {"set_state_dict_type", "get_state_dict_type"}:
        return "changes or reads the type"
    if method == "state_dict_type":
        return ""
    foreign = bool(_paths(context, call))
    if isinstance(function, ast.Attribute) and function.attr in CALLS and not foreign:
        return _of_state(context, call, function, model)
    if _is_given(context, call, model):
        return "may use it"
    if foreign:
        return ""
    if isinstance(function, ast.Name):
        return _of_name(context, statement, function)
    if isinstance(function, ast.Attribute):
        if text_of(function.value) == text_of(model):
            return "" if function.attr in _OF_MODEL else "may use it"
        if reaches(context.project, function.attr):
            return "may use it"
        if function.attr in _HARMLESS or _is_literal(function.value):
            return ""
        found = context.project.definition(function, context.module)
        cls = context.models.class_of(function.value, context.module)
        known = found or (cls and context.project.method(cls, function.attr))
        own = isinstance(function.value, ast.Name) and function.value.id == "self"
        return "" if known or (own and is_defined(context.project, function.attr)) else "may use it"
    return "may use it"


def _of_state(context: Context, call: ast.Call, function: ast.Attribute, model: ast.expr) -> str:
    receiver = function.value
    if is_other(receiver):
        return ""
    if same_model(context, model, receiver):
        return "own" if is_plain(call) else "is no plain state-dict call"
    if context.models.sharded(receiver, context.module):
        return ""  # another model, with a type of its own
    if _is_optimizer(context, receiver):
        return ""
    if isinstance(receiver, ast.Name | ast.Attribute):
        made = origins(context.project, receiver, context.module)
        if made and all(
            isinstance(m.node, ast.Call) and context.project.dotted(m.node.func, m.module)
            for m in made
        ):
            return ""
    return "may use it"


def _is_optimizer(context: Context, receiver: ast.expr) -> bool:
    """Whether a call of FSDP1's functions for optimizer states is given something that is no model: its optimizer."""
    text = ast.unparse(receiver)
    return any(
        ast.unparse(value) == text
        for call in context.module.calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in OPTIMIZER_STATE
        if static_method(context, call)
        for value in values_given(call)
        if isinstance(value, ast.Name | ast.Attribute)
    )


def _of_name(context: Context, statement: ast.With, function: ast.Name) -> str:
    found = context.module.lookup(function.id, context.module.scope_of(function))
    if found is None:
        return "" if hasattr(builtins, function.id) else "may use it"
    inside = {id(node) for part in statement.body for node in ast.walk(part)}
    if all(isinstance(b, Defined) and id(b.node) in inside for b in found[1]):
        loads = context.module.loads.get(function.id, ())
        return "" if all(id(load) in inside for load in loads) else "is called elsewhere as well"
    if isinstance(context.project.definition(function, context.module), Definition):
        return "may use it" if reaches(context.project, function.id) else ""
    return "may use it"


def _is_called_inside(context: Context, function: ast.AST) -> bool:
    """Whether a function is only called in the `with` body that defines it."""
    name = getattr(function, "name", None)
    statement = next(
        (n for n in context.module.ancestors(function) if isinstance(n, ast.With)), None
    )
    if name is None or statement is None:
        return isinstance(function, ast.Lambda)
    inside = {id(node) for part in statement.body for node in ast.walk(part)}
    return all(id(load) in inside for load in context.module.loads.get(name, ()))


def _is_given(context: Context, call: ast.Call, model: ast.expr) -> bool:
    """Whether a call is given the model itself, and may do with it what it likes."""
    if isinstance(call.func, ast.Name) and call.func.id in _ASKING:
        return False
    if any(path.startswith(f"{STATE_DICT}.") for path in _paths(context, call)):
        return False  # these set the type themselves
    text = text_of(model)
    return any(
        text_of(node) == text for argument in values_given(call) for node in _values(argument)
    )


def _paths(context: Context, call: ast.Call) -> frozenset[str]:
    return context.project.dotted(call.func, context.module)


def _values(expression: ast.expr) -> Iterator[ast.expr]:
    """The values that an argument hands over: the elements of containers, not what other calls are given."""
    if isinstance(expression, ast.Name | ast.Attribute):
        yield expression
    elif isinstance(expression, ast.Tuple | ast.List | ast.Set):
        for element in expression.elts:
            yield from _values(element)
    elif isinstance(expression, ast.Dict):
        for value in expression.values:
            yield from _values(value)
    elif isinstance(expression, ast.Starred):
        yield from _values(expression.value)
    elif isinstance(expression, ast.IfExp):
        yield from _values(expression.body)
        yield from _values(expression.orelse)


def _is_literal(expression: ast.expr) -> bool:
    return isinstance(expression, ast.Constant | ast.JoinedStr)
