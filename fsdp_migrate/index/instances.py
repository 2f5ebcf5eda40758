"""Which class of the project an expression is an instance of."""

from __future__ import annotations

import ast

from fsdp_migrate.index.module import Assigned, Module, Parameter
from fsdp_migrate.index.project import Definition, Project


class Instances:
    """The classes of a project, and the expressions that hold their instances."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._of: dict[ast.expr, Definition | None] = {}
        self._families: dict[Definition, frozenset[Definition]] = {}
        self._mixed = [
            family
            for module in project.modules
            for node in module.scopes
            if isinstance(node, ast.ClassDef) and len(node.bases) > 1
            for family in [self.family(Definition(module, node))]
        ]

    def class_of(self, expression: ast.expr, module: Module) -> Definition | None:
        """The class whose instance an expression is: `self` in a method, or a name bound to `Class(...)`."""
        if expression not in self._of:
            self._of[expression] = self._class_of(expression, module)
        return self._of[expression]

    def owner(self, expression: ast.expr, module: Module) -> Definition | None:
        """Likewise, or the class that the expression itself is: the owner of a class attribute."""
        return self.class_of(expression, module) or self._class(expression, module)

    def _class_of(self, expression: ast.expr, module: Module) -> Definition | None:
        if isinstance(expression, ast.Call):
            return self._class(expression.func, module)
        if not isinstance(expression, ast.Name):
            return None
        found = module.lookup(expression.id, module.scope_of(expression))
        if found is None:
            return None
        bindings = found[1]
        if len(bindings) != 1:
            return None
        binding = bindings[0]
        if isinstance(binding, Parameter):
            owner = module.parents.get(binding.function)
            if binding.position == 0 and isinstance(owner, ast.ClassDef):
                return Definition(module, owner)
            annotation = binding.argument.annotation
            return self._class(annotation, module) if annotation is not None else None
        if (
            isinstance(binding, Assigned)
            and not binding.path
            and isinstance(binding.value, ast.Call)
        ):
            return self._class(binding.value.func, module)
        return None

    def _class(self, expression: ast.expr, module: Module) -> Definition | None:
        found = self.project.definition(expression, module)
        return found if found is not None and isinstance(found.node, ast.ClassDef) else None

    def family(self, cls: Definition) -> frozenset[Definition]:
        """A class and the project's classes above it."""
        if cls not in self._families:
            bases = (b for b in self.project.bases(cls) if isinstance(b, Definition))
            self._families[cls] = frozenset({cls, *bases})
        return self._families[cls]

    def related(self, one: Definition, other: Definition) -> bool:
        """Whether one object can be an instance of both classes."""
        if one in self.family(other) or other in self.family(one):
            return True
        return any({one, other} <= family for family in self._mixed)
