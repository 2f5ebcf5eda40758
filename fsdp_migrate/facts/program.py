"""The files of one run: what a name means, across imports, re-exports and aliases.

Files that do not mention FSDP are read and parsed only when a name leads into them.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.names import fsdp1_name
from fsdp_migrate.facts.scopes import Assigned, Binding, Defined, Imported, Opaque, Scope

Read = Callable[[Path], File | None]


@dataclass(frozen=True)
class External:
    """A name of a package outside the program, as a dotted path: `torch.nn.Linear`."""

    dotted: str


@dataclass(frozen=True, eq=False)
class Definition:
    """A function or class of the program."""

    file: File
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, eq=False)
class Inner:
    """A module of the program itself."""

    file: File


@dataclass(frozen=True)
class Unknown:
    """A value that only a run knows: a parameter, a loop's variable, the result of a call."""


Meaning = External | Definition | Inner | Unknown
UNKNOWN = Unknown()


class Program:
    """The files of one run.

    Args:
        files: those that mention FSDP, parsed.
        paths: all Python files of the run.
        read: parses one more of them; None if that fails.

    Attributes:
        paths: the paths of all files, each once.
    """

    def __init__(
        self, files: Iterable[File], paths: Iterable[Path] = (), read: Read | None = None
    ) -> None:
        self.files = list(files)
        self._read = read
        self._loaded: dict[str, File | None] = {str(file.path): file for file in self.files}
        self.paths = list(dict.fromkeys([*self._loaded, *(str(path) for path in paths)]))
        self._found: dict[tuple[str, str], File | None] = {}
        self._known: dict[tuple[int, str], tuple[Meaning, ...]] = {}

    @cached_property
    def _by_last(self) -> dict[str, list[str]]:
        """The paths by the last part of their module's name."""
        found: dict[str, list[str]] = {}
        for path in self.paths:
            folder, _, name = path.rpartition(os.sep)
            last = name.removesuffix(".py")
            found.setdefault(os.path.basename(folder) if last == "__init__" else last, []).append(
                path
            )
        return found

    def find(self, dotted: str, importer: File) -> File | None:
        """The file that `import dotted` inside `importer` means; None if it is not part of the run.

        Several files may claim one name (`utils.py` in two example folders): the one nearest to the importer is meant.
        """
        folder = str(importer.path.parent)
        key = dotted, folder
        if key not in self._found:
            tail = dotted.replace(".", os.sep)
            suffixes = (f"{os.sep}{tail}.py", f"{os.sep}{tail}{os.sep}__init__.py")
            candidates = [
                path
                for path in self._by_last.get(dotted.rpartition(".")[2], ())
                if path.endswith(suffixes) and self._importable(path, tail, folder)
            ]
            best = max(
                candidates, key=lambda path: len(os.path.commonpath([path, folder])), default=None
            )
            self._found[key] = None if best is None else self.load(best)
        return self._found[key]

    def _importable(self, path: str, tail: str, folder: str) -> bool:
        """Whether a module can be reached by a name of one part: beside the importer or above it, not anywhere."""
        if os.sep in tail:
            return True
        root = os.path.dirname(path.removesuffix(f"{os.sep}__init__.py"))
        return folder == root or folder.startswith(root + os.sep)

    def load(self, path: str) -> File | None:
        """A file of the run, parsed; None if that fails."""
        if path not in self._loaded:
            self._loaded[path] = self._read(Path(path)) if self._read else None
        return self._loaded[path]

    def fsdp1(self, expression: ast.expr, file: File) -> str | None:
        """The FSDP1 name that an expression can mean, of torch or of the runtime."""
        names = (fsdp1_name(dotted) for dotted in self.dotted(expression, file))
        return next((name for name in names if name is not None), None)

    def dotted(self, expression: ast.expr, file: File) -> frozenset[str]:
        """The dotted paths outside the program that an expression can mean.

        Two where a name is imported under `try` or `if`; none if it is the program's own or not known.
        """
        if not isinstance(expression, ast.Name | ast.Attribute | ast.Constant):
            return frozenset()
        meanings = self.meanings(expression, file)
        return frozenset(m.dotted for m in meanings if isinstance(m, External))

    def is_only(self, expression: ast.expr, file: File) -> bool:
        """Whether an expression has one meaning, and that is known."""
        found = self.meanings(expression, file)
        return len(found) == 1 and found[0] is not UNKNOWN

    def definition(self, expression: ast.expr, file: File) -> Definition | None:
        """The program's function or class that an expression means."""
        found = self.meanings(expression, file)
        only = found[0] if len(found) == 1 else None
        return only if isinstance(only, Definition) else None

    def meanings(self, expression: ast.expr, file: File) -> tuple[Meaning, ...]:
        """All that an expression can mean; a fallback (`FSDP = None`) is no meaning of its own."""
        return tuple(dict.fromkeys(self._meanings(expression, file, file.scope_of(expression))))

    def classes_above(self, cls: Definition) -> Iterator[Meaning]:
        """All classes above a class, nearest first, as far as they are known."""
        pending, seen = [cls], {cls.node}
        while pending:
            current = pending.pop(0)
            assert isinstance(current.node, ast.ClassDef)
            for base in current.node.bases:
                for meaning in self.meanings(base, current.file):
                    yield meaning
                    if isinstance(meaning, Definition) and isinstance(meaning.node, ast.ClassDef):
                        if meaning.node not in seen:
                            seen.add(meaning.node)
                            pending.append(meaning)

    def imports_of(self, file: File, name: str) -> list[File]:
        """The files that mention FSDP and import a name of a file, by itself or with a star."""
        found = []
        for other in self.files:
            stars = any(self.find(source, other) is file for source, _ in other.stars)
            bindings = (b for scope in other.scopes for b in scope.bindings.get(name, ()))
            if other is not file and (
                stars
                or any(
                    isinstance(b, Imported)
                    and b.member == name
                    and self.find(b.module, other) is file
                    for b in bindings
                )
            ):
                found.append(other)
        return found

    def _meanings(self, expression: ast.expr, file: File, scope: Scope) -> Iterator[Meaning]:
        if isinstance(expression, ast.Name):
            found = scope.lookup(expression.id)
            if found is None:
                yield from self._top_level(expression.id, file)
            else:
                yield from self._bound(expression.id, file, *found)
        elif isinstance(expression, ast.Attribute):
            for owner in self._meanings(expression.value, file, scope):
                yield from self._member(owner, expression.attr)
        elif isinstance(expression, ast.Constant) and isinstance(expression.value, str):
            quoted = _quoted(expression.value)
            if quoted is not None:
                yield from self._meanings(quoted, file, scope)
        else:
            yield UNKNOWN

    def _top_level(self, name: str, file: File) -> Iterator[Meaning]:
        """What a top-level name of a file means to those who import it."""
        if name in file.scope.bindings:
            yield from self._bound(name, file, file.scope, file.scope.bindings[name])
            return
        child = self.find(f"{file.name}.{name}", file) if file.is_package else None
        if child is not None:
            yield Inner(child)
            return
        for source, _ in file.stars:
            inner = self.find(source, file)
            if inner is None:
                known = fsdp1_name(f"{source}.{name}")
                if known is not None:
                    yield External(f"{source}.{name}")
            elif inner is not file:
                yield from self._top_level(name, inner)

    def _bound(
        self, name: str, file: File, scope: Scope, bindings: list[Binding]
    ) -> tuple[Meaning, ...]:
        key = id(scope), name
        if key not in self._known:
            self._known[key] = ()  # a name that leads back to itself adds nothing
            found = (meaning for b in bindings for meaning in self._binding(b, file, scope))
            self._known[key] = tuple(dict.fromkeys(found))
        return self._known[key]

    def _binding(self, binding: Binding, file: File, scope: Scope) -> Iterator[Meaning]:
        if isinstance(binding, Imported):
            yield from self._imported(binding, file)
        elif isinstance(binding, Defined):
            yield Definition(file, binding.node)
        elif isinstance(binding, Assigned) and not binding.path:
            if isinstance(binding.value, ast.Name | ast.Attribute):
                yield from self._meanings(binding.value, file, scope)
            elif not is_fallback(binding.value):
                yield UNKNOWN
        elif not (isinstance(binding, Opaque) and isinstance(binding.node, ast.Delete)):
            yield UNKNOWN

    def _imported(self, binding: Imported, file: File) -> Iterator[Meaning]:
        if binding.member is None:
            inner = self.find(binding.module, file)
            yield Inner(inner) if inner else External(binding.module)
            return
        inner = self.find(binding.module, file)
        if inner is not None and inner is not file:
            members = list(self._member(Inner(inner), binding.member))
            if members:
                yield from members
                return
        child = self.find(f"{binding.module}.{binding.member}", file)
        yield Inner(child) if child else External(f"{binding.module}.{binding.member}")

    def _member(self, owner: Meaning, attribute: str) -> Iterator[Meaning]:
        if isinstance(owner, External):
            yield External(f"{owner.dotted}.{attribute}")
        elif isinstance(owner, Inner):
            yield from self._top_level(attribute, owner.file)
        else:
            yield UNKNOWN


def is_fallback(value: ast.expr) -> bool:
    """Whether a value says that an import failed: `FSDP = None`, `FSDP = object`, `False`, `()`."""
    if isinstance(value, ast.Constant):
        return value.value is None or value.value is False
    if isinstance(value, ast.Tuple):
        return not value.elts
    return isinstance(value, ast.Name) and value.id == "object"


def _quoted(text: str) -> ast.expr | None:
    """The name in an annotation in quotes."""
    if not text.replace(".", "").replace("_", "").isalnum():
        return None
    try:
        quoted = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return None
    return quoted if isinstance(quoted, ast.Name | ast.Attribute) else None
