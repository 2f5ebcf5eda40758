"""What calls give for the fields of a program's dataclasses: `Models(generator=FSDP(...))`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from fsdp_migrate.facts.file import File, values_given
from fsdp_migrate.facts.program import Program
from fsdp_migrate.facts.scopes import Imported


class Fields:
    """The fields of one program, by the calls of each name in it."""

    def __init__(
        self, program: Program, calls: Mapping[str, Sequence[tuple[File, ast.Call]]]
    ) -> None:
        self.program = program
        self.calls = calls
        self._texts: dict[Imported, bytes] = {}  # of the files that define the imported classes
        self._classes: dict[ast.Call, list[str]] = {}

    def given_for(self, name: str) -> Iterator[tuple[File, ast.expr]]:
        """What calls that make an object give for a field of its class."""
        for file, call in (*self._made.get(name, ()), *self._made.get("", ())):
            fields = self._fields_of(call, file) if self._may_have(call, file, name) else []
            if name in fields:
                place = fields.index(name)
                named = [each.value for each in call.keywords if each.arg == name]
                for value in named or call.args[place : place + 1]:
                    yield file, value

    def _may_have(self, call: ast.Call, file: File, name: str) -> bool:
        """Whether the class that a call makes an object of can have a field, by the text of its file: few are parsed for it."""
        for binding in file.bindings(call.func):
            if isinstance(binding, Imported) and binding.member is not None:
                if binding not in self._texts:
                    path = self.program.locate(binding.module, file.folder)
                    text = self.program.data(path) if path is not None else b""
                    defined = f"class {binding.member}".encode() in text
                    self._texts[binding] = text if defined else b""
                if text := self._texts[binding]:
                    return f"{name}:".encode() in text or f"{name} :".encode() in text
        return True

    @cached_property
    def _made(self) -> dict[str, list[tuple[File, ast.Call]]]:
        """The calls that make an object with something in it that can be a model, by keyword; "" for those by position."""
        found: dict[str, list[tuple[File, ast.Call]]] = {}
        for name, calls in self.calls.items():
            for file, call in calls if name[:1].isupper() else ():
                if any(not isinstance(value, ast.Constant) for value in values_given(call)):
                    keywords = {keyword.arg for keyword in call.keywords if keyword.arg}
                    for key in (*keywords, *([""] if call.args else ())):
                        found.setdefault(key, []).append((file, call))
        return found

    def _fields_of(self, call: ast.Call, file: File) -> list[str]:
        """The fields of the class that a call makes an object of."""
        if call not in self._classes:
            made = self.program.definition(call.func, file)
            body = made.node.body if made and isinstance(made.node, ast.ClassDef) else []
            annotated = [node.target for node in body if isinstance(node, ast.AnnAssign)]
            self._classes[call] = [each.id for each in annotated if isinstance(each, ast.Name)]
        return self._classes[call]
