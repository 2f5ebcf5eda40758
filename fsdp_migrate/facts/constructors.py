"""The calls of a program that wrap a model: of FSDP1's class, of subclasses and a `partial` of it."""

from __future__ import annotations

import ast
from functools import cached_property

from fsdp_migrate.facts.file import File, last_name
from fsdp_migrate.facts.names import CLASS
from fsdp_migrate.facts.program import Definition, Program


class Constructors:
    """The constructors of one program."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def constructors(self, file: File) -> list[ast.Call]:
        """The calls in a file that wrap a model: of FSDP1's class, of a subclass of it, of a `partial` of it."""
        return [call for call in file.of(ast.Call) if self.is_constructor(call, file)]

    def is_constructor(self, call: ast.Call, file: File) -> bool:
        """Whether a call wraps a model."""
        name = last_name(call.func)
        if name == "wrap" and self.program.fsdp1(call.func, file) == name:
            return True
        return self.is_class(call.func, file)

    def is_class(self, expression: ast.expr, file: File) -> bool:
        """Whether an expression can be FSDP1's class, a subclass of it in the program, or a `partial` of one."""
        if not isinstance(expression, ast.Name | ast.Attribute):
            return False
        if self.program.fsdp1(expression, file) == CLASS:
            return True
        return self.names_subclass(expression, file) or self._is_partial(expression, file)

    def is_subclass(self, definition: Definition) -> bool:
        """Whether a class of the program has FSDP1's among its bases."""
        return definition.node in self.subclasses

    @cached_property
    def subclasses(self) -> set[ast.AST]:
        """The classes of the program that have FSDP1's among their bases."""
        found: set[ast.AST] = set()
        heirs: dict[ast.AST, list[ast.ClassDef]] = {}
        for file in self.program.files:
            for cls in file.of(ast.ClassDef):
                for base in cls.bases:
                    if self.program.fsdp1(base, file) == CLASS:
                        found.add(cls)
                    for above in self.program.definitions(base, file):
                        heirs.setdefault(above.node, []).append(cls)
        pending = list(found)
        while pending:
            below = [cls for cls in heirs.get(pending.pop(), ()) if cls not in found]
            found.update(below)
            pending += below
        return found

    def names_subclass(self, expression: ast.expr, file: File) -> bool:
        """Whether an expression can be a class of the program that has FSDP1's among its bases."""
        found = self.program.definitions(expression, file) if self.subclasses else ()
        return any(definition.node in self.subclasses for definition in found)

    def _is_partial(self, expression: ast.expr, file: File) -> bool:
        found = file.variable(expression)
        return found is not None and any(
            isinstance(binding.value, ast.Call)
            and "functools.partial" in self.program.dotted(binding.value.func, file)
            and bool(binding.value.args)
            and binding.value.args[0] is not expression
            and isinstance(binding.value.args[0], ast.Name | ast.Attribute)
            and self.program.fsdp1(binding.value.args[0], file) == CLASS
            for binding in found.assigned
        )
