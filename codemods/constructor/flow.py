"""Where an argument's value comes from: every expression that makes it, through names, branches, tables and functions."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from fsdp_migrate.facts.file import File, given
from fsdp_migrate.facts.nodes import has_double_star, has_star
from fsdp_migrate.facts.origins import Value, returned, value_of, within
from fsdp_migrate.facts.program import Definition, Inner, Program
from fsdp_migrate.facts.scopes import Assigned, Binding, Defined, Imported, Parameter

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Path = tuple[int, ...]


@dataclass(eq=False)
class Flow:
    """The expressions that can give an expression its value, and what carries it from there.

    Attributes:
        ends: those that are followed no further: constants, calls of classes, members of FSDP1's enums, functions.
        hidden: whether there are others, which the files do not show.
        passed: the names, attributes and calls that were followed.
        carriers: of these, one for each variable, attribute and function that hands the value on.
        files: those that it was followed through.
        is_kept: whether something holds the values that keeps them as they are.
        outside: the calls of what no file of the program defines.
    """

    ends: list[Value] = field(default_factory=list)
    hidden: bool = False
    passed: set[ast.AST] = field(default_factory=set)
    carriers: list[Value] = field(default_factory=list)
    files: set[File] = field(default_factory=set)
    is_kept: bool = False
    outside: list[Value] = field(default_factory=list)

    @property
    def unknown(self) -> bool:
        """Whether there are expressions that are not among the ends."""
        return self.hidden or bool(self.outside)


def flow_of(program: Program, file: File, expression: ast.expr) -> Flow:
    """Follows an expression back to all that can make its value."""
    found = _Search(program)
    found.follow(file, expression)
    return found.flow


class _Search:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.flow = Flow()
        self.pending: list[tuple[File, ast.expr, Path]] = []
        self.seen: set[tuple[ast.AST, Path]] = set()

    def follow(self, file: File, expression: ast.expr) -> None:
        self.pending.append((file, expression, ()))
        while self.pending:
            here, node, path = self.pending.pop()
            if (node, path) not in self.seen:
                self.seen.add((node, path))
                self.flow.files.add(here)
                self.step(here, node, path)

    def add(self, file: File, *nodes: ast.expr, path: Path = ()) -> None:
        self.pending += [(file, node, path) for node in nodes]

    def end(self, file: File, node: ast.expr, path: Path) -> None:
        if path:
            self.flow.hidden = True
        else:
            self.flow.ends.append(Value(node, file))

    def step(self, file: File, node: ast.expr, path: Path) -> None:
        match node:
            case ast.IfExp():
                self.add(file, node.body, node.orelse, path=path)
            case ast.BoolOp():
                self.add(file, *node.values, path=path)
            case ast.NamedExpr():
                self.add(file, node.value, path=path)
            case ast.Tuple() if path:
                element, is_it = within(node, path)
                if is_it:
                    self.add(file, element)
                else:
                    self.flow.hidden = True
            case ast.Name():
                self.name(file, node, path)
            case ast.Attribute():
                self.attribute(file, node, path)
            case ast.Subscript():
                self.entry(file, node, node.value, (), path)
            case ast.Call():
                self.call(file, node, path)
            case _:
                self.end(file, node, path)

    def name(self, file: File, node: ast.Name, path: Path) -> None:
        bindings = file.bindings(node)
        if not bindings and self.by_star(file, node, path):
            return
        if not bindings or self.program.fsdp1(node, file):
            self.end(file, node, path)
            return
        self.flow.passed.add(node)
        self.flow.carriers.append(Value(node, file))
        for binding in bindings:
            if not _is_overwritten(file, binding, bindings, node):
                self.binding(file, node, binding, path)

    def binding(self, file: File, node: ast.expr, binding: Binding, path: Path) -> None:
        match binding:
            case Assigned(value=ast.expr() as value):
                element, is_it = within(value, (*binding.path, *path))
                if is_it:
                    self.add(file, element)
                elif isinstance(value, ast.Call):
                    self.add(file, value, path=(*binding.path, *path))
                else:
                    self.flow.hidden = True
            case Parameter():
                self.parameter(file, binding)
            case Imported(member=str() as member):
                self.imported(file, node, binding.module, member, path)
            case Defined(node=ast.FunctionDef()):  # a function as a value
                self.end(file, node, path)
            case _:
                self.flow.hidden = True

    def by_star(self, file: File, node: ast.Name, path: Path) -> bool:
        """Follows a name that `from module import *` gives; returns whether one does."""
        homes: list[File] = []
        for module, _ in file.stars:
            homes += self.homes(self.program.find(module, file), node.id)
        self.in_homes(file, node, node.id, homes, path)
        return bool(homes)

    def in_homes(
        self, file: File, node: ast.expr, name: str, homes: Iterable[File], path: Path
    ) -> None:
        """Follows a name in the files that bind it."""
        for home in homes:
            self.flow.passed.add(node)
            self.flow.carriers.append(Value(node, file))
            for other in home.scope.bindings[name]:
                here = home
                if isinstance(other, Defined):
                    here = file
                self.binding(here, node, other, path)

    def imported(self, file: File, node: ast.expr, module: str, member: str, path: Path) -> None:
        """What a name means in the file that it is imported from."""
        homes = list(self.homes(self.program.find(module, file), member))
        self.in_homes(file, node, member, homes, path)
        if not homes:
            self.end(file, node, path)

    def homes(self, file: File | None, name: str) -> Iterator[File]:
        """The file that binds a name, behind its `from module import *`."""
        seen: set[File] = set()
        pending = [file]
        while pending:
            here = pending.pop()
            if here is None or here in seen:
                continue
            seen.add(here)
            if name in here.scope.bindings:
                yield here
            else:
                pending += [self.program.find(module, here) for module, _ in here.stars]

    def parameter(self, file: File, binding: Parameter) -> None:
        """What calls give for a parameter, and its default."""
        function = binding.function
        name = binding.argument.arg
        default = default_of(function, name)
        variadic = [each.arg for each in (function.args.vararg, function.args.kwarg) if each]
        if isinstance(function, ast.Lambda) or name in variadic:
            self.flow.hidden = True
            return
        calls = self.program.calls(function.name)
        if not calls:
            self.flow.hidden = True
        for other, call in calls:
            value = given(call, function, name)
            stars = has_star(call) or has_double_star(call)
            if value is not None:
                self.add(other, value)
            elif default is not None and not stars:
                self.add(file, default)
            else:
                self.flow.hidden = True

    def attribute(self, file: File, node: ast.Attribute, path: Path) -> None:
        """An enum's member ends here; an attribute of `self` is what its class stores in it."""
        owner = node.value
        if isinstance(owner, ast.Name | ast.Attribute) and self.program.fsdp1(owner, file):
            self.end(file, node, path)
            return
        cls = file.enclosing_class(node)
        if isinstance(owner, ast.Name) and owner.id in ("self", "cls") and cls is not None:
            stores = list(_stores(file, cls, node.attr))
            self.flow.passed.add(node)
            self.flow.carriers.append(Value(node, file))
            for value in stores:
                self.add(file, value, path=path)
            self.flow.hidden |= not stores
            return
        modules = [m.file for m in self.program.meanings(owner, file) if isinstance(m, Inner)]
        homes = [home for module in modules for home in self.homes(module, node.attr)]
        made = value_of(self.program, file, node)
        if homes:
            self.in_homes(file, node, node.attr, homes, path)
        elif made is not None and made.node is not node:
            self.flow.passed.add(node)
            self.flow.carriers.append(Value(node, file))
            self.add(made.file, made.node, path=path)
        else:
            self.flow.hidden = True

    def entry(
        self, file: File, node: ast.expr, table: ast.expr, others: Sequence[ast.expr], path: Path
    ) -> None:
        """The entries of a table that is written out, in its place or behind a name; an enum's member by a key ends here."""
        if key_of(self.program, file, node) is not None:
            self.end(file, node, path)
            return
        made = value_of(self.program, file, table)
        literal = None
        if made is not None:
            literal = made.node
        if made is None or not isinstance(literal, ast.Dict) or None in literal.keys:
            self.flow.hidden = True
            return
        if literal is not table:
            self.flow.passed.add(table)
            self.flow.carriers.append(Value(table, file))
        self.add(made.file, *literal.values, path=path)
        self.add(file, *others, path=path)

    def call(self, file: File, node: ast.Call, path: Path) -> None:
        if key_of(self.program, file, node) is not None:
            self.end(file, node, path)
            return
        if self.program.fsdp1(node.func, file) or "functools.partial" in self.program.dotted(
            node.func, file
        ):
            self.end(file, node, path)
            return
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
            self.entry(file, node, node.func.value, node.args[1:] or [ast.Constant(None)], path)
            return
        functions = self.functions(file, node)
        if not functions and self.makes_object(file, node):
            self.end(file, node, path)
            return
        results = [origin for made in functions for origin in returned(made)]
        if not results:
            self.flow.outside.append(Value(node, file))
            return
        self.flow.passed.add(node)
        self.flow.carriers.append(Value(node, file))
        for value, home, _ in results:
            element, is_it = within(value, path)
            if is_it:
                self.add(home, element)
            elif isinstance(value, ast.Name | ast.Call):
                self.add(home, value, path=path)
            else:
                self.flow.hidden = True

    def makes_object(self, file: File, call: ast.Call) -> bool:
        """Whether a call is of a class of the program."""
        return any(isinstance(cls.node, ast.ClassDef) for cls in defined(self.program, file, call))

    def functions(self, file: File, call: ast.Call) -> list[Definition]:
        """The functions of the program that a call can run: by name, or a method of the same class."""
        function = call.func
        cls = file.enclosing_class(call)
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            if function.value.id in ("self", "cls") and cls is not None:
                own = [node for node in cls.body if isinstance(node, _FUNCTIONS)]
                return [Definition(file, node) for node in own if node.name == function.attr]
        found = defined(self.program, file, call)
        return [each for each in found if isinstance(each.node, _FUNCTIONS)]


