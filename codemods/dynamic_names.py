"""FSDP1 reached by a string or through its module as a value: `import_module("torch.distributed.fsdp")`, `getattr(fsdp, x)`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.expressions import values_given
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.findings import Action
from fsdp_migrate.index.names import FSDP2_NAMES, PACKAGE, fsdp1_name, is_module

RULE = Rule(
    "FSDP010",
    "dynamic-name",
    "FSDP1 reached by a string has to be imported by name",
    """The analysis follows names, not strings. What `import_module("torch.distributed.fsdp")` or `getattr(fsdp, name)` gives
may be the class, and the models that it makes would go on under FSDP1 among others that moved. Import what you need.""",
    (
        Example(
            "an import at run time",
            """\
import importlib

fsdp = importlib.import_module("torch.distributed.fsdp")
model = fsdp.FullyShardedDataParallel(model)
""",
            message="import it by name",
        ),
        Example(
            "the class by its path",
            """\
wrapper = load_class("torch.distributed.fsdp.FullyShardedDataParallel")
""",
            message="import it by name",
        ),
        Example(
            "an attribute by its name",
            """\
import torch.distributed.fsdp as fsdp

wrapper = getattr(fsdp, name)
""",
            message="import it by name",
        ),
        Example(
            "code in a string",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

wrapper = eval("FSDP")
""",
            message="import it by name",
        ),
        Example(
            "a name of FSDP2",
            """\
import torch.distributed.fsdp as fsdp

has_fsdp2 = hasattr(fsdp, "fully_shard") and getattr(fsdp, "FSDPModule", None) is not None
""",
            quiet=True,
        ),
        Example(
            "the package as a word",
            """\
import logging

logging.getLogger("torch.distributed.fsdp").setLevel(logging.ERROR)
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_MESSAGE = "what this gives cannot be followed: import it by name, and use the name"
_TABLES = frozenset({"sys.modules"})
_IMPORTERS = frozenset({"importlib.import_module", "importlib.__import__"})


def find(context: Context) -> Iterator[Draft]:
    """Strings and modules that can give an FSDP1 name to somebody."""
    module = context.module
    for call in module.calls:
        given = values_given(call)
        if any(_is_path(context, call.func, value) for value in given) or (
            any(_is_module(context, value) for value in given) and not _is_harmless(context, call)
        ):
            yield _draft(context, call)
    if PACKAGE in module.text:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Subscript) and _is_package(node.slice):
                if context.project.dotted(node.value, module) & _TABLES:
                    yield _draft(context, node)

    for string, code in module.executed:
        scope = module.scope_of(string)
        if any(
            isinstance(node, ast.Name | ast.Attribute)
            and context.project.fsdp1(node, module, scope)
            for node in ast.walk(code)
        ):
            yield _draft(context, string)


def _draft(context: Context, node: ast.expr) -> Draft:
    return Draft(RULE, node, Action.MANUAL, _MESSAGE, context.source(node), silent=True)


def _is_path(context: Context, function: ast.expr, value: ast.expr) -> bool:
    """Whether a call is given the path of an FSDP1 name, or asked to import the module of one."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        if fsdp1_name(value.value):
            return True
    return _is_package(value) and (
        bool(context.project.dotted(function, context.module) & _IMPORTERS)
        or (isinstance(function, ast.Name) and function.id == "__import__")
    )


def _is_package(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and is_module(str(value.value))


def _is_module(context: Context, value: ast.expr) -> bool:
    return any(is_module(path) for path in context.project.dotted(value, context.module))


def _is_harmless(context: Context, call: ast.Call) -> bool:
    """Whether a call only asks something of a module, or takes a name of FSDP2 from it."""
    if not isinstance(call.func, ast.Name) or not context.means_builtin(call.func.id, call):
        return False
    name = call.args[1] if call.func.id == "getattr" and len(call.args) > 1 else None
    taken = isinstance(name, ast.Constant) and name.value in FSDP2_NAMES
    return taken or call.func.id in {"hasattr", "print", "str", "repr", "bool"}


Command = command(find, __doc__ or "")
