"""Which expressions of a file are parameters or gradients that count as sharded."""

import ast

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.file import last_name, words_in
from fsdp_migrate.facts.nodes import any_below, has_any
from fsdp_migrate.facts.parameters import Taken
from fsdp_migrate.facts.program import Program
from fsdp_migrate.facts.unreached import is_for_others
from fsdp_migrate.source import is_test

# Code for DTensors, and for what another engine shards.
_OF_OTHERS = ("DTensor", "to_local", "full_tensor", "megatron")


def taken(context: Context, *, proven: bool = False) -> Taken:
    """The parameters of the run that a file is part of."""
    known = context.models.taken
    if proven not in known:
        known[proven] = Taken(context.models, proven=proven)
    found: Taken = known[proven]
    return found


def is_known_as_whole(context: Context, node: ast.AST) -> bool:
    """Whether a parameter is whole here under both versions, or the program asks whether it is a DTensor."""
    file = context.file
    for parent in file.ancestors(node):
        if isinstance(parent, ast.With | ast.AsyncWith):
            if any("summon_full_params" in file.source(item.context_expr) for item in parent.items):
                return True
        elif isinstance(parent, ast.If | ast.IfExp) and "DTensor" in file.source(parent.test):
            return True
        elif isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
            # It is written for them already; so is a file without FSDP1 in it.
            region: ast.AST = file.tree
            if context.references:
                region = parent
            if _is_of_others(context, region):
                return True
    return _is_for_other_models(context, node)


def _is_of_others(context: Context, code: ast.AST) -> bool:
    """Whether code names one of these; a file's text is only looked at first."""
    text = context.file.text
    if not has_any(text, _OF_OTHERS):
        return False
    return context.program.once(_names_others, code)


def _names_others(_: Program, code: ast.AST) -> bool:
    found = words_in(code)
    return has_any(found, _OF_OTHERS) or any_below(found, "megatron.")


def _is_for_other_models(context: Context, node: ast.AST) -> bool:
    """Whether a node is in a class that is made where the program does not shard, or in a method that the subclass for FSDP
    replaces: it never runs on a sharded model."""
    method = context.file.function(node)
    cls = context.file.enclosing_class(node)
    if cls is None:
        return False
    made = [
        (file, call)
        for file, call in context.program.calls(cls.name)
        if not is_test(str(file.path))
    ]
    if made and all(is_for_others(file, call) for file, call in made):
        return True
    if method is None:
        return False
    for file in context.program.files:
        for other in file.of(ast.ClassDef):
            if cls.name in map(last_name, other.bases) and _is_fsdps_own(other, method.name):
                return True
    return False


def _is_fsdps_own(cls: ast.ClassDef, method: str) -> bool:
    """Whether a class is for FSDP, and has a method of its own of that name."""
    if not any("fsdp" in name.lower() for name in words_in(cls)):
        return False
    functions = [
        each for each in cls.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return method in [each.name for each in functions]


def is_sharded(context: Context, node: ast.expr) -> bool:
    """Whether an expression is a parameter that can be sharded, in a program that shards, and not known to be whole here."""
    sharded = taken(context).is_parameter(node, context.file)
    return sharded and not is_known_as_whole(context, node)
