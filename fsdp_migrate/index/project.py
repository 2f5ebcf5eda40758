"""All files of a project together: what a name means, across imports, re-exports and aliases."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from fsdp_migrate.index import names
from fsdp_migrate.index.module import (
    Assigned,
    Binding,
    Defined,
    Imported,
    Module,
    Opaque,
    Scope,
    absolute,
)


@dataclass(frozen=True)
class External:
    """A name of a package outside the project, as a dotted path: `torch.nn.Linear`."""

    dotted: str


@dataclass(frozen=True, eq=False)
class Definition:
    """A function or class of the project."""

    module: Module
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Definition) and self.node is other.node

    def __hash__(self) -> int:
        return hash(id(self.node))


@dataclass(frozen=True)
class ModuleReference:
    """A module of the project itself."""

    name: str


@dataclass(frozen=True)
class Unseen:
    """Something that the analysis cannot see: a loop's variable, the result of a call, a value set from outside."""


Meaning = External | Definition | ModuleReference

_Name = tuple[Scope | Module, str]  # where a name is bound, or of which module, and the name


class Project:
    """The parsed files of one run, by dotted module name.

    Several files may claim one module name (`utils.py` in two example folders); an import then means the one that lies
    nearest to the importing file.
    """

    def __init__(self, modules: Iterable[Module]) -> None:
        self.modules = list(modules)
        self._by_last: dict[str, list[Module]] = {}
        self._found: dict[tuple[str, str], Module | None] = {}
        self._components: dict[Module, frozenset[Module]] | None = None
        for module in self.modules:
            self._by_last.setdefault(module.name.rpartition(".")[2], []).append(module)
        self._known: dict[_Name, tuple[Meaning | Unseen, ...]] = {}
        self._open: set[_Name] = set()  # names whose meanings are being found
        self._unsure: list[_Name] | None = None  # found while one led back to itself
        self._set_outside: frozenset[tuple[Module, str]] = frozenset()
        self._set_outside = frozenset(self._outside_stores())
        self._known.clear()

    def _outside_stores(self) -> Iterator[tuple[Module, str]]:
        """The names of modules that `module.NAME = value` or `setattr(module, "NAME", value)` binds from outside."""
        for module in self.modules:
            for owner, name in _attribute_stores(module):
                for meaning in self.meanings(owner, module):
                    inside = self.inside(meaning, module)
                    if inside is not None:
                        yield inside, name

    def is_set_outside(self, module: Module, name: str) -> bool:
        """Whether anybody assigns a top-level name of a module from outside: what it holds is anybody's guess."""
        return (module, name) in self._set_outside

    def inside(self, meaning: Meaning, module: Module) -> Module | None:
        """The file that a reference to a module of the project means."""
        return self.find(meaning.name, module) if isinstance(meaning, ModuleReference) else None

    def find(self, dotted: str, importer: Module) -> Module | None:
        """The project's module that `import dotted` inside `importer` means; None if it is not part of the project."""
        key = (dotted, importer.folder)
        if key not in self._found:
            self._found[key] = self._find(dotted, importer)
        return self._found[key]

    def _find(self, dotted: str, importer: Module) -> Module | None:
        candidates = [
            module
            for module in self._by_last.get(dotted.rpartition(".")[2], ())
            if module.name == dotted
            or (module.name.endswith(f".{dotted}") and _importable(module, dotted, importer))
        ]
        return max(candidates, key=lambda m: _shared(m.path, importer.path), default=None)

    def meanings(
        self, expression: ast.expr, module: Module, scope: Scope | None = None
    ) -> frozenset[Meaning]:
        """What a name or dotted name can mean; several where it is imported under `try` or `if`, none if unknown."""
        return frozenset(
            meaning
            for meaning in self._meanings(expression, module, scope or module.scope_of(expression))
            if not isinstance(meaning, Unseen)
        )

    def dotted(self, expression: ast.expr, module: Module) -> frozenset[str]:
        """The external dotted paths that a name can mean: `FSDP` is `torch.distributed.fsdp.FullyShardedDataParallel`.

        `?` is among them where the name can be something else as well.
        """
        found = set(self._meanings(expression, module, module.scope_of(expression)))
        paths = {meaning.dotted for meaning in found if isinstance(meaning, External)}
        return frozenset(paths | {"?"} if 0 < len(paths) < len(found) else paths)

    def fsdp1(self, expression: ast.expr, module: Module, scope: Scope | None = None) -> str | None:
        """The FSDP1 name that an expression stands for, if nothing but FSDP1 can be meant (a `None` fallback aside)."""
        return _one_name(self._meanings(expression, module, scope or module.scope_of(expression)))

    def fsdp1_at(self, name: str, module: Module) -> str | None:
        """The FSDP1 name that a top-level name of a module stands for, as `fsdp1` decides."""
        return _one_name(self.module_name(name, module))

    def definition(self, expression: ast.expr, module: Module) -> Definition | None:
        """The project's function or class that an expression means, if it is the only meaning."""
        found = self.meanings(expression, module)
        if len(found) != 1:
            return None
        only = next(iter(found))
        return only if isinstance(only, Definition) else None

    def bases(self, cls: Definition) -> Iterator[Meaning]:
        """All classes above a class, nearest first, as far as they can be seen."""
        pending, seen = [cls], {cls}
        while pending:
            current = pending.pop(0)
            assert isinstance(current.node, ast.ClassDef)
            for base in current.node.bases:
                for meaning in self.meanings(base, current.module):
                    yield meaning
                    if isinstance(meaning, Definition) and isinstance(meaning.node, ast.ClassDef):
                        if meaning not in seen:
                            seen.add(meaning)
                            pending.append(meaning)

    def method(self, cls: Definition, name: str) -> Definition | None:
        """The method that `self.name` means inside a class, own or inherited within the project."""
        for owner in [cls, *(base for base in self.bases(cls) if isinstance(base, Definition))]:
            assert isinstance(owner.node, ast.ClassDef)
            for statement in owner.node.body:
                if (
                    isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
                    and statement.name == name
                ):
                    return Definition(owner.module, statement)
        return None

    def imported_by(self, node: ast.AST, module: Module) -> Iterator[Module]:
        """The files of the project that an import statement of a file reads."""
        if isinstance(node, ast.Import):
            paths = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            source = absolute(node, module.name, module.is_package)
            paths = [source, *(f"{source}.{alias.name}" for alias in node.names)]
        else:
            return
        for path in paths:
            found = self.find(path, module)
            if found is not None:
                yield found

    @cached_property
    def imports(self) -> dict[Module, set[Module]]:
        """Which files of the project each file imports."""
        return {
            module: {found for node in module.imports for found in self.imported_by(node, module)}
            for module in self.modules
        }

    def connected(self, module: Module) -> frozenset[Module]:
        """The files that hang together with one by imports, in either direction and over any number of files."""
        if self._components is None:
            self._components = _components(self.imports)
        return self._components[module]

    def imports_of(self, module: Module, name: str) -> list[tuple[Module, Imported | None]]:
        """Where other files import a top-level name of a module; None in place of the import for `import *`."""
        found: list[tuple[Module, Imported | None]] = []
        for other in self.modules:
            if other is module:
                continue
            for scope in other.scopes.values():
                for bindings in scope.bindings.values():
                    for binding in bindings:
                        if isinstance(binding, Imported) and binding.member == name:
                            if self.find(binding.module, other) is module:
                                found.append((other, binding))
            for source, _ in other.stars:
                if not name.startswith("_") and self.find(source, other) is module:
                    found.append((other, None))
        return found

    def module_name(self, name: str, module: Module) -> tuple[Meaning | Unseen, ...]:
        """What a name at the top level of a module means to those who import it."""
        return self._once((module, name), lambda: self._of_module(name, module))

    def _once(
        self, name: _Name, find: Callable[[], Iterable[Meaning | Unseen]]
    ) -> tuple[Meaning | Unseen, ...]:
        """What a name means, found once; where it leads back to itself, that adds nothing."""
        if name in self._known:
            return self._known[name]
        if name in self._open:
            self._unsure = self._unsure or []
            return ()
        self._open.add(name)
        found = self._known[name] = tuple(dict.fromkeys(find()))
        self._open.remove(name)
        if self._unsure is not None:
            self._unsure.append(name)
            if not self._open:  # what was found inside the loop may lack what is found outside
                for inner in self._unsure[:-1]:
                    self._known.pop(inner, None)
                self._unsure = None
        return found

    def _of_module(self, name: str, module: Module) -> Iterator[Meaning | Unseen]:
        if self.is_set_outside(module, name):
            yield Unseen()
        bindings = module.scope.bindings.get(name)
        if bindings:
            for binding in bindings:
                yield from self._binding(binding, module, module.scope, name)
            return
        if module.is_package and (child := self.find(f"{module.name}.{name}", module)):
            yield ModuleReference(child.name)
            return
        for source, _ in module.stars:
            yield from self._from_star(source, name, module)

    def _meanings(
        self, expression: ast.expr, module: Module, scope: Scope
    ) -> Iterator[Meaning | Unseen]:
        if isinstance(expression, ast.Name):
            name = expression.id
            found = module.lookup(name, scope)
            if found is None:
                yield from self.module_name(name, module)
                return
            where, bindings = found
            yield from self._once((where, name), lambda: self._bound(name, module, where, bindings))
        elif isinstance(expression, ast.Attribute):
            for owner in self._meanings(expression.value, module, scope):
                yield from self._member(owner, expression.attr, module)
        elif isinstance(expression, ast.Constant) and isinstance(expression.value, str):
            try:  # an annotation in quotes
                quoted = ast.parse(expression.value, mode="eval").body
            except (SyntaxError, ValueError):
                return
            if isinstance(quoted, ast.Name | ast.Attribute):
                yield from self._meanings(quoted, module, scope)

    def _bound(
        self, name: str, module: Module, scope: Scope, bindings: Iterable[Binding]
    ) -> Iterator[Meaning | Unseen]:
        if scope is module.scope and self.is_set_outside(module, name):
            yield Unseen()
        for binding in bindings:
            yield from self._binding(binding, module, scope, name)

    def _member(
        self, owner: Meaning | Unseen, attribute: str, module: Module
    ) -> Iterator[Meaning | Unseen]:
        if isinstance(owner, External):
            yield External(f"{owner.dotted}.{attribute}")
        elif isinstance(owner, Unseen | Definition):
            yield Unseen()
        else:
            inside = self.inside(owner, module)
            if inside is None:
                return
            members = list(self.module_name(attribute, inside))
            if members:
                yield from members
            elif child := self.find(f"{inside.name}.{attribute}", inside):
                yield ModuleReference(child.name)

    def _binding(
        self, binding: Binding, module: Module, scope: Scope, name: str
    ) -> Iterator[Meaning | Unseen]:
        if isinstance(binding, Imported):
            yield from self._imported(binding, module)
        elif isinstance(binding, Defined):
            yield Definition(module, binding.node)
        elif isinstance(binding, Assigned) and not binding.path:
            if scope is module.scope and module.is_rewritten:
                yield Unseen()
            if isinstance(binding.value, ast.Name | ast.Attribute):
                if not _same(binding.value, name):
                    yield from self._meanings(binding.value, module, scope)
            elif not is_fallback(binding.value):
                yield Unseen()
        elif not (isinstance(binding, Opaque) and isinstance(binding.node, ast.Delete)):
            yield Unseen()

    def _imported(self, binding: Imported, module: Module) -> Iterator[Meaning | Unseen]:
        inside = self.find(binding.module, module)
        if binding.member is None:
            yield ModuleReference(inside.name) if inside else External(binding.module)
            return
        if inside is None:
            if child := self.find(f"{binding.module}.{binding.member}", module):
                yield ModuleReference(child.name)
            else:
                yield External(f"{binding.module}.{binding.member}")
            return
        if inside is not module or binding.module != module.name:
            yield from self.module_name(binding.member, inside)
        if (child := self.find(f"{inside.name}.{binding.member}", inside)) is not None:
            if binding.member not in inside.scope.bindings:
                yield ModuleReference(child.name)

    def _from_star(self, source: str, name: str, module: Module) -> Iterator[Meaning | Unseen]:
        inside = self.find(source, module)
        if inside is not None and inside is not module:
            if not name.startswith("_"):
                yield from self.module_name(name, inside)
        elif inside is None and names.fsdp1_name(f"{source}.{name}"):
            yield External(f"{source}.{name}")