def _is_overwritten(
    file: File, binding: Binding, bindings: Iterable[Binding], use: ast.expr
) -> bool:
    """Whether another assignment, further down in the same block, is always between an assignment and a use."""
    if not isinstance(binding, Assigned):
        return False
    statement = file.statement(binding.target)
    if file.function(statement) is None or file.function(statement) is not file.function(use):
        return False
    block = file.block(statement)
    around = [each for each in (use, *file.ancestors(use)) if each in block]
    if not around:
        return False
    behind = block[block.index(statement) + 1 : block.index(around[0])]
    targets = [each.target for each in bindings if isinstance(each, Assigned)]
    # A walrus may be in a part of an expression that is not evaluated.
    certain = [each for each in targets if not isinstance(file.parents[each], ast.NamedExpr)]
    return not {*behind}.isdisjoint(map(file.statement, certain))


def key_of(program: Program, file: File, node: ast.expr) -> ast.expr | None:
    """The key by which one of FSDP1's enums is asked for a member: of `Strategy[key]` and `getattr(Strategy, key)`."""
    match node:
        case ast.Subscript(value=ast.Name() | ast.Attribute() as enum, slice=key):
            pass
        case ast.Call(
            func=ast.Name(id="getattr"), args=[ast.Name() | ast.Attribute() as enum, key]
        ):
            pass
        case _:
            return None
    if program.fsdp1(enum, file) == "ShardingStrategy":
        return key
    return None


