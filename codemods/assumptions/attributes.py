"""Attributes of parameters, such as `p.no_weight_decay = True`: where they are set, also by a function that is called."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.codemods.assumptions.table import SETTING
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.file import last_name
from fsdp_migrate.facts.program import Definition, Program

_OF_TENSORS = ("data", "grad", "requires_grad")
_PARAMETERS = re.compile(r"\b(named_)?parameters\(")


def set_in(loop: ast.For) -> Iterator[ast.AST]:
    """Where a loop over parameters sets attributes of them."""
    names = {each.id for each in ast.walk(loop.target) if isinstance(each, ast.Name)}
    for node in ast.walk(loop):
        if _sets_attribute(node, names):
            yield node


def _sets_attribute(node: ast.AST, names: set[str]) -> bool:
    """Whether a node sets another attribute of something than a parameter has of its own."""
    match node:
        case ast.Call(func=function, args=[ast.Name(id=name), *_]):
            return last_name(function) == "setattr" and name in names
        case ast.Attribute(value=ast.Name(id=name), attr=attribute, ctx=ast.Store()):
            return name in names and attribute not in _OF_TENSORS
    return False


def calls_that_set(context: Context) -> Iterator[ast.Call]:
    """The statements that call a function which sets attributes of the parameters of what it is given first."""
    setting: frozenset[str] = context.program.once(_functions)
    if not setting:
        return
    for name in setting & context.file.calls.keys():
        for call in context.file.calls[name]:
            is_statement = isinstance(context.file.parents[call], ast.Expr)
            if is_statement and call.args and _is_own(context, call):
                yield call


def _is_own(context: Context, call: ast.Call) -> bool:
    """Whether a call is of a function of the program that sets attributes, as far as its name says what it calls."""
    if not isinstance(call.func, ast.Name | ast.Attribute):
        return False
    meanings = context.program.meanings(call.func, context.file)
    return any(isinstance(each, Definition) and _sets(each.node) for each in meanings)


def _functions(program: Program) -> frozenset[str]:
    """The names of functions at the top of files that set attributes of parameters."""
    found = set[str]()
    for path in program.tree.having(SETTING.encode()):
        file = program.load(path)
        if file is not None:
            found |= {each.name for each in file.of(ast.FunctionDef) if _sets(each)}
    return frozenset(found)


def _sets(function: ast.AST) -> bool:
    """Whether a function sets attributes: of parameters in a loop, or of the weight or bias of modules."""
    for node in ast.walk(function):
        match node:
            case ast.For(iter=taken) if _PARAMETERS.search(ast.unparse(taken)):
                if any(set_in(node)):
                    return True
            case ast.Attribute(ast.Attribute(attr="weight" | "bias"), attribute, ast.Store()):
                if attribute not in _OF_TENSORS:
                    return True
    return False
