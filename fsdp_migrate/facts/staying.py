"""What a program hands to a library that wraps with torch's FSDP1 by itself, as Lightning's FSDPStrategy does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.facts.file import File, last_name, values_given
from fsdp_migrate.facts.names import CLASS
from fsdp_migrate.facts.origins import value_of
from fsdp_migrate.facts.program import Definition, External, Program
from fsdp_migrate.facts.scopes import Assigned, Parameter

# What a file says that has such a library.
OF_OTHERS = rf"FSDP(?<=[A-Za-z]FSDP)|FullySharded(?<=[A-Za-z]FullySharded)|FSDP[A-Z]|{CLASS}[A-Z]"
_OWN = ("torch.", "fsdp_migrate.")
# Other names for such a class: of an import, of a class that derives from it.
_ALIAS = re.compile(r"FSDP\w* as (\w+)"), re.compile(rf"{CLASS}\w* as (\w+)")
_CLASS = re.compile(r"class(?<!\wclass) (\w+)\(([^)]*)\)")


def staying(program: Program) -> dict[ast.expr, str]:
    """The references to FSDP1's options and policies that can reach such a library, each with what takes it there.

    Such a library tests for torch's own classes; the runtime takes both. Values are followed backwards, and to more
    places than they can come from rather than to fewer.
    """
    return dict(_Search(program).found())


class _Search:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.seen: set[ast.AST] = set()
        # Other names for such classes, and those of classes that derive from them.
        texts = [file.text for file in program.files]
        every = ((pattern, text) for pattern in _ALIAS for text in texts)
        self.others = {name for pattern, text in every for name in pattern.findall(text)}
        for name, bases in (each for text in texts for each in _CLASS.findall(text)):
            if any(map(self.may_be_one, re.findall(r"\w+", bases))):
                self.others.add(name)

    def found(self) -> Iterator[tuple[ast.expr, str]]:
        for file in self.program.files:
            known = (*filter(self.may_be_one, file.calls), "__init__")
            for call in (call for name in known for call in file.calls.get(name, ())):
                taker = self.taker(call, file)
                pending: list[tuple[File, ast.AST]] = []
                pending += ((file, value) for value in values_given(call) if taker)
                while pending:
                    here, value = pending.pop()
                    for node in ast.walk(value) if value not in self.seen else ():
                        self.seen.add(node)
                        if isinstance(node, ast.Name | ast.Attribute):
                            name = self.program.fsdp1(node, here)
                            if name is None:
                                pending += self.sources(node, here)
                            elif name != CLASS:
                                yield node, taker

    def may_be_one(self, name: str) -> bool:
        """Whether a class may be such a library's, by its name."""
        return name in self.others or "FSDP" in name or CLASS in name

    def taker(self, call: ast.Call, file: File) -> str:
        """The library's class that a call makes, be it through a class of the program; empty for any other call."""
        function, around = call.func, file.enclosing_class(call)
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Call):
            is_super = last_name(function.value.func) == "super"
            bases = around.bases if is_super and around is not None else ()
            named = (self.named(each, file) for each in bases if self.may_be_one(last_name(each)))
            return next(filter(None, named), "")
        return self.named(function, file)

    def named(self, expression: ast.expr, file: File) -> str:
        if not isinstance(expression, ast.Name | ast.Attribute):
            return ""
        for meaning in self.program.meanings(expression, file):
            above = [meaning]
            if isinstance(meaning, Definition) and isinstance(meaning.node, ast.ClassDef):
                above += self.program.classes_above(meaning)
            for each in above:
                path = each.dotted if isinstance(each, External) else ""
                name = path.rpartition(".")[2]
                if ("FSDP" in name or CLASS in name) and not path.startswith(_OWN):
                    return path
        return ""

    def sources(self, node: ast.Name | ast.Attribute, file: File) -> Iterator[tuple[File, ast.AST]]:
        """Where a name can have its value from."""
        for assign in file.of(ast.Assign):  # self.policy = ..., options["policy"] = ...
            for target in assign.targets:
                owner = target
                if isinstance(target, ast.Subscript):
                    owner = target.value
                if not isinstance(target, ast.Name) and last_name(owner) == last_name(node):
                    yield file, assign.value
        for binding in file.bindings(node):
            if isinstance(binding, Assigned):
                yield file, binding.value
            elif isinstance(binding, Parameter):
                yield from self.given(getattr(binding.function, "name", ""))
        value = value_of(self.program, file, node)
        if value is not None:
            yield value.file, value.node
        for each in self.program.definitions(node, file):
            yield from ((each.file, n) for n in ast.walk(each.node) if isinstance(n, ast.Return))

    def given(self, function: str) -> Iterator[tuple[File, ast.AST]]:
        """What a function of that name is given anywhere."""
        for file in self.program.files:
            for call in file.calls.get(function, ()):
                yield from ((file, value) for value in values_given(call))