def defined(program: Program, file: File, call: ast.Call) -> list[Definition]:
    """The functions and classes of the program that a call can be of, in any of its files."""
    if not isinstance(call.func, ast.Name | ast.Attribute):
        return []
    found = program.meanings(call.func, file)
    return [meaning for meaning in found if isinstance(meaning, Definition)]


def default_of(function: ast.AST, name: str) -> ast.expr | None:
    """The default of a parameter."""
    arguments: ast.arguments = function.args  # type: ignore[attr-defined]
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = dict(
        zip(
            [each.arg for each in positional][len(positional) - len(arguments.defaults) :],
            arguments.defaults,
            strict=True,
        )
    )
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if default is not None:
            defaults[argument.arg] = default
    return defaults.get(name)


def _stores(file: File, cls: ast.ClassDef, name: str) -> Iterator[ast.expr]:
    """What a class stores in an attribute of its objects, or has as its own."""
    for attribute in file.attributes.get(name, ()):
        parent = file.parents[attribute]
        if file.enclosing_class(attribute) is cls and isinstance(attribute.ctx, ast.Store):
            if isinstance(parent, ast.Assign | ast.AnnAssign) and parent.value is not None:
                yield parent.value
            else:
                yield attribute
    for statement in cls.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=own)], value=value) if own == name:
                yield value
            case ast.AnnAssign(target=ast.Name(id=own), value=ast.expr() as value) if own == name:
                yield value
