"""Where FSDP1 models go: from the call that makes one, through names, attributes, arguments and results, to every use.

The flow is followed forwards from each constructor, so its cost grows with the uses of FSDP1 and not with the project.
Within one function the order of statements counts: `model.load_state_dict(...)` above `model = FSDP(model)` is a call on
the plain module.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.index.module import Assigned, Imported, Module, Parameter, Scope
from fsdp_migrate.index.order import after, branches, reaches, same_text, share_a_loop
from fsdp_migrate.index.project import Definition, External, Project

# Methods that return the module they are called on.
SELF_RETURNING = frozenset(
    {
        "to",
        "cuda",
        "cpu",
        "train",
        "eval",
        "float",
        "half",
        "bfloat16",
        "double",
        "requires_grad_",
        "apply",
    }
)
# Calls that return a module which stands for the one given.
_TRANSPARENT = frozenset({"torch.compile", "typing.cast"})


@dataclass(frozen=True, eq=False)
class Site:
    """A place where a value becomes known to be an FSDP1 model.

    Attributes:
        call: the constructor call; None where the program only says so, by an annotation or an isinstance test.
        partly: the model is not wrapped itself, but one of its parts is.
    """

    module: Module
    call: ast.Call | None
    partly: bool = False


@dataclass(frozen=True, eq=False)
class _Value:
    """An expression that can hold a model, or a tuple with the model at `path`."""

    module: Module
    node: ast.expr
    path: tuple[int, ...] = ()


class Models:
    """The expressions of a project that hold FSDP1 models."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._sites: dict[ast.expr, set[Site]] = {}
        self._ruled_out: set[ast.expr] = set()  # behind a test that the model is none of FSDP1's
        self._seen: set[tuple[ast.AST, tuple[int, ...], Site]] = set()
        self._queue: deque[tuple[_Value, Site]] = deque()
        self._callers = _callers(project)
        self._mixed = [
            family
            for module in project.modules
            for node in module.scopes
            if isinstance(node, ast.ClassDef) and len(node.bases) > 1
            for family in [self._family(Definition(module, node))]
        ]
        self.reached: set[Module] = set()  # files in which a model is seen
        self._partly_sharded: dict[Definition, set[Site]] = {}  # classes with a wrapped part
        self._loads_of_attribute = _attribute_loads(project)
        self.constructors = list(self._find_constructors())
        self._read_tests()
        for module, call in self.constructors:
            self._add(_Value(module, call), Site(module, call))
        self._add_declared()
        while self._queue:
            value, site = self._queue.popleft()
            self._follow(value, site)

    def sites(self, expression: ast.expr) -> frozenset[Site]:
        """The places where the model that `expression` holds can have been made; empty if it holds none."""
        return frozenset(site for site in self._sites.get(expression, ()) if not site.partly)

    def sharded(self, expression: ast.expr, module: Module) -> frozenset[Site]:
        """Likewise, where a part of the model may have been wrapped and not the model itself."""
        found = set(self._sites.get(expression, ()))
        cls = self.class_of(expression, module)
        if cls is not None:
            found |= self._partly_sharded.get(cls, set())
        return frozenset(found)

    def callers_of(self, function: ast.AST) -> list[tuple[Module, ast.Call]]:
        """The calls that are known to run a function of the project."""
        return self._callers.get(function, [])

    # sources

    def _find_constructors(self) -> Iterator[tuple[Module, ast.Call]]:
        for module in self.project.modules:
            for call in module.calls:
                if self._is_class(call.func, module):
                    yield module, call

    def _is_class(self, expression: ast.expr, module: Module) -> bool:
        return self.project.fsdp1(expression, module) == "FullyShardedDataParallel"

    def _add_declared(self) -> None:
        """Parameters annotated as FSDP, and names behind a test that they are."""
        for module in self.project.modules:
            for scope in module.scopes.values():
                for name, bindings in scope.bindings.items():
                    for binding in bindings:
                        if isinstance(binding, Parameter) and self._annotated(binding, module):
                            self._bind(module, scope, name, None, (), Site(module, None))
        for module, node in self._guarded:
            self._add(_Value(module, node), Site(module, None))

    def _annotated(self, binding: Parameter, module: Module) -> bool:
        """Whether an annotation names the class: alone, quoted, or as one of several."""
        annotation = binding.argument.annotation
        return annotation is not None and any(
            isinstance(node, ast.Name | ast.Attribute | ast.Constant)
            and self._is_class(node, module)
            for node in ast.walk(annotation)
        )

    def _read_tests(self) -> None:
        """Finds what stands behind `if isinstance(model, FSDP):`, and behind its contrary."""
        self._guarded: list[tuple[Module, ast.expr]] = []
        for module in self.project.modules:
            for call in module.calls:
                if not (
                    isinstance(call.func, ast.Name)
                    and call.func.id == "isinstance"
                    and len(call.args) == 2
                ):
                    continue
                subject, kind = call.args
                if not isinstance(subject, ast.Name | ast.Attribute) or not self._is_class(
                    kind, module
                ):
                    continue
                behind, contrary = branches(module, call)
                self._guarded += [(module, node) for node in same_text(behind, subject)]
                self._ruled_out |= set(same_text(contrary, subject))

    # propagation

    def _add(self, value: _Value, site: Site) -> None:
        key = (value.node, value.path, site)
        if key in self._seen or value.node in self._ruled_out:
            return
        self._seen.add(key)
        self.reached.add(value.module)
        if not value.path:
            self._sites.setdefault(value.node, set()).add(site)
        self._queue.append((value, site))

    def _follow(self, value: _Value, site: Site) -> None:
        module, node, path = value.module, value.node, value.path
        parent = module.parents[node]
        if isinstance(parent, ast.IfExp | ast.BoolOp):
            if node is not getattr(parent, "test", None):
                self._add(_Value(module, parent, path), site)
        elif isinstance(parent, ast.Assign):
            for target in parent.targets:
                self._assign(module, target, parent, path, site)
        elif isinstance(parent, ast.AnnAssign | ast.NamedExpr):
            self._assign(module, parent.target, parent, path, site)
            if isinstance(parent, ast.NamedExpr):
                self._add(_Value(module, parent, path), site)
        elif isinstance(parent, ast.Tuple | ast.List) and isinstance(parent.ctx, ast.Load):
            self._add(_Value(module, parent, (parent.elts.index(node), *path)), site)
        elif isinstance(parent, ast.Return):
            self._return(module, parent, path, site)
        elif isinstance(parent, ast.Lambda):
            self._return_from_lambda(module, parent, path, site)
        elif isinstance(parent, ast.arguments):
            self._default(module, parent, node, site)
        elif isinstance(parent, ast.Call) and node in parent.args and not path:
            self._argument(module, parent, parent.args.index(node), None, site)
        elif isinstance(parent, ast.keyword) and not path:
            call = module.parents[parent]
            if isinstance(call, ast.Call) and parent.arg:
                self._argument(module, call, None, parent.arg, site)
        elif isinstance(parent, ast.Attribute) and not path:
            self._attribute(module, parent, site)
        elif isinstance(parent, ast.Subscript) and path and isinstance(parent.slice, ast.Constant):
            if parent.slice.value == path[0]:
                self._add(_Value(module, parent, path[1:]), site)

    def _return_from_lambda(
        self, module: Module, node: ast.Lambda, path: tuple[int, ...], site: Site
    ) -> None:
        """`wrap = lambda m: FSDP(m)`: every call of `wrap` gives a model."""
        parent = module.parents[node]
        names = parent.targets if isinstance(parent, ast.Assign) else []
        for name in names:
            for load in module.loads.get(name.id, ()) if isinstance(name, ast.Name) else ():
                call = module.parents[load]
                if isinstance(call, ast.Call) and call.func is load:
                    self._add(_Value(module, call, path), site)

    def _default(
        self, module: Module, arguments: ast.arguments, node: ast.expr, site: Site
    ) -> None:
        """`def save(model=FSDP(net))`: the default is what the parameter can hold."""
        function = module.parents[arguments]
        positional = [*arguments.posonlyargs, *arguments.args]
        pairs = [
            *zip(
                positional[len(positional) - len(arguments.defaults) :],
                arguments.defaults,
                strict=True,
            ),
            *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
        ]
        for parameter, default in pairs:
            if default is node:
                self._bind(module, module.scopes[function], parameter.arg, None, (), site)

    def _attribute(self, module: Module, node: ast.Attribute, site: Site) -> None:
        if node.attr in {"module", "_fsdp_wrapped_module"}:
            self._add(_Value(module, node), site)
            return
        call = module.parents[node]
        if node.attr in SELF_RETURNING and isinstance(call, ast.Call) and call.func is node:
            self._add(_Value(module, call), site)

    def _assign(
        self,
        module: Module,
        target: ast.expr,
        statement: ast.AST,
        path: tuple[int, ...],
        site: Site,
    ) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            if path and path[0] < len(target.elts):
                self._assign(module, target.elts[path[0]], statement, path[1:], site)
        elif isinstance(target, ast.Name):
            scope = _owner_of(module, module.scope_of(target), target.id)
            self._bind(module, scope, target.id, statement, path, site)
        elif isinstance(target, ast.Attribute):
            self._bind_attribute(module, target.value, target.attr, statement, path, site)
            self._bind_whole(module, target, statement, site)
        elif isinstance(target, ast.Subscript):
            self._bind_whole(module, target, statement, site)

    def _bind_whole(
        self, module: Module, target: ast.Attribute | ast.Subscript, statement: ast.AST, site: Site
    ) -> None:
        """`model.encoder = FSDP(...)`, `model.layers[i] = FSDP(...)`: `model` has a wrapped part from here on."""
        root: ast.expr = target
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        if not isinstance(root, ast.Name):
            return
        whole = Site(site.module, site.call, partly=True)
        cls = self.class_of(root, module)
        if cls is not None:
            self._partly_sharded.setdefault(cls, set()).add(whole)
        found = module.lookup(root.id, module.scope_of(root))
        if found is not None and root.id != "self":
            self._bind(module, found[0], root.id, statement, (), whole)

    def _bind(
        self,
        module: Module,
        scope: Scope,
        name: str,
        statement: ast.AST | None,
        path: tuple[int, ...],
        site: Site,
    ) -> None:
        for load in module.loads.get(name, ()):
            found = module.lookup(name, module.scope_of(load))
            if found is None or found[0] is not scope:
                continue
            here = module.scope_of(load) is scope
            if statement is None or not here or reaches(module, scope, name, statement, load):
                self._add(_Value(module, load, path), site)
        if scope is module.scope:
            self._bind_importers(module, name, path, site)

    def _bind_importers(self, module: Module, name: str, path: tuple[int, ...], site: Site) -> None:
        for other in self.project.modules:
            for scope in other.scopes.values():
                for local, bindings in scope.bindings.items():
                    for binding in bindings:
                        if (
                            isinstance(binding, Imported)
                            and binding.member == name
                            and self.project.find(binding.module, other) is module
                            and other is not module
                        ):
                            self._bind(other, scope, local, None, path, site)

    def _bind_attribute(
        self,
        module: Module,
        owner: ast.expr,
        name: str,
        statement: ast.AST,
        path: tuple[int, ...],
        site: Site,
    ) -> None:
        """`owner.name` holds the model from `statement` on."""
        cls = self.class_of(owner, module)
        function = module.enclosing_function(statement)
        text = ast.dump(owner)
        for where, load in self._loads_of_attribute.get(name, ()):
            together = where is module and module.enclosing_function(load) is function
            if cls is None:  # attribute of something unknown: the same text in the same function
                if together and ast.dump(load.value) == text and after(load, statement):
                    self._add(_Value(module, load, path), site)
                continue
            holder = self.class_of(load.value, where)
            if holder is None or not self._related(cls, holder):
                continue
            if not together or after(load, statement) or share_a_loop(module, statement, load):
                self._add(_Value(where, load, path), site)

    def _related(self, one: Definition, other: Definition) -> bool:
        """Whether one object can be an instance of both classes."""
        if self._family(one) & self._family(other):
            return True
        return any({one, other} <= family for family in self._mixed)

    def class_of(self, expression: ast.expr, module: Module) -> Definition | None:
        """The class whose instance an expression is: `self` in a method, or a name bound to `Class(...)`."""
        if isinstance(expression, ast.Call):
            return self._class(expression.func, module)
        if not isinstance(expression, ast.Name):
            return None
        found = module.lookup(expression.id, module.scope_of(expression))
        if found is None:
            return None
        bindings = found[1]
        if len(bindings) != 1:
            return None
        binding = bindings[0]
        if isinstance(binding, Parameter):
            owner = module.parents.get(binding.function)
            if binding.position == 0 and isinstance(owner, ast.ClassDef):
                return Definition(module, owner)
            annotation = binding.argument.annotation
            return self._class(annotation, module) if annotation is not None else None
        if (
            isinstance(binding, Assigned)
            and not binding.path
            and isinstance(binding.value, ast.Call)
        ):
            return self._class(binding.value.func, module)
        return None

    def _class(self, expression: ast.expr, module: Module) -> Definition | None:
        found = self.project.definition(expression, module)
        return found if found is not None and isinstance(found.node, ast.ClassDef) else None

    def _family(self, cls: Definition) -> frozenset[Definition]:
        return frozenset({cls, *(b for b in self.project.bases(cls) if isinstance(b, Definition))})

    def _return(self, module: Module, node: ast.Return, path: tuple[int, ...], site: Site) -> None:
        function = module.enclosing_function(node)
        for where, call in self._callers.get(function, ()):
            self._add(_Value(where, call, path), site)
        owner = module.parents.get(function) if function is not None else None
        if isinstance(owner, ast.ClassDef) and isinstance(function, ast.FunctionDef):
            self._return_from_method(Definition(module, owner), function, path, site)

    def _return_from_method(
        self, owner: Definition, function: ast.FunctionDef, path: tuple[int, ...], site: Site
    ) -> None:
        """`builder.build(m)` and, for a property, `builder.model`, where the class of `builder` is known."""
        is_property = any(ast.unparse(d) == "property" for d in function.decorator_list)
        for where, load in self._loads_of_attribute.get(function.name, ()):
            holder = self.class_of(load.value, where)
            if holder is None or owner not in self._family(holder):
                continue
            call = where.parents[load]
            if is_property:
                self._add(_Value(where, load, path), site)
            elif isinstance(call, ast.Call) and call.func is load:
                self._add(_Value(where, call, path), site)

    def _argument(
        self, module: Module, call: ast.Call, position: int | None, keyword: str | None, site: Site
    ) -> None:
        if isinstance(call.func, ast.Name) and call.func.id == "setattr" and position == 2:
            owner, attribute = call.args[0], call.args[1]
            if isinstance(attribute, ast.Constant):
                self._bind_attribute(module, owner, str(attribute.value), call, (), site)
            return
        function, shift = self._callee(call, module)
        if function is None and keyword is not None:
            made = self.project.definition(call.func, module)
            if made is not None and isinstance(made.node, ast.ClassDef):  # a dataclass: its fields
                self._bind_field(made, keyword, site)
                return
        if function is None:
            dotted = self.project.dotted(call.func, module)
            if dotted & _TRANSPARENT:
                self._add(_Value(module, call), site)
            return
        assert not isinstance(function.node, ast.ClassDef)
        scope = function.module.scopes[function.node]
        for name, bindings in scope.bindings.items():
            for binding in bindings:
                if not isinstance(binding, Parameter):
                    continue
                by_position = (
                    position is not None
                    and binding.position == position + shift
                    and not any(
                        isinstance(argument, ast.Starred) for argument in call.args[:position]
                    )
                )
                if by_position or (keyword is not None and name == keyword):
                    self._bind(function.module, scope, name, None, (), site)

    def _bind_field(self, cls: Definition, name: str, site: Site) -> None:
        for where, load in self._loads_of_attribute.get(name, ()):
            holder = self.class_of(load.value, where)
            if holder is not None and cls in self._family(holder):
                self._add(_Value(where, load), site)

    def _callee(self, call: ast.Call, module: Module) -> tuple[Definition | None, int]:
        """The project's function that a call runs, and how many parameters stand before its first argument (`self`)."""
        made = self.project.definition(call.func, module)
        if made is not None:
            if isinstance(made.node, ast.ClassDef):
                return self.project.method(made, "__init__"), 1
            return made, 0
        if not isinstance(call.func, ast.Attribute):
            return None, 0
        owner = self.class_of(call.func.value, module)
        method = self.project.method(owner, call.func.attr) if owner is not None else None
        if method is None:
            return None, 0
        static = any(ast.unparse(d) == "staticmethod" for d in method.node.decorator_list)
        return method, 0 if static else 1


