"""Where a value comes from: from an expression back to the expressions that made it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.index.module import Assigned, Imported, Module, Scope
from fsdp_migrate.index.project import Project

_DEPTH = 12


@dataclass(frozen=True, eq=False)
class Origin:
    """One expression that can have made a value.

    Attributes:
        node: the expression; None if the value comes from where the analysis cannot see (a parameter, a loop).
        module: the file it stands in.
        names: the assignments that were followed on the way, nearest first.
    """

    node: ast.expr | None
    module: Module
    names: tuple[Assigned, ...] = ()


def origins(project: Project, expression: ast.expr, module: Module) -> list[Origin]:
    """All expressions that can have made the value of `expression`, following names, imports and conditionals."""
    return list(_origins(project, expression, module, module.scope_of(expression), (), 0))


def origin(project: Project, expression: ast.expr, module: Module) -> Origin | None:
    """The one expression that made the value, or None if there are several or it cannot be seen."""
    found = origins(project, expression, module)
    return found[0] if len(found) == 1 and found[0].node is not None else None


def _origins(
    project: Project,
    expression: ast.expr,
    module: Module,
    scope: Scope,
    trail: tuple[Assigned, ...],
    depth: int,
) -> Iterator[Origin]:
    if depth > _DEPTH or _is_set_outside(project, expression, module):
        yield Origin(None, module, trail)
    elif isinstance(expression, ast.IfExp):
        for branch in (expression.body, expression.orelse):
            yield from _origins(project, branch, module, scope, trail, depth + 1)
    elif isinstance(expression, ast.NamedExpr):
        yield from _origins(project, expression.value, module, scope, trail, depth + 1)
    elif isinstance(expression, ast.Name):
        yield from _of_name(project, expression, module, scope, trail, depth)
    elif isinstance(expression, ast.Attribute) and (
        found := _constant(project, expression, module)
    ):
        yield from _origins(project, found[1].value, found[0], found[0].scope, trail, depth + 1)
    else:
        yield Origin(expression, module, trail)


def _of_name(
    project: Project,
    expression: ast.Name,
    module: Module,
    scope: Scope,
    trail: tuple[Assigned, ...],
    depth: int,
) -> Iterator[Origin]:
    found = module.lookup(expression.id, scope)
    if found is None:
        if constant := _constant(project, expression, module):
            yield from _origins(
                project, constant[1].value, constant[0], constant[0].scope, trail, depth + 1
            )
        else:
            yield Origin(expression, module, trail)  # a builtin, or a name from a star import
        return
    where, bindings = found
    if where is module.scope and module.is_rewritten:
        yield Origin(None, module, trail)
    for binding in bindings:
        if isinstance(binding, Assigned):
            value = element(binding)
            if value is None:
                yield Origin(None, module, (*trail, binding))
            else:
                yield from _origins(project, value, module, where, (*trail, binding), depth + 1)
        elif isinstance(binding, Imported):
            if constant := _constant(project, expression, module):
                yield from _origins(
                    project, constant[1].value, constant[0], constant[0].scope, trail, depth + 1
                )
            else:
                yield Origin(expression, module, trail)
        else:
            yield Origin(None, module, trail)


def element(binding: Assigned) -> ast.expr | None:
    """The expression that an assignment binds: the element of a tuple where the target is one; None if not in sight."""
    value = binding.value
    for index in binding.path:
        if not isinstance(value, ast.Tuple | ast.List) or index >= len(value.elts):
            return None
        if any(isinstance(item, ast.Starred) for item in value.elts):
            return None
        value = value.elts[index]
    return value


def _is_set_outside(project: Project, expression: ast.expr, module: Module) -> bool:
    """Whether a file assigns the name, where another file defines it: `config.NAME = value`."""
    return any(
        project.is_set_outside(where, name)
        for where, name in _definers(project, expression, module)
    )


def _constant(
    project: Project, expression: ast.expr, module: Module
) -> tuple[Module, Assigned] | None:
    """The single top-level assignment in another file that a name or `module.NAME` means."""
    for where, name in _definers(project, expression, module):
        bindings = where.scope.bindings.get(name, [])
        if len(bindings) == 1 and isinstance(bindings[0], Assigned) and where is not module:
            return None if where.is_rewritten else (where, bindings[0])
    return None


def _definers(
    project: Project, expression: ast.expr, module: Module
) -> Iterator[tuple[Module, str]]:
    """The files and names under which an imported name can be defined, following re-exports."""
    pending: list[tuple[Module, str]] = []
    if isinstance(expression, ast.Name):
        pending.append((module, expression.id))
    elif isinstance(expression, ast.Attribute):
        for meaning in project.meanings(expression.value, module):
            inside = project.inside(meaning, module)
            if inside is not None:
                pending.append((inside, expression.attr))
    seen: set[tuple[int, str]] = set()
    while pending:
        where, name = pending.pop()
        if (id(where), name) in seen:
            continue
        seen.add((id(where), name))
        yield where, name
        for binding in where.scope.bindings.get(name, ()):
            if isinstance(binding, Imported) and binding.member is not None:
                inside = project.find(binding.module, where)
                if inside is not None:
                    pending.append((inside, binding.member))
        if name not in where.scope.bindings:
            for source, _ in where.stars:
                inside = project.find(source, where)
                if inside is not None:
                    pending.append((inside, name))
