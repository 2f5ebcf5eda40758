"""What the body of `with FSDP.state_dict_type(model, ...)` does with the model, and what else names its state.

Anything with a way to the model could rely on the type: a trainer that holds it, a function that is given it.
"""

from __future__ import annotations

import ast
import builtins
import re

from fsdp_migrate.codemods.context import Context, shortened
from fsdp_migrate.facts.file import File, values_given
from fsdp_migrate.facts.names import CLASS
from fsdp_migrate.facts.program import Definition, External, Program
from fsdp_migrate.facts.reach import reach_of

# Methods of loggers, texts and optimizers, and what waits for other ranks.
_HARMLESS = frozenset({"barrier", "debug", "error", "format", "info", "join", "log", "warning"})
_SAVES = ("state_dict", "save_model", "save_pretrained", "save_state", "save_checkpoint")
_OPTIMIZERS = re.compile(r"opt|sched|scaler|loader|sampler", re.IGNORECASE)
# By these a module writes other names or values than those of its parameters and buffers.
_OWN_NAMES = re.compile(
    r"_state_dict_(?:post_)?hook|def (?:_save_to_)?state_dict\b|def get_extra_state\b|(?<!@)\btorch\.compile\("
)


def body_of(context: Context, statement: ast.With, model: ast.expr) -> tuple[list[ast.Call], str]:
    """The calls `model.state_dict()` in the body of a context, and what else may depend on the type there, if anything."""
    name = ast.unparse(model)
    nodes = [node for part in statement.body for node in ast.walk(part)]
    gathers = [
        node
        for node in nodes
        if isinstance(node, ast.Call) and ast.unparse(node) == f"{name}.state_dict()"
    ]
    known = {node for call in gathers for node in ast.walk(call)}
    for node in nodes:
        if isinstance(node, ast.Yield | ast.YieldFrom | ast.Await):
            return gathers, "other code runs inside of it"
        if isinstance(node, ast.Name | ast.Attribute) and node not in known:
            text = ast.unparse(node)
            looked_into = isinstance(context.file.parents[node], ast.Attribute)
            if text == name or (name.startswith(f"{text}.") and not looked_into):
                return gathers, f"`{text}` is used inside"
        if isinstance(node, ast.Call) and node not in known and not _is_harmless(context, node):
            return gathers, f"`{shortened(context.source(node.func))}` may reach the model"
    return gathers, ""


def _is_harmless(context: Context, call: ast.Call) -> bool:
    """Whether a call that is not given the model has no other way to it: no function of the program, which may have one."""
    function = call.func
    if not isinstance(function, ast.Name | ast.Attribute):
        return False
    if isinstance(function, ast.Name) and context.file.variable(function) is None:
        return hasattr(builtins, function.id) and function.id not in {"eval", "exec"}
    meanings = context.program.meanings(function, context.file)
    if meanings and all(isinstance(meaning, External) for meaning in meanings):
        given = any(map(context.can_be_model, values_given(call)))
        return not given and not any(
            f".{CLASS}." in path or (path.endswith(_SAVES) and not path.startswith("torch."))
            for path in context.dotted(function)
        )
    if not isinstance(function, ast.Attribute) or any(isinstance(m, Definition) for m in meanings):
        return False
    of_optimizer = function.attr == "state_dict" and _OPTIMIZERS.search(
        ast.unparse(function.value).rpartition(".")[2]
    )
    return function.attr in _HARMLESS or bool(of_optimizer)


def names_of_its_own(program: Program, file: File) -> bool:
    """Whether modules of the files that can share a model may give their state dicts names that torch's functions do not find,
    or values that those refuse.

    torch.compile around a model or a part of it puts `_orig_mod.` in front of names, which those functions take away.
    """
    reach = reach_of(program)
    paths = {*map(str, (each.path for each in program.files)), *reach.of(file.path)}
    return any(_OWN_NAMES.search(reach.text(path)) for path in paths)