def _owner_of(module: Module, scope: Scope, name: str) -> Scope:
    """The scope that a name belongs to where it is assigned: another one after `global` and `nonlocal`."""
    if name not in scope.elsewhere:
        return scope
    outer = scope.parent
    while outer is not None and (name not in outer.bindings or name in outer.elsewhere):
        outer = outer.parent
    return outer or module.scope


def _callers(project: Project) -> dict[ast.AST | None, list[tuple[Module, ast.Call]]]:
    table: dict[ast.AST | None, list[tuple[Module, ast.Call]]] = {}
    for module in project.modules:
        for call in module.calls:
            for meaning in project.meanings(call.func, module):
                if isinstance(meaning, Definition):
                    table.setdefault(meaning.node, []).append((module, call))
                elif isinstance(meaning, External):
                    break
            if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
                owner = module.enclosing_class(call)
                if owner is not None and call.func.value.id == "self":
                    method = project.method(Definition(module, owner), call.func.attr)
                    if method is not None:
                        table.setdefault(method.node, []).append((module, call))
    return table


def _attribute_loads(project: Project) -> dict[str, list[tuple[Module, ast.Attribute]]]:
    table: dict[str, list[tuple[Module, ast.Attribute]]] = {}
    for module in project.modules:
        for attribute in module.attributes:
            if isinstance(attribute.ctx, ast.Load):
                table.setdefault(attribute.attr, []).append((module, attribute))
    return table
