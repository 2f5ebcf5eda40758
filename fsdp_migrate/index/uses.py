"""Who calls a function, reads an attribute, or imports a name: tables over a whole project."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cached_property

from fsdp_migrate.index.module import Imported, Module, Scope
from fsdp_migrate.index.project import Definition, External, Project


class Uses:
    """The uses of a project's functions, attributes and names."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.callers = _callers(project)
        self.attributes = _attribute_loads(project)

    @cached_property
    def _imports(self) -> dict[str, list[tuple[Module, Scope, str, Imported]]]:
        table: dict[str, list[tuple[Module, Scope, str, Imported]]] = {}
        for module in self.project.modules:
            for scope in module.scopes.values():
                for local, bindings in scope.bindings.items():
                    for binding in bindings:
                        if isinstance(binding, Imported) and binding.member is not None:
                            found = (module, scope, local, binding)
                            table.setdefault(binding.member, []).append(found)
        return table

    @cached_property
    def methods(self) -> dict[str, list[Definition]]:
        """The classes that define a method of a name."""
        table: dict[str, list[Definition]] = {}
        for module in self.project.modules:
            for node in module.scopes:
                parent = module.parents.get(node)
                if isinstance(node, ast.FunctionDef) and isinstance(parent, ast.ClassDef):
                    table.setdefault(node.name, []).append(Definition(module, parent))
        return table

    def importers(self, module: Module, name: str) -> Iterator[tuple[Module, Scope, str]]:
        """The scopes that import a top-level name of a module, and under which name."""
        for other, scope, local, binding in self._imports.get(name, ()):
            if other is not module and self.project.find(binding.module, other) is module:
                yield other, scope, local

    def stars(self, module: Module) -> Sequence[Module]:
        """The files that import everything from a module."""
        return self._stars.get(module, ())

    @cached_property
    def _stars(self) -> dict[Module, list[Module]]:
        table: dict[Module, list[Module]] = {}
        for other in self.project.modules:
            found = {self.project.find(source, other) for source, _ in other.stars}
            for module in found - {None}:
                assert module is not None
                table.setdefault(module, []).append(other)
        return table

    def through_module(self, module: Module, name: str) -> Iterator[tuple[Module, ast.Attribute]]:
        """Where a top-level name is read through its module: `build.model`."""
        for where, load in self.attributes.get(name, ()):
            if where is not module and self.is_module(load.value, where, module):
                yield where, load

    def is_module(self, expression: ast.expr, where: Module, module: Module) -> bool:
        """Whether an expression stands for a module of the project."""
        return any(
            self.project.inside(meaning, where) is module
            for meaning in self.project.meanings(expression, where)
        )


def _callers(project: Project) -> dict[ast.AST | None, list[tuple[Module, ast.Call]]]:
    table: dict[ast.AST | None, list[tuple[Module, ast.Call]]] = {}
    for module in project.modules:
        for call in module.calls:
            for meaning in project.meanings(call.func, module):
                if isinstance(meaning, Definition):
                    table.setdefault(meaning.node, []).append((module, call))
                elif isinstance(meaning, External):
                    break
            if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
                owner = module.enclosing_class(call)
                if owner is not None and call.func.value.id == "self":
                    method = project.method(Definition(module, owner), call.func.attr)
                    if method is not None:
                        table.setdefault(method.node, []).append((module, call))
    return table


def _attribute_loads(project: Project) -> dict[str, list[tuple[Module, ast.Attribute]]]:
    table: dict[str, list[tuple[Module, ast.Attribute]]] = {}
    for module in project.modules:
        for attribute in module.attributes:
            if isinstance(attribute.ctx, ast.Load):
                table.setdefault(attribute.attr, []).append((module, attribute))
    return table
