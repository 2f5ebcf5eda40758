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
        self.others: set[str] = set()
        for file in program.files:
            for pattern in _ALIAS:
                self.others.update(pattern.findall(file.text))
        for file in program.files:
            for name, bases in _CLASS.findall(file.text):
                if any(map(self.may_be_one, re.findall(r"\w+", bases))):
                    self.others.add(name)

    def found(self) -> Iterator[tuple[ast.expr, str]]:
        for file in self.program.files:
            for name in (*filter(self.may_be_one, file.calls), "__init__"):
                for call in file.calls.get(name, ()):
                    taker = self.taker(call, file)
                    if taker:
                        for node in self.leading_to(call, file):
                            yield node, taker

    def leading_to(self, call: ast.Call, file: File) -> Iterator[ast.expr]:
        """The names of FSDP1 in all that the arguments of a call can come from."""
        pending: list[tuple[File, ast.AST]] = [(file, value) for value in values_given(call)]
        while pending:
            here, value = pending.pop()
            if value in self.seen:
                continue
            for node in ast.walk(value):
                self.seen.add(node)
                if isinstance(node, ast.Name | ast.Attribute):
                    name = self.program.fsdp1(node, here)
                    if name is None:
                        pending += self.sources(node, here)
                    elif name != CLASS:
                        yield node

    def may_be_one(self, name: str) -> bool:
        """Whether a class may be such a library's, by its name."""
        return name in self.others or "FSDP" in name or CLASS in name

    def taker(self, call: ast.Call, file: File) -> str:
        """The library's class that a call makes, be it through a class of the program; empty for any other call."""
        function = call.func
        around = file.enclosing_class(call)
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Call):
            if around is None or last_name(function.value.func) != "super":
                return ""
            for base in around.bases:
                if self.may_be_one(last_name(base)) and (name := self.named(base, file)):
                    return name
            return ""
        return self.named(function, file)

    def named(self, expression: ast.expr, file: File) -> str:
        if not isinstance(expression, ast.Name | ast.Attribute):
            return ""
        for meaning in self.program.meanings(expression, file):
            above = [meaning]
            if isinstance(meaning, Definition) and isinstance(meaning.node, ast.ClassDef):
                above += self.program.classes_above(meaning)
            for each in above:
                path = ""
                if isinstance(each, External):
                    path = each.dotted
                name = path.rpartition(".")[2]
                if ("FSDP" in name or CLASS in name) and not path.startswith(_OWN):
                    return path
        return ""

    def sources(self, node: ast.Name | ast.Attribute, file: File) -> Iterator[tuple[File, ast.AST]]:
        """Where a name can have its value from."""
        yield from self.assigned(last_name(node), file)
        for binding in file.bindings(node):
            if isinstance(binding, Assigned):
                yield file, binding.value
            elif isinstance(binding, Parameter) and not isinstance(binding.function, ast.Lambda):
                yield from self.given(binding.function.name)
        value = value_of(self.program, file, node)
        if value is not None:
            yield value.file, value.node
        for definition in self.program.definitions(node, file):
            for part in ast.walk(definition.node):
                if isinstance(part, ast.Return):
                    yield definition.file, part

    def assigned(self, name: str, file: File) -> Iterator[tuple[File, ast.AST]]:
        """What is assigned to an attribute of that name, or put into it: `self.policy = ...`, `options["policy"] = ...`."""
        for assign in file.of(ast.Assign):
            for target in assign.targets:
                if isinstance(target, ast.Subscript):
                    is_it = last_name(target.value) == name
                else:
                    is_it = isinstance(target, ast.Attribute) and target.attr == name
                if is_it:
                    yield file, assign.value

    def given(self, function: str) -> Iterator[tuple[File, ast.AST]]:
        """What a function of that name is given anywhere."""
        for file in self.program.files:
            for call in file.calls.get(function, ()):
                for value in values_given(call):
                    yield (file, value)
