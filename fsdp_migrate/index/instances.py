"""Which class of the project an expression is an instance of."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from fsdp_migrate.index.module import Assigned, Module, Parameter
from fsdp_migrate.index.project import Definition, Project


@dataclass(frozen=True)
class _Stored:
    """What goes into an attribute, with the annotation that says its class."""

    module: Module
    value: ast.expr | None
    annotation: ast.expr | None


class Instances:
    """The classes of a project, and the expressions that hold their instances."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._of: dict[ast.expr, Definition | None] = {}
        self._families: dict[Definition, frozenset[Definition]] = {}
        self._stored: dict[Definition, dict[str, list[_Stored]]] = {}
        self._mixed = [
            family
            for module in project.modules
            for node in module.scopes
            if isinstance(node, ast.ClassDef) and len(node.bases) > 1
            for family in [self.family(Definition(module, node))]
        ]

    def class_of(self, expression: ast.expr, module: Module) -> Definition | None:
        """The class whose instance an expression is: `self` in a method, or a name or attribute that holds `Class(...)`."""
        if expression not in self._of:
            self._of[expression] = None  # what leads back to itself says nothing
            self._of[expression] = self._class_of(expression, module)
        return self._of[expression]

    def owner(self, expression: ast.expr, module: Module) -> Definition | None:
        """Likewise, or the class that the expression itself is: the owner of a class attribute."""
        return self.class_of(expression, module) or self._class(expression, module)

    def _class_of(self, expression: ast.expr, module: Module) -> Definition | None:
        if isinstance(expression, ast.Call):
            return self._class(expression.func, module)
        if isinstance(expression, ast.Attribute):
            return self._held_by(self.class_of(expression.value, module), expression.attr)
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
            return self._declared(binding.argument.annotation, module)
        if isinstance(binding, Assigned) and not binding.path:
            return self.class_of(binding.value, module)
        return None

    def _held_by(self, owner: Definition | None, attribute: str) -> Definition | None:
        """The class of what the methods of a class, or its annotations, say an attribute is; None where they differ."""
        if owner is None:
            return None
        stored = [s for cls in self.family(owner) for s in self._stores(cls).get(attribute, ())]
        found = {
            self._declared(one.annotation, one.module)
            if one.annotation is not None or one.value is None
            else self.class_of(one.value, one.module)
            for one in stored
            if one.annotation is not None or not _is_none(one.value)
        }
        return found.pop() if len(found) == 1 else None

    def _stores(self, cls: Definition) -> dict[str, list[_Stored]]:
        """What a class itself stores in the attributes of its instances."""
        if cls not in self._stored:
            stored = self._stored[cls] = {}
            for node in ast.walk(cls.node):
                if isinstance(node, ast.Assign | ast.AnnAssign):
                    annotation = node.annotation if isinstance(node, ast.AnnAssign) else None
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    for target in targets:
                        name = self._attribute(target, cls)
                        if name and (annotation is not None or node.value is not None):
                            one = _Stored(cls.module, node.value, annotation)
                            stored.setdefault(name, []).append(one)
        return self._stored[cls]

    def _attribute(self, target: ast.expr, cls: Definition) -> str | None:
        """The attribute that a target is: `self.name` in a method, or a name in the class itself."""
        if isinstance(target, ast.Name):
            around = cls.module.parents[cls.module.parents[target]]
            return target.id if around is cls.node else None
        if isinstance(target, ast.Attribute) and self.class_of(target.value, cls.module) == cls:
            return target.attr
        return None

    def _declared(self, annotation: ast.expr | None, module: Module) -> Definition | None:
        """The class that an annotation names: `Class`, `"Class"`, `Class | None` or `Optional[Class]`."""
        if isinstance(annotation, ast.BinOp):
            sides = [side for side in (annotation.left, annotation.right) if not _is_none(side)]
            return self._declared(sides[0], module) if len(sides) == 1 else None
        if isinstance(annotation, ast.Subscript):
            optional = self.project.dotted(annotation.value, module) == {"typing.Optional"}
            return self._declared(annotation.slice, module) if optional else None
        return self._class(annotation, module) if annotation is not None else None

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


def _is_none(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is None
