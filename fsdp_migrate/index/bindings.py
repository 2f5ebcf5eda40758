"""From a name or attribute that is bound to a followed value to the places where it is read."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, replace

from fsdp_migrate.index.instances import Instances
from fsdp_migrate.index.labels import Label, Site, lose, maker_of
from fsdp_migrate.index.module import Module, Scope
from fsdp_migrate.index.order import after, reaches, share_a_loop
from fsdp_migrate.index.paths import ANY, Item, Path, key_of
from fsdp_migrate.index.project import Definition
from fsdp_migrate.index.uses import Uses


@dataclass(frozen=True, eq=False)
class Held:
    """A followed value that something is bound to.

    Attributes:
        statement: what binds it; None if it is bound from the start, as a parameter is.
        path: where in the bound value it lies.
        once: the statement gives another element a value each time that a loop comes round: what stands above it reads
            elements that it has not reached yet.
        within: the comprehension whose own name is bound: what it binds is seen inside only.
    """

    module: Module
    statement: ast.AST | None
    path: Path
    label: Label
    once: bool = False
    within: ast.AST | None = None

    def at(self, path: Path, *, once: bool = False) -> Held:
        return replace(self, path=path, once=once or self.once)


class Bindings:
    """What is bound to followed values.

    Args:
        add: takes an expression that holds a followed value.
    """

    def __init__(
        self,
        uses: Uses,
        instances: Instances,
        add: Callable[[Module, ast.expr, Path, Label], None],
    ) -> None:
        self.uses = uses
        self.project = uses.project
        self.instances = instances
        self.add = add
        self.partly_sharded: dict[Definition, set[Site]] = {}  # classes with a wrapped part
        self._wholes: dict[Site, Site] = {}

    def assign(self, target: ast.expr, held: Held) -> None:
        """`target = value`, in an assignment, a loop or a comprehension."""
        module, path, label = held.module, held.path, held.label
        if isinstance(target, ast.Tuple | ast.List):
            self._unpack(target, held)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, held)
        elif isinstance(target, ast.Name):
            scope = _owner_of(module, module.scope_of(target), target.id)
            self.bind(scope, target.id, held)
        elif isinstance(target, ast.Attribute):
            self.bind_attribute(target.value, target.attr, held)
            self.bind_whole(target.value, held)
        elif isinstance(target, ast.Subscript):
            key = key_of(target.slice)
            for mapping in (False, True):
                self.store(target.value, held.at((Item(key, mapping), *path), once=key is ANY))
            self.bind_whole(target.value, held)
        else:
            lose(label, module, target)

    def store(self, container: ast.expr, held: Held) -> None:
        """`container[...] = value`, `container.append(value)`: from here on the container holds it."""
        module = held.module
        if isinstance(container, ast.Name):
            scope = _owner_of(module, module.scope_of(container), container.id)
            found = module.lookup(container.id, scope)
            if found is not None:
                self.bind(found[0], container.id, held)
        elif isinstance(container, ast.Attribute):
            self.bind_attribute(container.value, container.attr, held)
        elif isinstance(container, ast.Subscript):
            key = key_of(container.slice)
            for mapping in (False, True):
                inner = held.at((Item(key, mapping), *held.path), once=key is ANY)
                self.store(container.value, inner)
        else:
            lose(held.label, module, container)

    def _unpack(self, target: ast.Tuple | ast.List, held: Held) -> None:
        if not held.path or held.path[0].mapping:
            lose(held.label, held.module, target)
            return
        head, *rest = held.path
        for index, element in enumerate(target.elts):
            if isinstance(element, ast.Starred):
                self.assign(element.value, held.at((Item(), *rest)))
            elif head.matches(index) or any(
                isinstance(e, ast.Starred) for e in target.elts[:index]
            ):
                self.assign(element, held.at(tuple(rest)))

    def bind(self, scope: Scope, name: str, held: Held) -> None:
        """A name of a scope holds the value from the statement on."""
        module, statement = held.module, held.statement
        for load in module.loads.get(name, ()):
            found = module.lookup(name, module.scope_of(load))
            if found is None or found[0] is not scope:
                continue
            if held.within is not None:
                if held.within not in module.ancestors(load):
                    continue
            elif statement is not None and module.scope_of(load) is scope:
                if held.once and not after(load, statement):
                    continue
                if not reaches(module, scope, name, statement, load):
                    continue
            self.add(module, load, held.path, held.label)
        if held.within is not None:
            return
        if scope is module.scope:
            self._bind_elsewhere(name, held)
        elif isinstance(scope.node, ast.ClassDef):
            self.bind_field(Definition(module, scope.node), name, held)

    def _bind_elsewhere(self, name: str, held: Held) -> None:
        """Other files import a top-level name, or read it through its module."""
        for other, scope, local in self.uses.importers(held.module, name):
            self.bind(scope, local, Held(other, None, held.path, held.label))
        for other in self.uses.stars(held.module):
            for load in other.loads.get(name, ()):
                if other.lookup(name, other.scope_of(load)) is None:
                    self.add(other, load, held.path, held.label)
        for other, attribute in self.uses.through_module(held.module, name):
            self.add(other, attribute, held.path, held.label)

    def bind_attribute(self, owner: ast.expr, name: str, held: Held) -> None:
        """`owner.name` holds the value from the statement on."""
        module, statement = held.module, held.statement
        assert statement is not None
        cls = self.instances.owner(owner, module)
        if cls is None:
            self._bind_unknown(owner, name, held)
            return
        function = module.enclosing_function(statement)
        for where, load in self.uses.attributes.get(name, ()):
            holder = self.instances.owner(load.value, where)
            if holder is None:
                self._miss(where, load, held.label)
            elif self.instances.related(cls, holder):
                together = where is module and module.enclosing_function(load) is function
                if (
                    not together
                    or after(load, statement)
                    or (not held.once and share_a_loop(module, statement, load))
                ):
                    self.add(where, load, held.path, held.label)

    def _bind_unknown(self, owner: ast.expr, name: str, held: Held) -> None:
        """An attribute of a module, or of something unknown: there the same text in the same function counts."""
        module, statement = held.module, held.statement
        assert statement is not None
        for meaning in self.project.meanings(owner, module):
            inside = self.project.inside(meaning, module)
            if inside is not None:
                self.bind(inside.scope, name, Held(inside, None, held.path, held.label))
                return
        lose(held.label, module, owner)
        function, text = module.enclosing_function(statement), ast.dump(owner)
        for where, load in self.uses.attributes.get(name, ()):
            if (
                where is module
                and module.enclosing_function(load) is function
                and ast.dump(load.value) == text
                and after(load, statement)
            ):
                self.add(module, load, held.path, held.label)

    def bind_field(self, cls: Definition, name: str, held: Held) -> None:
        """A class attribute or the field of a dataclass: every instance has it."""
        for where, load in self.uses.attributes.get(name, ()):
            holder = self.instances.owner(load.value, where)
            if holder is None:
                self._miss(where, load, held.label)
            elif self.instances.related(cls, holder):
                self.add(where, load, held.path, held.label)

    def bind_inherited(self, cls: Definition, name: str, held: Held) -> None:
        """An attribute that a base class keeps for a class: read in the class, above it or below it."""
        for where, load in self.uses.attributes.get(name, ()):
            holder = self.instances.class_of(load.value, where)
            if holder is not None and self.instances.related(cls, holder):
                self.add(where, load, held.path, held.label)

    def _miss(self, where: Module, load: ast.Attribute, label: Label) -> None:
        """An attribute of the same name, read of something unknown: it may be what is followed."""
        if maker_of(label) is not None and not self.project.meanings(load.value, where):
            lose(label, where, load)

    def bind_whole(self, owner: ast.expr, held: Held) -> None:
        """`model.encoder = FSDP(...)`, `model.layers[i] = FSDP(...)`: `model` has a wrapped part from here on."""
        module, label = held.module, held.label
        while isinstance(owner, ast.Attribute | ast.Subscript):
            owner = owner.value
        if not isinstance(owner, ast.Name) or not isinstance(label, Site):
            return
        whole = self.whole(label)
        cls = self.instances.class_of(owner, module)
        if cls is not None:
            self.partly_sharded.setdefault(cls, set()).add(whole)
        found = module.lookup(owner.id, module.scope_of(owner))
        if found is not None and owner.id != "self":
            self.bind(found[0], owner.id, Held(module, held.statement, (), whole))

    def whole(self, site: Site) -> Site:
        """What is known of a model whose part becomes a model at a site."""
        if site.partly:
            return site
        return self._wholes.setdefault(site, Site(site.module, site.call, partly=True))


def _owner_of(module: Module, scope: Scope, name: str) -> Scope:
    """The scope that a name belongs to where it is assigned: another one after `global` and `nonlocal`."""
    if name not in scope.elsewhere:
        return scope
    outer = scope.parent
    while outer is not None and (name not in outer.bindings or name in outer.elsewhere):
        outer = outer.parent
    return outer or module.scope
