"""Which files have a name from another one: by their imports, and by a text search where they are not parsed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property

from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.program import Program
from fsdp_migrate.facts.scopes import Imported


class Readers:
    """Who reads what of a program's files, each question answered once for all names that are spelled alike."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._holders: dict[str, set[str]] = {}
        self._readers: dict[tuple[str, str], set[str]] = {}

    def is_read(self, file: File, name: str) -> bool:
        """Whether another file of the run may read a name of a file: by a text search, but for imports in parsed files."""
        own, module = {str(file.path)}, file.name.rpartition(".")[2]
        if not self._holding(name) - own:
            return False
        if (module, name) not in self._readers:
            self._readers[module, name] = set(self._reading(module, name))
        return bool(self._readers[module, name] - own) or bool(self.importing(file, name))

    def _reading(self, module: str, name: str) -> Iterator[str]:
        """The files that may read a name of a module, by the last part of the module's name."""
        word, source = re.escape(name).encode(), re.escape(module).encode()
        member = re.compile(rb"\.%b\b" % word)
        imported = re.compile(rb"\b%b[ \t]+import\b[^#]*?(\*|\b%b\b)" % (source, word))
        for path in self._holding(module):
            data = self.program.data(path)
            is_parsed = self.program.mentions(path)
            if member.search(data) or (not is_parsed and imported.search(data)):
                yield path

    def _holding(self, word: str) -> set[str]:
        """The files of the run with a word in their text."""
        if word not in self._holders:
            wanted = word.encode()
            self._holders[word] = {
                path for path in self.program.paths if wanted in self.program.data(path)
            }
        return self._holders[word]

    def importing(self, file: File, name: str) -> list[File]:
        """The files that mention FSDP and import a name of a file, by itself or with a star."""
        path = str(file.path)
        found = (*self._importers.get((path, name), ()), *self._importers.get((path, "*"), ()))
        return [other for other in dict.fromkeys(found) if other is not file]

    @cached_property
    def _importers(self) -> dict[tuple[str, str], list[File]]:
        """The files that mention FSDP by the path and the name that they import."""
        found: dict[tuple[str, str], list[File]] = {}
        for file in self.program.files:
            names = [
                (binding.module, binding.member)
                for scope in file.scopes
                for bindings in scope.bindings.values()
                for binding in bindings
                if isinstance(binding, Imported) and binding.member is not None
            ]
            for module, name in (*names, *((module, "*") for module, _ in file.stars)):
                path = self.program.locate(module, file.folder)
                if path is not None:
                    found.setdefault((path, name), []).append(file)
        return found
