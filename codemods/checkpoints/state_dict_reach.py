"""Which functions of a project may come to a state dict, told by their names."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from fsdp_migrate.index.module import Module
from fsdp_migrate.index.project import Project


def reaches(project: Project, name: str) -> bool:
    """Whether a function or method of the project, told by its name, may come to a state dict."""
    return name in _functions(project).reaching


def is_defined(project: Project, name: str) -> bool:
    """Whether a function or method of the project has a name."""
    return name in _functions(project).named


@dataclass(frozen=True, eq=False)
class _Functions:
    """A project's functions by name, and the names of those among them that may come to a state dict."""

    named: Mapping[str, Sequence[ast.AST]]
    reaching: frozenset[str]
    calls: Mapping[str, Sequence[tuple[Module, ast.Call]]]  # by the name of what is called


_KNOWN: WeakKeyDictionary[Project, _Functions] = WeakKeyDictionary()
_WORDS = ("state_dict", "save_pretrained", "save_model")


def calls_of(project: Project, name: str) -> Sequence[tuple[Module, ast.Call]]:
    """The calls of functions and methods of a name."""
    return _functions(project).calls.get(name, ())


def called_from(project: Project, statements: Sequence[ast.stmt]) -> frozenset[str]:
    """The names of the functions that may come to a state dict and that statements may run, over any number of calls."""
    known = _functions(project)
    found: set[str] = set()
    pending: list[ast.AST] = list(statements)
    while pending:
        for node in ast.walk(pending.pop()):
            name = _called(node)
            if name in known.reaching and name not in found:
                found.add(name)
                pending += known.named[name]
    return frozenset(found)


def _called(node: ast.AST) -> str:
    """The name of what a call calls."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _functions(project: Project) -> _Functions:
    if project not in _KNOWN:
        _KNOWN[project] = _found(project)
    return _KNOWN[project]


def _found(project: Project) -> _Functions:
    callers: dict[str, set[str]] = {}
    calls: dict[str, list[tuple[Module, ast.Call]]] = {}
    named: dict[str, list[ast.AST]] = {}
    reaching: set[str] = set()
    for module in project.modules:
        for scope in module.scopes:
            if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
                named.setdefault(scope.name, []).append(scope)
        nodes: list[ast.expr] = [load for loads in module.loads.values() for load in loads]
        for node in [*nodes, *module.attributes]:
            used = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
            parent = module.parents[node]
            of_interest = any(word in used for word in _WORDS)
            if isinstance(parent, ast.Call) and parent.func is node:
                calls.setdefault(used, []).append((module, parent))
            elif not of_interest:
                continue
            for function in module.ancestors(node):
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    callers.setdefault(used, set()).add(function.name)
                    if of_interest:
                        reaching.add(function.name)
    pending = list(reaching)
    while pending:
        more = callers.get(pending.pop(), set()) - reaching
        reaching |= more
        pending += more
    return _Functions(named, frozenset(reaching), calls)