def _attribute_stores(module: Module) -> Iterator[tuple[ast.expr, str]]:
    """The objects of which a file sets an attribute, with its name."""
    for attribute in module.attributes:
        if not isinstance(attribute.ctx, ast.Load):
            yield attribute.value, attribute.attr
    for call in module.calls:
        if isinstance(call.func, ast.Name) and call.func.id == "setattr" and len(call.args) == 3:
            owner, name, _ = call.args
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield owner, name.value


def is_fallback(value: ast.expr) -> bool:
    """Whether a name gets this value where there is nothing better: `None`, `False`, `()`."""
    return isinstance(value, ast.Constant) or (isinstance(value, ast.Tuple) and not value.elts)


def _one_name(meanings: Iterable[Meaning | Unseen]) -> str | None:
    """The FSDP1 name that all meanings are; None if there is another among them."""
    found = {names.fsdp1_name(getattr(meaning, "dotted", "")) for meaning in meanings}
    return found.pop() if len(found) == 1 else None


def _components(imports: Mapping[Module, set[Module]]) -> dict[Module, frozenset[Module]]:
    neighbours: dict[Module, set[Module]] = {
        module: set(found) for module, found in imports.items()
    }
    for module, found in imports.items():
        for other in found:
            neighbours[other].add(module)
    components: dict[Module, frozenset[Module]] = {}
    for module in neighbours:
        if module in components:
            continue
        members, pending = {module}, [module]
        while pending:
            new = neighbours[pending.pop()] - members
            members |= new
            pending += new
        component = frozenset(members)
        components.update(dict.fromkeys(members, component))
    return components


def _same(value: ast.expr, name: str) -> bool:
    return isinstance(value, ast.Name) and value.id == name


def _importable(module: Module, dotted: str, importer: Module) -> bool:
    """Whether `import dotted` can mean a file: from a folder around the importer, or as a package of its own."""
    file = module.path.parent if module.is_package else module.path
    root = file.parents[dotted.count(".")]
    top = dotted.split(".")[0]
    if (
        root / "__init__.py"
    ).exists():  # inside a package: only for scripts that are run from there
        return root in importer.path.parents and top not in _ELSEWHERE
    return root in importer.path.parents or (root / top / "__init__.py").exists()


_ELSEWHERE = frozenset(sys.stdlib_module_names) | {
    "torch",
    "numpy",
    "transformers",
    "datasets",
    "accelerate",
}


@cache
def _shared(one: Path, other: Path) -> int:
    """How many leading folders two paths share."""
    count = 0
    for left, right in zip(one.parts, other.parts, strict=False):
        if left != right:
            break
        count += 1
    return count
