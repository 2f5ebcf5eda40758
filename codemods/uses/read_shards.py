"""`load_sharded_optimizer_state_dict(...)`: states of FSDP2's optimizer are there to be filled, as the model's are."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard

from fsdp_migrate.codemods.context import Context, keyword
from fsdp_migrate.codemods.edit.text import comments_between
from fsdp_migrate.codemods.uses.use import Use
from fsdp_migrate.facts.file import last_name, root_of
from fsdp_migrate.facts.scopes import Assigned, Imported

if TYPE_CHECKING:
    from fsdp_migrate.codemods.edit.statement import Statement

FUNCTION = "load_sharded_optimizer_state_dict"
LOADED_BY = "optim_state_dict_to_load"
_PARAMETERS = ("model_state_dict", "optimizer_key", "storage_reader", "planner")
_PACKAGE = re.compile(r"torch\.distributed\.(?:_shard\.)?checkpoint")
# The first release with `load` has the older name, too.
_LOADS = ("load", "load_state_dict")
_MESSAGE = (
    "Replaced by `get_optimizer_state_dict`, whose tensors `{}` fills: the former function makes tensors for which "
    "`optimizer.step()` raises. For an optimizer without any states yet, it first makes a step with learning rate 0."
)


@dataclass(frozen=True, eq=False)
class ReadShards(Use):
    """The states of an optimizer under their key, and the call that fills them.

    Attributes:
        name: the variable for both.
        load: the function of `torch.distributed.checkpoint` that the file has.
    """

    name: str = ""
    load: str = ""

    def write(self, context: Context, changed: "Statement", moved: int = 0) -> None:
        statement = context.file.statement(self.node)
        given = ["storage_reader=_reader"]
        if "_planner" in self.parts:
            given.append("planner=_planner")
        states = f"{{_key: {self.function}({', '.join(self.arguments)})}}"
        code = f"{self.name} = {states}\n{self.load}({self.name}, {', '.join(given)})"
        changed.instead(code, statement, **self.parts)


def read_by(context: Context, state: ast.expr) -> ast.Call | None:
    """The call of `load_sharded_optimizer_state_dict` that reads a state: `saved`, or `saved["optimizer"]`."""
    root = state
    if isinstance(state, ast.Subscript):
        root = state.value
    if not isinstance(root, ast.Name):
        return None
    for binding in context.file.bindings(root):
        if isinstance(binding, Assigned) and not binding.path and is_call(binding.value):
            return binding.value
    return None


def is_call(node: ast.AST) -> TypeGuard[ast.Call]:
    """Whether a node calls `load_sharded_optimizer_state_dict`."""
    return isinstance(node, ast.Call) and last_name(node.func) == FUNCTION


def reading(context: Context, call: ast.Call) -> ReadShards | None:
    """What takes the place of a call, where a statement gives its result a name, and FSDP1 turns that into states to load."""
    statement = context.file.statement(call)
    match statement:
        case ast.Assign([ast.Name() as target]) if statement.value is call:
            loaded = _loaded_into(context, statement, target)
        case _:
            return None
    states, key, reader, planner = [
        keyword(call, name, place) for place, name in enumerate(_PARAMETERS)
    ]
    load = _load(context)
    is_known = all(each.arg in _PARAMETERS for each in call.keywords)
    has_comments = comments_between(context.file, *context.file.span(call))
    if loaded is None or states is None or key is None or reader is None or not load:
        return None
    if not is_known or has_comments or not context.is_alone(statement):
        return None
    parts = {"_key": key, "_reader": reader}
    if planner is not None:
        parts["_planner"] = planner
    message = _MESSAGE.format(load)
    return ReadShards(
        call, "get_optimizer_state_dict", loaded, parts, message, name=target.id, load=load
    )


def _loaded_into(
    context: Context, statement: ast.Assign, target: ast.Name
) -> tuple[str, str] | None:
    """The model and the optimizer that the states behind a statement are for, if they are known at the statement."""
    for read in context.file.reads(target):
        for call in context.file.ancestors(read):
            if isinstance(call, ast.Call) and last_name(call.func) == LOADED_BY:
                model = keyword(call, "model", 0)
                optimizer = keyword(call, "optim", 1)
                if model is None or optimizer is None or "model" in ast.unparse(optimizer).lower():
                    return None  # the order of torch 2.0
                owners = [root_of(model), root_of(optimizer)]
                if call.lineno > statement.lineno and all(
                    _is_known(context, each, statement, call) for each in owners
                ):
                    return ast.unparse(model), ast.unparse(optimizer)
    return None


def _is_known(context: Context, name: ast.expr | None, statement: ast.stmt, call: ast.Call) -> bool:
    """Whether a name means at a statement what it means at a call below: nothing binds it in between."""
    if not isinstance(name, ast.Name) or context.file.function(call) is not context.file.function(
        statement
    ):
        return False
    targets = [each.target for each in context.file.bindings(name) if isinstance(each, Assigned)]
    return not any(statement.lineno <= each.lineno <= call.lineno for each in targets)


def _load(context: Context) -> str:
    """How a file calls the function that fills a state dict from a checkpoint; "" where it imports none."""
    found = dict[str, str]()
    for name, dotted in _imported(context):
        package, _, member = dotted.rpartition(".")
        if _PACKAGE.fullmatch(dotted):
            found.setdefault("package", f"{name}.load")
        elif member in _LOADS and _PACKAGE.fullmatch(package):
            found.setdefault(member, name)
    return next((found[each] for each in (*_LOADS, "package") if each in found), "")


def _imported(context: Context) -> Iterator[tuple[str, str]]:
    """The names that the imports at the top of a file bind, and what they mean."""
    for name, bindings in context.file.scope.bindings.items():
        for binding in bindings:
            if isinstance(binding, Imported) and binding.member:
                yield name, f"{binding.module}.{binding.member}"
            elif isinstance(binding, Imported) and binding.alias.asname:
                yield name, binding.module
