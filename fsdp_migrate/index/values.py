"""Where a value comes from: from an expression back to the expressions that made it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.index.module import Assigned, Imported, Module, Scope
from fsdp_migrate.index.project import Project


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
    return list(_Search(project).of(expression, module, module.scope_of(expression), ()))


def origin(project: Project, expression: ast.expr, module: Module) -> Origin | None:
    """The one expression that made the value, or None if there are several or it cannot be seen."""
    found = origins(project, expression, module)
    return found[0] if len(found) == 1 and found[0].node is not None else None


class _Search:
    """One way back from an expression. A name is followed once; one that leads back to itself is out of sight."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._met: set[tuple[Scope, str]] = set()
        self._open: set[tuple[Scope, str]] = set()

    def of(
        self, expression: ast.expr, module: Module, scope: Scope, trail: tuple[Assigned, ...]
    ) -> Iterator[Origin]:
        if _is_set_outside(self.project, expression, module):
            yield Origin(None, module, trail)
        elif isinstance(expression, ast.IfExp):
            for branch in (expression.body, expression.orelse):
                yield from self.of(branch, module, scope, trail)
        elif isinstance(expression, ast.NamedExpr):
            yield from self.of(expression.value, module, scope, trail)
        elif isinstance(expression, ast.Name):
            yield from self._of_name(expression, module, scope, trail)
        elif isinstance(expression, ast.Attribute):
            yield from self._elsewhere(expression, module, trail)
        else:
            yield Origin(expression, module, trail)

    def _of_name(
        self, expression: ast.Name, module: Module, scope: Scope, trail: tuple[Assigned, ...]
    ) -> Iterator[Origin]:
        found = module.lookup(expression.id, scope)
        if found is None:  # a builtin, or a name from a star import
            yield from self._elsewhere(expression, module, trail)
            return
        where, bindings = found
        name = where, expression.id
        if name in self._open:
            yield Origin(None, module, trail)
        if name in self._met:
            return
        self._met.add(name)
        self._open.add(name)
        if where is module.scope and module.is_rewritten:
            yield Origin(None, module, trail)
        for binding in bindings:
            if isinstance(binding, Assigned):
                value = element(binding)
                if value is None:
                    yield Origin(None, module, (*trail, binding))
                else:
                    yield from self.of(value, module, where, (*trail, binding))
            elif isinstance(binding, Imported):
                yield from self._elsewhere(expression, module, trail)
            else:
                yield Origin(None, module, trail)
        self._open.remove(name)

    def _elsewhere(
        self, expression: ast.expr, module: Module, trail: tuple[Assigned, ...]
    ) -> Iterator[Origin]:
        """A name of another file: what made its value there, or the name itself."""
        found = _constant(self.project, expression, module)
        if found is None:
            yield Origin(expression, module, trail)
            return
        where, binding = found
        assert isinstance(binding.target, ast.Name)
        name = where.scope, binding.target.id
        if name in self._open:
            yield Origin(None, module, trail)
        if name not in self._met:
            self._met.add(name)
            self._open.add(name)
            yield from self.of(binding.value, where, where.scope, trail)
            self._open.remove(name)


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
