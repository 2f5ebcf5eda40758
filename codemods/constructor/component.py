"""The files of a run that can share a model: those that import each other, directly or through others.

A model travels by calls, and a call needs an import. The imports are found by a search in the text, since most of these files
are not parsed for anything else. A name that leads to several files means the nearest, as it does everywhere in this tool.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from fsdp_migrate.facts.program import Program

_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]*(\([^)]*\)|[^\n]*)|import[ \t]+([^\n]+))",
    re.MULTILINE,
)
_DYNAMIC = re.compile(r"\bimport_module\(|\b__import__\(")
_WORD = re.compile(r"[.\w]+")


class Components:
    """The files of a program, by what hangs together.

    Attributes:
        texts: the source of each file, by path; unreadable files are left out.
    """

    def __init__(self, program: Program) -> None:
        self.texts = dict(_texts(program))
        self._stems = {path: _stem(path) for path in self.texts}
        self._by_tail: dict[str, list[str]] = {}
        for path, stem in self._stems.items():
            self._by_tail.setdefault(os.path.basename(stem), []).append(path)
        self._found: dict[tuple[str, str], tuple[str, ...]] = {}
        self._parent = {path: path for path in self.texts}
        # An import by a string can mean any file of the run.
        self._is_one = any(map(_DYNAMIC.search, self.texts.values()))
        for path, text in () if self._is_one else self.texts.items():
            for other in self._imported(path, text):
                self._join(path, other)

    def of(self, path: Path) -> list[str]:
        """The paths of the files that hang together with one, itself included."""
        if self._is_one:
            return list(self.texts)
        root = self._root(str(path))
        return [other for other in self.texts if self._root(other) == root]

    def _root(self, path: str) -> str:
        while (parent := self._parent.get(path, path)) != path:
            self._parent[path] = self._parent[parent]  # half the way for those that ask later
            path = parent
        return path

    def _join(self, one: str, other: str) -> None:
        self._parent[self._root(one)] = self._root(other)

    def _imported(self, path: str, text: str) -> Iterator[str]:
        for match in _IMPORT.finditer(text):
            source, names, modules = match.groups()
            if modules is not None:
                for name in _WORD.findall(modules):
                    yield from self._files(path, name)
            else:
                yield from self._files(path, source)
                for name in _WORD.findall(names):
                    yield from self._files(path, f"{source}.{name}")

    def _files(self, importer: str, dotted: str) -> tuple[str, ...]:
        """The files that a dotted name can mean: their paths end in its parts, and they are nearest to the importer."""
        stem = self._stems[importer]
        is_package = importer.endswith(f"{os.sep}__init__.py")
        folder = stem if is_package else os.path.dirname(stem)
        key = folder, dotted
        if key not in self._found:
            self._found[key] = tuple(self._nearest(folder, dotted))
        return self._found[key]

    def _nearest(self, folder: str, dotted: str) -> Iterator[str]:
        level = len(dotted) - len(dotted.lstrip("."))
        parts = [part for part in dotted.split(".") if part]
        if level:
            root = folder
            for _ in range(level - 1):
                root = os.path.dirname(root)
            wanted = os.path.join(root, *parts)
            tails = self._by_tail.get(os.path.basename(wanted), ())
            yield from (path for path in tails if self._stems[path] == wanted)
            return
        tails = self._by_tail.get(parts[-1], ()) if parts else ()
        ending = os.sep + os.sep.join(parts)
        found = [path for path in tails if self._stems[path].endswith(ending)]
        shared = {path: len(os.path.commonpath([self._stems[path], folder])) for path in found}
        nearest = max(shared.values(), default=0)
        for path in found:
            beside = len(parts) > 1 or parts[0] not in sys.stdlib_module_names
            if shared[path] == nearest and (beside or os.path.dirname(self._stems[path]) == folder):
                yield path


def _texts(program: Program) -> Iterator[tuple[str, str]]:
    for path in program.paths:
        try:
            yield path, Path(path).read_text(errors="replace")
        except OSError:
            file = program.load(path)  # standard input has no path of its own
            if file is not None:
                yield path, file.text


def _stem(path: str) -> str:
    """The absolute path of a module without its ending; a package is its folder."""
    return os.path.abspath(path).removesuffix(".py").removesuffix(f"{os.sep}__init__")
