"""The files that can get a model from a file that wraps it: those that import that file, and those that all of these import.

A model travels by calls, and a call needs an import. The imports are found by a search in the text, since most of these files
are not parsed for anything else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from fsdp_migrate.facts.file import File, module_name
from fsdp_migrate.facts.program import Program

_IMPORT = re.compile(r"import(?<!\wimport)\b[ \t]*(\([^)]*\)|[^\n]*)")
_FROM = re.compile(r"[ \t]*(?:from[ \t]+([.\w]+)[ \t]+)?")
_DYNAMIC = ("import_module(", "__import__(")
_TEST = re.compile(r"(^|/)(tests?/|test_[^/]*\.py$|conftest\.py$)")
_WORD = re.compile(r"[.\w]+")


class Reach:
    """Which files import which; a file is read when it is first asked about."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._texts: dict[str, str] = {}
        self._imports: dict[str, tuple[str, ...]] = {}
        self._starts: dict[str, bool] = {}

    def of(self, path: Path) -> list[str]:
        """The files that can get a model from one, itself included. Tests count only where a test wraps the model."""
        start = str(path)
        above = [start] if self.is_start(start) else self._closed([start], self.importers)
        if not _TEST.search(start):
            above = [each for each in above if not _TEST.search(each)]
        found = self._closed(above, self.imports)
        inside = found if self.is_start(start) else self.program.paths
        if not any(map(self._is_dynamic, inside)):
            return found
        # An import by a string can mean any file of the run, other programs aside.
        return [each for each in self.program.paths if each == start or not self.is_start(each)]

    def below(self, path: str) -> list[str]:
        """A file and all that it imports, directly or through others."""
        return self._closed([path], self.imports)

    def is_start(self, path: str) -> bool:
        """Whether a file is a program by itself, which no other file imports."""
        if path not in self._starts:
            is_program = "\nif __name__ == " in self.text(path)
            self._starts[path] = is_program and not self.importers(path)
        return self._starts[path]

    def is_read(self, file: File, name: str) -> bool:
        """Whether another file of the run may read a name of a file: one that imports the name from it, or all names, or
        writes it behind the module's name, as `mock.patch` does."""
        own, wanted = str(file.path), name.encode()
        module = re.escape(file.name.rpartition(".")[2])
        line = rf"\([^)]*\b{name}\b|(?:[^\n\\]|\\\s)*\b{name}\b"
        reads = re.compile(
            rf"\b{module}\s+(?:as\s+\w|import\s*(?:\*|{line}))|\b{module}\s*\.\s*{name}\b"
        )
        for path in self.program.paths:
            data = self.program.data(path)
            if path != own and (wanted in data or b"import *" in data):
                if own in self.imports(path) and reads.search(self.text(path)):
                    return True
        return False

    def is_test(self, path: str) -> bool:
        """Whether a file is a test."""
        return _TEST.search(path) is not None

    def text(self, path: str) -> str:
        """The source of a file; "" if it cannot be read."""
        if path not in self._texts:
            self._texts[path] = self.program.data(path).decode(errors="replace")
        return self._texts[path]

    def imports(self, path: str) -> tuple[str, ...]:
        """The files that one imports itself."""
        if path not in self._imports:
            self._imports[path] = tuple(dict.fromkeys(self._imported(path)))
        return self._imports[path]

    def importers(self, path: str) -> list[str]:
        """The files that import one themselves."""
        return self._importers.get(path, [])

    @cached_property
    def _importers(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for path in self.program.paths:
            for other in self.imports(path):
                if other != path:
                    found.setdefault(other, []).append(path)
        return found

    def _closed(self, paths: list[str], more: object) -> list[str]:
        found = dict.fromkeys(paths)
        pending = list(found)
        while pending:
            for other in more(pending.pop()):  # type: ignore[operator]
                if other not in found:
                    found[other] = None
                    pending.append(other)
        return list(found)

    def _is_dynamic(self, path: str) -> bool:
        return any(call in self.text(path) for call in _DYNAMIC)

    def _imported(self, path: str) -> Iterator[str]:
        package, folder = module_name(Path(path)).split("."), os.path.dirname(path)
        if not path.endswith(f"{os.sep}__init__.py"):
            package.pop()
        text = self.text(path)
        for found in _IMPORT.finditer(text):
            before = _FROM.fullmatch(text, text.rfind("\n", 0, found.start()) + 1, found.start())
            if before is None:  # the word is inside of a line
                continue
            source, dotted = before[1], _WORD.findall(found[1])
            if source is not None:
                level = len(source) - len(source.lstrip("."))
                above = [*package[: len(package) - level + 1], ""] if level else []
                source = (".".join(above) + source[level:]).rstrip(".")  # of `from .. import x`
                dotted = [source, *(f"{source}.{name}" for name in dotted)]
            for each in dotted:
                located = self.program.locate(each.strip("."), folder)
                if located is not None:
                    yield located


def reach_of(program: Program) -> Reach:
    """Which files of a program import which."""
    return program.once(Reach)
