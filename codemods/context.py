"""One file as a codemod sees it: its facts, its syntax tree, and what is known of the whole project."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.codemods.edit.arguments import ArgumentEdits, edit_call
from fsdp_migrate.codemods.edit.comments import comments_in
from fsdp_migrate.codemods.expressions import values_given
from fsdp_migrate.codemods.rule import Edit, Edited, Need, Statements
from fsdp_migrate.codemods.syntax import SyntaxTree
from fsdp_migrate.index.models import OTHER_WRAPPERS, Models, Site
from fsdp_migrate.index.module import Assigned, Module, Scope
from fsdp_migrate.index.names import PACKAGE, fsdp1_member, fsdp1_name
from fsdp_migrate.index.order import block_of
from fsdp_migrate.index.project import External, ModuleReference, Project
from fsdp_migrate.index.sharded import Sharded

if TYPE_CHECKING:
    from fsdp_migrate.codemods.plan import Plan

RUNTIME = "fsdp_migrate.runtime"
STATE_DICT = "torch.distributed.checkpoint.state_dict"


class Context:
    """What a codemod may ask about the file that it looks at."""

    def __init__(
        self,
        module: Module,
        project: Project,
        models: Models,
        plans: Mapping[ast.Call, Plan],
        line_length: int = 88,
        sharded: Sharded | None = None,
    ) -> None:
        self.module = module
        self.project = project
        self.models = models
        self.plans = plans
        self.line_length = line_length
        self.sharded = sharded  # FSDP2's modules, where their contract is looked at
        self._paths: dict[Module, frozenset[str]] = {}

    @cached_property
    def syntax(self) -> SyntaxTree:
        return SyntaxTree(self.module)

    def source(self, node: ast.AST) -> str:
        """The source of an expression as it stands in the file."""
        return self.module.source(node)

    def fsdp1(self, expression: ast.expr) -> str | None:
        """The FSDP1 name that an expression stands for."""
        return self.project.fsdp1(expression, self.module)

    def sites(self, expression: ast.expr) -> frozenset[Site]:
        """The constructors whose models an expression can hold."""
        return self.models.sites(expression)

    def plans_of(self, sites: Iterable[Site]) -> list[Plan]:
        """What becomes of the constructors of some models, as far as they are in sight, in the order of the source."""
        calls = [site.call for site in sites if site.call is not None]
        found = [self.plans[call] for call in calls if call in self.plans]
        return sorted(found, key=lambda p: (p.site.module.shown, p.constructor.call.lineno))

    def concerned(self, attribute: ast.Attribute) -> frozenset[Site] | None:
        """The models of which a method speaks: of a model, or of FSDP1's class with a model among its arguments.

        Empty if the class's method is not called, or the model is not known; None if it is another object's method.
        """
        sites = self.sites(attribute.value)
        if sites:
            return sites
        members = {fsdp1_member(path) for path in self.project.dotted(attribute, self.module)}
        if not any(member and member[0] == "FullyShardedDataParallel" for member in members):
            return None
        call = self.module.parents[attribute]
        if not isinstance(call, ast.Call):
            return frozenset()
        return frozenset(site for argument in values_given(call) for site in self.sites(argument))

    def name(
        self, module: str, name: str, at: ast.expr | None = None, use: ast.AST | None = None
    ) -> tuple[str, tuple[Need, ...]]:
        """How to write a name of another module here, and what to import for it.

        Where the program spells FSDP1 out (`fsdp.FullyShardedDataParallel`), a name of the same package is spelled out
        the same way and needs no import. Where the name means something else already, it is imported under another.

        Args:
            at: the reference to an FSDP1 name that makes way: the import goes where that name was imported.
            use: the place where the name is written, if there is no such reference.
        """
        if module == PACKAGE and isinstance(at, ast.Attribute):
            owners = self.project.dotted(at.value, self.module)
            if owners == {PACKAGE}:
                return f"{self.source(at.value)}.{name}", ()
        place = at or use or self.module.tree
        if self._means_something_else(f"{module}.{name}", name, place):
            local = self.free(f"fsdp_{name.lstrip('_')}", place)
            return local, (Need(module, f"{name} as {local}", at),)
        return name, (Need(module, name, at),)

    def _means_something_else(self, dotted: str, name: str, place: ast.AST) -> bool:
        for scope in {self.module.scope_of(place), self.module.scope}:
            if self.module.lookup(name, scope) is not None:
                meanings = self.project.meanings(ast.Name(name, ast.Load()), self.module, scope)
                if meanings != {External(dotted)}:
                    return True
        return False

    def spelled(self, dotted: str, at: ast.AST) -> str | None:
        """How this file already writes an external name (`torch.nn.utils` where `torch` is imported), or None."""
        package, _, _ = dotted.partition(".")
        meanings = self.project.meanings(
            ast.Name(package, ast.Load()), self.module, self.module.scope_of(at)
        )
        return dotted if meanings == {External(package)} else None

    def partial(self, use: ast.AST) -> tuple[str, tuple[Need, ...]]:
        """How to write `functools.partial` at a place, and what to import for it."""
        spelled = self.spelled("functools.partial", use)
        return (spelled, ()) if spelled else self.name("functools", "partial", use=use)

    def free(self, wanted: str, at: ast.AST) -> str:
        """`wanted`, or a longer name that means nothing yet in the function around a place."""
        names = set(self._bound_around(self.module.scope_of(at)))
        name = wanted
        while name in names:
            name = f"fsdp_{name}" if not name.startswith("fsdp_") else f"{name}_"
        return name

    def _bound_around(self, scope: Scope) -> set[str]:
        names: set[str] = set()
        here: Scope | None = scope
        while here is not None:
            names |= set(here.bindings)
            here = here.parent
        return names

    def means_builtin(self, name: str, at: ast.AST) -> bool:
        """Whether a builtin's name means the builtin at a place."""
        return self.module.lookup(name, self.module.scope_of(at)) is None

    def rename(self, reference: ast.expr, name: str) -> Edit:
        """A reference to an FSDP1 name becomes another name or dotted name."""
        kind: type[cst.CSTNode] = cst.Name if isinstance(reference, ast.Name) else cst.Attribute
        replacement = cst.parse_expression(name)
        return Edit(self.syntax.find(reference, kind), lambda updated: Edited(replacement))

    def edit_call(self, call: ast.Call, edits: ArgumentEdits, func: str) -> Edit:
        """A call gets other arguments, and calls another function."""
        function = cst.parse_expression(func)

        def apply(updated: cst.CSTNode) -> Edited:
            assert isinstance(updated, cst.Call)
            edited = edit_call(updated, edits, func=function)
            return Edited(edited.call, edited.orphans)

        return Edit(self.syntax.find(call, cst.Call), apply)

    def stands_alone(self, statement: ast.AST) -> bool:
        """Whether a simple statement has its lines to itself, so that others can take its place."""
        try:
            return isinstance(statement, ast.stmt) and isinstance(
                self.syntax.statement(statement), cst.SimpleStatementLine
            )
        except LookupError:
            return False

    def removal(self, statement: ast.stmt, *, comments_stay: bool = False) -> Edit:
        """A statement goes away; its comments stay where it stood, or whoever takes it away places them."""

        def apply(updated: cst.CSTNode) -> Statements:
            return Statements(orphans=tuple(comments_in(updated)) if comments_stay else ())

        return Edit(self.syntax.statement(statement), apply, whole=True)

    def only_fsdp1(self, expression: ast.expr) -> bool:
        """Whether a model is FSDP1's wherever it is wrapped: no file on its way uses DistributedDataParallel."""
        modules = {self.module, *(site.module for site in self.sites(expression))}
        return not any(
            path.endswith(OTHER_WRAPPERS) for module in modules for path in self._loaded(module)
        )

    def _loaded(self, module: Module) -> frozenset[str]:
        """The external names that a file uses."""
        if module not in self._paths:
            self._paths[module] = frozenset(
                path
                for loads in module.loads.values()
                for path in self.project.dotted(loads[0], module)
            )
        return self._paths[module]

    def is_only_use(self, binding: Assigned) -> bool:
        """Whether a name of this file is bound once, by a statement of its own, and read in one place only."""
        module = self.module
        if (
            not isinstance(binding.target, ast.Name)
            or binding.path
            or binding.target not in module.parents
        ):
            return False
        name = binding.target.id
        scope = module.scope_of(binding.target)
        statement = module.statement(binding.target)
        return (
            len(scope.bindings[name]) == 1
            and len(self.readers(binding)) == 1
            and isinstance(statement, ast.Assign)
            and len(statement.targets) == 1
            and len(block_of(module.parents[statement], statement)) > 1
            and not self.is_read_elsewhere(binding)
        )

    def readers(self, binding: Assigned) -> list[ast.Name]:
        """Where this file reads a name that one of its statements binds."""
        assert isinstance(binding.target, ast.Name)
        module, name = self.module, binding.target.id
        scope = module.scope_of(binding.target)
        return [
            load
            for load in module.loads.get(name, ())
            if (found := module.lookup(name, module.scope_of(load))) and found[0] is scope
        ]

    def is_read_elsewhere(self, binding: Assigned) -> bool:
        """Whether other files reach a name of this file: they import it, or name it through this module."""
        assert isinstance(binding.target, ast.Name)
        module, name = self.module, binding.target.id
        if module.scope_of(binding.target) is not module.scope:
            return False
        return bool(self.project.imports_of(module, name)) or any(
            attribute.attr == name and self._is_this_module(attribute.value, other)
            for other in self.project.connected(module) - {module}
            for attribute in other.attributes
        )

    def _is_this_module(self, expression: ast.expr, other: Module) -> bool:
        return any(
            isinstance(meaning, ModuleReference)
            and self.project.find(meaning.name, other) is self.module
            for meaning in self.project.meanings(expression, other)
        )

    def references(self) -> list[ast.expr]:
        """Every name or attribute of the file that stands for an FSDP1 name, in source order."""
        return self._references

    @cached_property
    def _references(self) -> list[ast.expr]:
        found: list[ast.expr] = []
        candidates: list[ast.expr] = [
            name for loads in self.module.loads.values() for name in loads
        ]
        candidates += self.module.attributes
        for node in candidates:
            if isinstance(getattr(node, "ctx", None), ast.Load):
                dotted = self.project.dotted(node, self.module)
                if any(fsdp1_name(path) for path in dotted):
                    found.append(node)
        return sorted(found, key=lambda node: (node.lineno, node.col_offset))
