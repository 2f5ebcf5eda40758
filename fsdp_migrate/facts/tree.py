"""All Python files of a run: what is in them, which import which, and where a model can come to. Most are never parsed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from pathlib import Path

from fsdp_migrate.facts.file import File, dotted, path_of
from fsdp_migrate.search import Search
from fsdp_migrate.source import is_test

_IMPORT = re.compile(r"import(?<!\wimport)\b[ \t]*(\([^)]*\)|[^\n]*)")
_FROM = re.compile(r"[ \t]*(?:from[ \t]+([.\w]+)[ \t]+)?")
_LISTED = re.compile(r"(?m)^[ \t]*from[ \t]+([.\w]+)[ \t]+import[ \t]*(\([^)]*\)|[^\n]*)")
_DYNAMIC = rb"import_module\(|__import__\("
_PROGRAM = b"\nif __name__ == "
_WORD = re.compile(r"[.\w]+")


class Tree:
    """The files of a run by their paths.

    Args:
        data: what is in them, as far as it was read.

    Attributes:
        paths: the paths of all files, each once.
    """

    def __init__(self, paths: Iterable[str], data: dict[str, bytes] | None = None) -> None:
        self.paths = list(paths)
        self._paths = frozenset(self.paths)
        if data is None:
            self._data = {}
        else:
            self._data = data
        self.having = cache(self._having)
        self._located: dict[tuple[str, str], str | None] = {}
        # The paths by the last part of their module's name, and all names that are in them.
        self._by_last: dict[str, list[str]] = {}
        self._names: set[str] = set()
        for path in self.paths:
            parts = path.removesuffix(".py").removesuffix(f"{os.sep}__init__").split(os.sep)
            names = dotted(parts).split(".")
            self._by_last.setdefault(names[-1], []).append(path)
            self._names.update(names)

    def data(self, path: str) -> bytes:
        """The bytes of a file; none if it cannot be read."""
        if path not in self._data:
            try:
                with open(path, "rb") as stream:
                    self._data[path] = stream.read()
            except OSError:
                self._data[path] = b""
        return self._data[path]

    def _having(self, pattern: bytes) -> frozenset[str]:
        """The files in which a pattern is found; each is looked for once."""
        has = Search(pattern)
        return frozenset(path for path in self.paths if has(self.data(path)))

    def locate(self, module: str, folder: str) -> str | None:
        """The path of the file that `import module` means in a file of a folder.

        Several files may claim one name (`utils.py` in two example folders): the one nearest to the importer is meant.
        """
        first = module.partition(".")[0]
        last = module.rpartition(".")[2]
        if last not in self._by_last or first not in self._names:
            return None
        key = module, folder
        if key not in self._located:
            tail = path_of(module)
            suffixes = (f"{os.sep}{tail}.py", f"{os.sep}{tail}{os.sep}__init__.py")
            candidates = [
                path
                for path in self._by_last[last]
                if path.endswith(suffixes) and _importable(path, tail, folder)
            ]
            top = [path for path in candidates if not self._is_below_package(path, first)]
            self._located[key] = _nearest(top or candidates, folder)
        return self._located[key]

    def _is_below_package(self, path: str, first: str) -> bool:
        """Whether a file is in a package that is a part of another one, as are tests that mirror a package."""
        above, name, _ = path.rpartition(f"{os.sep}{first}{os.sep}")
        return bool(name) and f"{above}{os.sep}__init__.py" in self._paths

    def is_outside(self, module: str) -> bool:
        """Whether a module is none of these files, by the first part of its name."""
        return module.partition(".")[0] not in self._names


def _importable(path: str, tail: str, folder: str) -> bool:
    """Whether a file is beside the importer or above it: a name of one part, or a copy of torch, is meant nowhere else."""
    if os.sep in tail and not tail.startswith(f"torch{os.sep}"):
        return True
    root = path.removesuffix(f"{os.sep}__init__.py").removesuffix(".py").removesuffix(tail)
    return f"{folder.rstrip(os.sep)}{os.sep}".startswith(root)


def _nearest(paths: list[str], folder: str) -> str | None:
    """The first path that shares most folders with one."""
    if len(paths) < 2:
        if paths:
            return paths[0]
        return None
    while True:
        inside = os.path.join(folder, "")
        above = os.path.dirname(folder)
        near = next((path for path in paths if path.startswith(inside)), None)
        if near is not None or above == folder:
            return near
        folder = above


class Reach:
    """Which files can get a model from one that wraps it: those that import that file, and those that all of these import.

    A model travels by calls, and a call needs an import. The imports are found by a search in the text, since most of these
    files are not parsed for anything else; a file is read when it is first asked about.
    """

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.of = cache(self._of)
        self.text = cache(self._text)
        self.imports = cache(self._imports)
        self._read = cache(self._names_read)

    def _of(self, path: Path) -> list[str]:
        """The files that can get a model from one, itself included. Tests count only where a test wraps the model."""
        start = str(path)
        if self.is_start(start):
            above = [start]
        else:
            above = self._closed([start], self.importers)
        if not is_test(start):
            above = [each for each in above if not is_test(each)]
        found = self._closed(above, self.imports)
        if self.is_start(start):
            inside = found
        else:
            inside = self.tree.paths
        if self.tree.having(_DYNAMIC).isdisjoint(inside):
            return found
        # An import by a string can mean any file of the run, other programs aside.
        return [each for each in self.tree.paths if each == start or not self.is_start(each)]

    def below(self, path: str) -> list[str]:
        """A file and all that it imports, directly or through others."""
        return self._closed([path], self.imports)

    def is_start(self, path: str) -> bool:
        """Whether a file is a program by itself, which no other file imports."""
        return path in self.tree.having(_PROGRAM) and not self.importers(path)

    def is_read(self, file: File, name: str) -> bool:
        """Whether another file of the run may read a name of a file: one that imports the name from it, or all names, or
        writes it behind the module's name, as `mock.patch` does."""
        read, texts = self._read(str(file.path), re.escape(file.name.rpartition(".")[2]))
        if name in read or any(name in text for text in texts):
            return True
        return "*" in read and self._is_read_by_star(str(file.path), re.escape(name))

    def _is_read_by_star(self, path: str, name: str) -> bool:
        """Whether a file to which `import *` may have brought a name has it, other than by an import of its own."""
        named = self.tree.having(rf"(?m)^[^#\n]*\b{name}\b".encode()) - {path}
        if not named:
            return False
        others = {*self._closed([path], self.importers), *self.tree.having(_DYNAMIC)}
        return any(not self._has_its_own(self.text(other), name) for other in named & others)

    def _has_its_own(self, text: str, name: str) -> bool:
        """Whether a file imports a name from outside the program, and reads no other of that name."""
        if re.search(rf"\.\s*{name}\b(?!\s*import\b)|[\"']{name}[\"']", text):
            return False
        sources = []
        is_open = False
        for source, listed in _LISTED.findall(text):
            is_outside = source[0] != "." and self.tree.is_outside(source)
            if re.search(rf"\b{name}\b", listed):
                sources.append(source)
                if not is_outside:
                    return False
            is_open = is_open or (listed.strip() == "*" and not is_outside)
        # Whatever another star brings, what is torch's there is torch's here.
        is_torchs = all(source.startswith("torch.distributed") for source in sources)
        return bool(sources) and (is_torchs or not is_open)

    def _names_read(self, path: str, module: str) -> tuple[set[str], list[str]]:
        """The names of a file that others read, "*" for all; and the texts that may read any, behind another name of it."""
        names = set[str]()
        texts = list[str]()
        imported = r"import\s*(\*|\([^)]*\)?|(?:[^\n\\]|\\\s)*)"
        reads = re.compile(rf"\b{module}\s+(?:as\s+(\w+)|{imported})|\b{module}\s*\.\s*(\w+)")
        for text in map(self.text, self.importers(path)):
            for alias, listed, attribute in reads.findall(text):
                if alias:
                    members = _members(text, module, alias)
                    names.update(members)
                    if not all(members):
                        texts.append(text)
                if listed == "*":
                    names.add("*")
                else:
                    names.update([attribute, *_WORD.findall(listed)])
        return names, texts

    def _text(self, path: str) -> str:
        """The source of a file; "" if it cannot be read."""
        return self.tree.data(path).decode(errors="replace")

    def _imports(self, path: str) -> tuple[str, ...]:
        """The files that one imports itself."""
        return tuple(dict.fromkeys(self._imported(path)))

    def importers(self, path: str) -> list[str]:
        """The files that import one themselves."""
        return self._importers.get(path, [])

    @cached_property
    def _importers(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for path in self.tree.paths:
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

    def _imported(self, path: str) -> Iterator[str]:
        folder = os.path.dirname(path)
        text = self.tree.data(path).decode(errors="replace")
        for found in _IMPORT.finditer(text):
            before = _FROM.fullmatch(text, text.rfind("\n", 0, found.start()) + 1, found.start())
            if before is None:  # the word is inside of a line
                continue
            source = before[1]
            if source is not None and source[0] != "." and self.tree.is_outside(source):
                continue
            modules = _WORD.findall(found[1])
            if source is not None:
                module = source.lstrip(".")
                if level := len(source) - len(module):  # of `from .. import x`
                    package = folder.split(os.sep)[1:]
                    above = dotted(package[: len(package) - level + 1])
                    source = f"{above}.{module}".rstrip(".")
                modules = [source, *[f"{source}.{name}" for name in modules]]
            for each in modules:
                located = self.tree.locate(each.strip("."), folder)
                if located is not None:
                    yield located


def _members(text: str, module: str, alias: str) -> list[str]:
    """The names that are read behind another name of a module, "" where something else is done with that."""
    without_import = re.sub(rf"\b{module}\s+as\s+{alias}\b", "", text)
    return re.findall(rf"\b{alias}\b(?:\s*\.\s*(\w+))?", without_import)
