"""The files of one run: what a name means, across imports, re-exports and aliases.

Files that do not mention FSDP are read and parsed only when a name leads into them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

from fsdp_migrate.facts.answers import Answers
from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.names import NAMES, fsdp1_name
from fsdp_migrate.facts.scopes import Assigned, Binding, Defined, Imported, Opaque, Scope
from fsdp_migrate.facts.tree import Reach, Tree
from fsdp_migrate.search import Search

Read = Callable[[Path], File | None]
Made = TypeVar("Made")


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
        files: those that mention FSDP, or take a norm over ranks, parsed.
        paths: all Python files of the run.
        read: parses one more of them; None if that fails.
        is_set: whether a configuration beside them makes Accelerate shard by FSDP.
        data: what is in the files, as far as it was read.
        goes_on: whether a model counts that an earlier run sharded under `like_fsdp1`, as for torch's form.
        is_too_old: whether a configuration stays one of FSDP1, because the project takes no release that reads version 2.
        is_raised: whether a configuration beside them becomes one of version 2 in this run.

    Attributes:
        tree: all files of the run.
        reach: which of them import which.
        kept: what rules find out once a run, each under a name of its own.
        references: what means an FSDP1 name in each file, as far as it was asked.
    """

    def __init__(
        self,
        files: Iterable[File],
        paths: Iterable[Path] = (),
        read: Read | None = None,
        is_set: bool = False,
        data: dict[str, bytes] | None = None,
        goes_on: bool = False,
        is_too_old: bool = False,
        is_raised: bool = False,
    ) -> None:
        self.files = list(files)
        self.is_set = is_set
        self.goes_on = goes_on
        self.is_too_old = is_too_old
        self.is_raised = is_raised
        self._read = read
        self._loaded: dict[str, File | None] = {str(file.path): file for file in self.files}
        texts = {str(file.path): file.text.encode(errors="replace") for file in self.files}
        every = dict.fromkeys([*self._loaded, *map(str, paths)])
        if data is None:
            data = texts
        self.tree = Tree(every, data)
        self.reach = Reach(self.tree)
        self.kept: dict[str, dict[str, Any]] = {}
        self.references: dict[File, dict[ast.expr, str]] = {}
        self._once: dict[tuple[Callable[..., Any], tuple[object, ...]], Any] = {}
        self._mentioning = frozenset(self._loaded)
        self.fsdp1_aliases = cache(self._fsdp1_aliases)
        self._meant = Answers[tuple[Meaning, ...]](())
        self.dotted = cache(self._dotted)
        self.definition = cache(self._definition)
        self.calls = cache(self._calls)

    def find(self, dotted: str, importer: File) -> File | None:
        """The file that `import dotted` inside `importer` means; None if it is not part of the run."""
        path = self.tree.locate(dotted, importer.folder)
        if path is None:
            return None
        return self.load(path)

    def once(self, make: Callable[..., Made], *given: object) -> Made:
        """What a function or class makes of this run, and of what else it is given, made when it is asked for first."""
        if (make, given) not in self._once:
            self._once[make, given] = make(self, *given)
        made: Made = self._once[make, given]
        return made

    def has(self, pattern: str) -> bool:
        """Whether a pattern is found in a file that mentions FSDP; each is looked for once a run."""
        return self.once(_has, pattern)

    def mentions(self, path: str) -> bool:
        """Whether a file is one of those that mention FSDP."""
        return path in self._mentioning

    def load(self, path: str) -> File | None:
        """A file of the run, parsed; None if that fails."""
        if path not in self._loaded:
            if self._read:
                self._loaded[path] = self._read(Path(path))
            else:
                self._loaded[path] = None
        return self._loaded[path]

    def fsdp1(self, expression: ast.expr, file: File) -> str | None:
        """The FSDP1 name that an expression can mean, of torch or of the runtime."""
        if isinstance(expression, ast.Attribute) and expression.attr not in self.fsdp1_words:
            return None
        names = [fsdp1_name(dotted) for dotted in self.dotted(expression, file)]
        return next((name for name in names if name is not None), None)

    @cached_property
    def fsdp1_words(self) -> set[str]:
        """The names by which FSDP1's names can be reached as attributes: their own, and those that files bind them to."""
        words = set(NAMES)
        for file in self.files:
            words |= self.fsdp1_aliases(file) & file.scope.bindings.keys()
        return words

    def may_mean_fsdp1(self, file: File) -> bool:
        """Whether an expression of a file can mean one of FSDP1's names."""
        attributes = self.fsdp1_words & file.attributes.keys()
        return bool(self.fsdp1_aliases(file) or attributes or file.stars)

    def _fsdp1_aliases(self, file: File) -> set[str]:
        """The names that some scope of a file binds to one of FSDP1's."""
        return {
            name
            for scope in file.scopes
            for name in scope.bindings.keys() & file.aliases
            if any(self._may_lead_to_fsdp1(each, file) for each in scope.bindings[name])
            for meaning in self._bound(name, file, scope, scope.bindings[name], False)
            if isinstance(meaning, External) and fsdp1_name(meaning.dotted)
        }

    def _may_lead_to_fsdp1(self, binding: Binding, file: File) -> bool:
        """Whether a name may be one of FSDP1's: most imports are of other names, and from other packages."""
        if not isinstance(binding, Imported) or binding.member is None or binding.member in NAMES:
            return True
        path = self.tree.locate(binding.module, file.folder)
        return path is not None and path in self._mentioning

    def _dotted(self, expression: ast.expr, file: File) -> frozenset[str]:
        """The dotted paths outside the program that an expression can mean.

        Two where a name is imported under `try` or `if`; none if it is the program's own, or not known: a name is followed
        through files that mention FSDP, and through no other.
        """
        if not (isinstance(expression, ast.Constant) or _leads_away(expression, file)):
            return frozenset()
        found = self._meanings(expression, file, file.scope_of(expression), False)
        return frozenset(m.dotted for m in found if isinstance(m, External))

    def definitions(self, expression: ast.expr, file: File) -> list[Definition]:
        """The functions and classes that an expression can mean, of the files that mention FSDP."""
        if not isinstance(expression, ast.Name | ast.Attribute):
            return []
        found = self._meanings(expression, file, file.scope_of(expression), False)
        return [meaning for meaning in found if isinstance(meaning, Definition)]

    def _calls(self, name: str) -> list[tuple[File, ast.Call]]:
        """The calls of what has a name, in the files that mention FSDP."""
        return [(file, call) for file, calls in self._by_name.get(name, ()) for call in calls]

    @cached_property
    def _by_name(self) -> dict[str, list[tuple[File, list[ast.Call]]]]:
        found: dict[str, list[tuple[File, list[ast.Call]]]] = {}
        for file in self.files:
            for name, calls in file.calls.items():
                found.setdefault(name, []).append((file, calls))
        return found

    def _definition(self, expression: ast.expr, file: File) -> Definition | None:
        """The program's function or class that an expression means."""
        if isinstance(expression, ast.Attribute) and not _leads_away(expression, file):
            return None
        found = self.meanings(expression, file)
        only = None
        if len(found) == 1:
            only = found[0]
        if isinstance(only, Definition):
            return only
        return None

    def meanings(self, expression: ast.expr, file: File) -> tuple[Meaning, ...]:
        """All that an expression can mean; a fallback (`FSDP = None`) is no meaning of its own."""
        found = self._meanings(expression, file, file.scope_of(expression), True)
        return tuple(dict.fromkeys(found))

    def classes_above(self, cls: Definition) -> Iterator[Meaning]:
        """All classes above a class, nearest first, as far as they are known."""
        pending = [cls]
        seen = {cls.node}
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

    # What a name means, through every file of the run or only through those that mention FSDP.

    def _meanings(
        self, expression: ast.expr, file: File, scope: Scope, everywhere: bool
    ) -> Iterator[Meaning]:
        if isinstance(expression, ast.Name):
            found = scope.lookup(expression.id)
            if found is None:
                yield from self._top_level(expression.id, file, everywhere)
            else:
                yield from self._bound(expression.id, file, *found, everywhere)
        elif isinstance(expression, ast.Attribute):
            for owner in self._meanings(expression.value, file, scope, everywhere):
                yield from self._member(owner, expression.attr, everywhere)
        elif isinstance(expression, ast.Constant) and isinstance(expression.value, str):
            quoted = _quoted(expression.value)
            if quoted is not None:
                yield from self._meanings(quoted, file, scope, everywhere)
        else:
            yield UNKNOWN

    def _top_level(self, name: str, file: File, everywhere: bool) -> Iterator[Meaning]:
        """What a top-level name of a file means to those who import it."""
        if name in file.scope.bindings:
            yield from self._bound(name, file, file.scope, file.scope.bindings[name], everywhere)
            return
        if file.is_package:
            child = self._module(f"{file.name}.{name}", file, everywhere)
            if not isinstance(child, External):
                yield child
                return
        for source, _ in file.stars:
            inner = self._module(source, file, everywhere)
            if isinstance(inner, External):
                if fsdp1_name(f"{source}.{name}") is not None:
                    yield External(f"{source}.{name}")
            elif isinstance(inner, Inner) and inner.file is not file:
                yield from self._top_level(name, inner.file, everywhere)

    def _bound(
        self, name: str, file: File, scope: Scope, bindings: list[Binding], everywhere: bool
    ) -> tuple[Meaning, ...]:
        def find() -> tuple[Meaning, ...]:
            found: dict[Meaning, None] = {}
            for binding in bindings:
                found |= dict.fromkeys(self._binding(binding, file, scope, everywhere))
            return tuple(found)

        return self._meant.of((id(scope), name, everywhere), find)

    def _binding(
        self, binding: Binding, file: File, scope: Scope, everywhere: bool
    ) -> Iterator[Meaning]:
        if isinstance(binding, Imported):
            yield from self._imported(binding, file, everywhere)
        elif isinstance(binding, Defined):
            yield Definition(file, binding.node)
        elif isinstance(binding, Assigned) and not binding.path:
            if isinstance(binding.value, ast.Name | ast.Attribute):
                yield from self._meanings(binding.value, file, scope, everywhere)
            elif not is_fallback(binding.value):
                yield UNKNOWN
        elif not (isinstance(binding, Opaque) and isinstance(binding.node, ast.Delete)):
            yield UNKNOWN

    def _imported(self, binding: Imported, file: File, everywhere: bool) -> Iterator[Meaning]:
        module = self._module(binding.module, file, everywhere)
        if binding.member is None:
            yield module
            return
        if isinstance(module, Inner) and module.file is not file:
            members = list(self._member(module, binding.member, everywhere))
            if members:
                yield from members
                return
        child = self._module(f"{binding.module}.{binding.member}", file, everywhere)
        if isinstance(child, External) and module is UNKNOWN:
            yield UNKNOWN
        else:
            yield child

    def _member(self, owner: Meaning, attribute: str, everywhere: bool) -> Iterator[Meaning]:
        if isinstance(owner, External):
            yield External(f"{owner.dotted}.{attribute}")
        elif isinstance(owner, Inner):
            yield from self._top_level(attribute, owner.file, everywhere)
        else:
            yield UNKNOWN

    def _module(self, dotted: str, importer: File, everywhere: bool) -> Meaning:
        """A module of the program or of another package."""
        path = self.tree.locate(dotted, importer.folder)
        if path is None:
            return External(dotted)
        if not everywhere and path not in self._mentioning:
            return UNKNOWN
        file = self.load(path)
        if file is None:
            return External(dotted)
        return Inner(file)


def _has(program: Program, pattern: str) -> bool:
    return any(map(Search(pattern), (file.text for file in program.files)))


def _leads_away(expression: ast.expr, file: File) -> bool:
    """Whether a dotted name begins with one that is bound to something of another name, as imports do."""
    root = expression
    while isinstance(root, ast.Attribute):
        root = root.value
    is_bound = isinstance(root, ast.Name) and root.id in file.aliases
    return is_bound or (isinstance(root, ast.Name) and bool(file.stars or file.is_package))


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
    if isinstance(quoted, ast.Name | ast.Attribute):
        return quoted
    return None


def is_module(program: Program, cls: Definition) -> bool:
    """Whether a class is certainly an nn.Module."""
    return any(
        isinstance(above, External) and above.dotted.startswith("torch.nn.")
        for above in program.classes_above(cls)
    )
