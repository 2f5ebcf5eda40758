"""Which calls of a program wrap a model with FSDP1, and which files such a model can come to."""

from __future__ import annotations

import ast
from functools import cache, cached_property

from fsdp_migrate.facts.file import File, last_name
from fsdp_migrate.facts.names import CLASS, RUNTIME
from fsdp_migrate.facts.program import Definition, Program
from fsdp_migrate.source import is_test

# Names of functions that say nothing about which of them is called.
_TOO_COMMON = frozenset({"__call__", "__init__", "main"})


class Wrapping:
    """The calls that wrap the models of one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.constructors = cache(self._constructors)

    def _constructors(self, file: File) -> list[ast.Call]:
        """The calls in a file that wrap a model: of FSDP1's class, of a subclass of it, of a `partial` of it."""
        can_wrap = self.subclasses or self.program.may_mean_fsdp1(file)
        can_wrap = can_wrap or (self.program.goes_on and "like_fsdp1" in file.calls)
        if not can_wrap:
            return []
        return [call for call in file.of(ast.Call) if self.is_constructor(call, file)]

    def is_constructor(self, call: ast.Call, file: File) -> bool:
        """Whether a call wraps a model."""
        name = last_name(call.func)
        if name == "wrap" and self.program.fsdp1(call.func, file) == name:
            return True
        if name == "like_fsdp1" and self.program.goes_on:
            return f"{RUNTIME}.{name}" in self.program.dotted(call.func, file)
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
        classes = [(cls, file) for file in self.program.files for cls in file.of(ast.ClassDef)]
        bases = [(base, cls, file) for cls, file in classes for base in cls.bases]
        fsdp1 = self.program.fsdp1
        found: set[ast.AST] = {cls for base, cls, file in bases if fsdp1(base, file) == CLASS}
        heirs: dict[ast.AST, list[ast.ClassDef]] = {}
        if not found:
            return found
        for base, cls, file in bases:
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
        if not self.subclasses:
            return False
        definitions = self.program.definitions(expression, file)
        return any(definition.node in self.subclasses for definition in definitions)

    def _is_partial(self, expression: ast.expr, file: File) -> bool:
        """Whether a name is bound to `functools.partial` of FSDP1's class."""
        found = file.variable(expression)
        if found is None:
            return False
        for binding in found.assigned:
            match binding.value:
                case ast.Call(func=function, args=[ast.Name() | ast.Attribute() as cls, *_]):
                    is_partial = "functools.partial" in self.program.dotted(function, file)
                    if is_partial and cls is not expression:
                        if self.program.fsdp1(cls, file) == CLASS:
                            return True
        return False

    def shards(self, file: File | None = None) -> bool:
        """Whether the program uses FSDP1; of a file, whether a model can come to it from one that does."""
        if file is None:
            return bool(self._sharding)
        return str(file.path) in self._sharding

    @cached_property
    def _sharding(self) -> set[str]:
        reach = self.program.reach
        found = set[str]()
        for file in self.program.files:
            path = str(file.path)
            if path not in found and (self.constructors(file) or self._calls_class(file)):
                if is_test(path):
                    reached = reach.below(path)
                else:
                    reached = reach.of(file.path)
                found.update([each for each in reached if not is_test(each)])
                found.add(path)
        return found

    def _calls_class(self, file: File) -> bool:
        """Whether a file calls static methods of FSDP1's class: it is for models that other code wraps."""
        for name in self.program.fsdp1_aliases(file):
            for read in file.loads.get(name, ()):
                is_owner = isinstance(file.parents[read], ast.Attribute)
                if is_owner and self.program.fsdp1(read, file) == CLASS:
                    return True
        return False

    @cached_property
    def wrapping(self) -> set[str]:
        """The names of functions that wrap a model, or call one that does."""
        found: set[str] = set()
        pending = [(file, call) for file in self.program.files for call in self.constructors(file)]
        while pending:
            file, call = pending.pop()
            function = file.function(call)
            if function is not None and function.name not in found | _TOO_COMMON:
                found.add(function.name)
                pending += self.program.calls(function.name)
        return found
