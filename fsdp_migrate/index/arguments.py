"""From an argument to the parameter of the project's function that gets it, or into the result of a known one."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from fsdp_migrate.index.bindings import Bindings, Held
from fsdp_migrate.index.instances import Instances
from fsdp_migrate.index.labels import Label, Maker, Result, Site, lose, maker_of
from fsdp_migrate.index.module import Module
from fsdp_migrate.index.paths import Item, Path, key_of, passed_on
from fsdp_migrate.index.project import Definition, Project
from fsdp_migrate.index.uses import Uses

# Calls that return a module, or a function, which stands for the one given.
_TRANSPARENT = {"torch.compile": 0, "typing.cast": 1, "staticmethod": 0}
_CONTAINERS = frozenset(f"torch.nn.{name}" for name in ("ModuleList", "ModuleDict", "Sequential"))
_ADDING = frozenset({"append", "appendleft", "add", "insert"})
_LOOKING = frozenset(
    {"print", "isinstance", "callable", "len", "type", "id", "repr", "str", "bool", "hasattr"}
)


class Arguments:
    """What a call does with a followed value that it is given."""

    def __init__(
        self,
        uses: Uses,
        instances: Instances,
        bindings: Bindings,
        add: Callable[[Module, ast.expr, Path, Label], None],
    ) -> None:
        self.uses = uses
        self.project: Project = uses.project
        self.instances = instances
        self.bindings = bindings
        self.add = add

    def give(
        self, module: Module, call: ast.Call, argument: ast.expr, path: Path, label: Label
    ) -> bool:
        """Follows an argument of a call; False if nothing is known of what the call does with it."""
        position = call.args.index(argument) if argument in call.args else None
        keyword = next((k.arg for k in call.keywords if k.value is argument), None)
        if position is None and keyword is None:
            return False  # **value
        function, shift = self.callee(call, module)
        if function is not None:
            heir = self._heir(call, module)
            if heir is not None:
                return self._to_base(heir, function, shift, position, keyword, module, label)
            if any(isinstance(a, ast.Starred) for a in call.args[:position]):
                return False
            return self._to_parameter(module, function, shift, position, keyword, path, label)
        made = self.project.definition(call.func, module)
        if made is not None and isinstance(made.node, ast.ClassDef):
            return self._to_field(module, made, position, keyword, path, label)
        return self._to_other(module, call, position, keyword, path, label)

    def spread(self, module: Module, call: ast.Call, path: Path, label: Label) -> bool:
        """`Sequential(*models)`."""
        if self._is_any(call.func, module, {"torch.nn.Sequential"}) and path:
            self._contain(module, call, (Item(), *path[1:]), label)
            return True
        return False

    def _to_other(
        self,
        module: Module,
        call: ast.Call,
        position: int | None,
        keyword: str | None,
        path: Path,
        label: Label,
    ) -> bool:
        """To a function of another package, a builtin, or a method of something unknown."""
        func = call.func
        names = set(self.project.dotted(func, module))
        if isinstance(func, ast.Name) and module.lookup(func.id, module.scope_of(func)) is None:
            names.add(func.id)
        names = {"OrderedDict" if n == "collections.OrderedDict" else n for n in names}
        if "setattr" in names and position == 2:
            return self._set_attribute(module, call, path, label)
        if names & _LOOKING:
            return True
        if any(name in _TRANSPARENT and _TRANSPARENT[name] == position for name in names):
            self.add(module, call, path, label)
            return True
        if names & {"functools.partial", "map"} and position == 0 and not path:
            return self._apply(module, call, names, label)
        if "dict" in names and keyword is not None:
            self.add(module, call, (Item(keyword, mapping=True), *path), label)
            return True
        for name in names:
            inside = passed_on(name, position, path)
            if inside is not None:
                self._contain(module, call, inside, label)
                return True
        if isinstance(func, ast.Attribute) and position is not None:
            return self._to_method(module, call, func, position, path, label)
        return False

    def _contain(self, module: Module, call: ast.Call, path: Path, label: Label) -> None:
        """The result of a call holds the value; a module that does has a wrapped part."""
        self.add(module, call, path, label)
        if isinstance(label, Site) and self._is_any(call.func, module, _CONTAINERS):
            self.add(module, call, (), self.bindings.whole(label))

    def _is_any(self, function: ast.expr, module: Module, names: frozenset[str] | set[str]) -> bool:
        return bool(self.project.dotted(function, module) & names)

    def _apply(self, module: Module, call: ast.Call, names: set[str], label: Label) -> bool:
        """`partial(wrap, ...)` makes what `wrap` makes; `map(wrap, models)` many of them."""
        if isinstance(label, Result):
            if "map" in names:
                self.add(module, call, (Item(), *label.path), label.of)
            else:
                self.add(module, call, (), label)
            return True
        if isinstance(label, Maker) and "map" not in names and len(call.args) == 1:
            label.further.append((module, call))
            self.add(module, call, (), label)
            return True
        return False

    def _set_attribute(self, module: Module, call: ast.Call, path: Path, label: Label) -> bool:
        """`setattr(owner, name, model)`: under a name that is not in sight, `owner` still has a wrapped part."""
        owner, name = call.args[0], key_of(call.args[1])
        held = Held(module, call, path, label)
        self.bindings.bind_whole(owner, held)
        if not isinstance(name, str):
            return False
        self.bindings.bind_attribute(owner, name, held)
        return True

    def _to_method(
        self,
        module: Module,
        call: ast.Call,
        func: ast.Attribute,
        position: int,
        path: Path,
        label: Label,
    ) -> bool:
        """`models.append(model)`, `net.add_module(name, model)`."""
        last = position == len(call.args) - 1
        held = Held(module, call, path, label)
        if func.attr in _ADDING and last:
            self.bindings.store(func.value, held.at((Item(), *path)))
        elif func.attr == "extend" and path:
            self.bindings.store(func.value, held)
        elif func.attr in {"add_module", "register_module"} and position == 1:
            name = key_of(call.args[0])
            if isinstance(name, str):
                self.bindings.bind_attribute(func.value, name, held)
        else:
            return False
        self.bindings.bind_whole(func.value, held)
        return True

    def _to_parameter(
        self,
        module: Module,
        function: Definition,
        shift: int,
        position: int | None,
        keyword: str | None,
        path: Path,
        label: Label,
    ) -> bool:
        assert not isinstance(function.node, ast.ClassDef)
        scope, arguments = function.module.scopes[function.node], function.node.args
        positional = [*arguments.posonlyargs, *arguments.args]
        name: str | None = None
        if position is not None and position + shift < len(positional):
            name = positional[position + shift].arg
        elif position is not None and arguments.vararg is not None:
            name = arguments.vararg.arg
            path = (Item(position + shift - len(positional)), *path)
        elif keyword in {a.arg for a in [*arguments.args, *arguments.kwonlyargs]}:
            name = keyword
        elif keyword is not None and arguments.kwarg is not None:
            name = arguments.kwarg.arg
            path = (Item(keyword, mapping=True), *path)
        if name is None:
            return False
        self.bindings.bind(scope, name, Held(function.module, None, path, label))
        if maker_of(label) is not None and self._may_be_overridden(function):
            lose(label, module, function.node)
        return True

    def _may_be_overridden(self, function: Definition) -> bool:
        """Whether a call of a method can run another class's instead."""
        owner = function.module.parents[function.node]
        if not isinstance(owner, ast.ClassDef) or function.node.name == "__init__":
            return False
        cls = Definition(function.module, owner)
        others = self.uses.methods.get(function.node.name, ())
        return any(o != cls and self.instances.related(cls, o) for o in others)

    def _to_field(
        self,
        module: Module,
        cls: Definition,
        position: int | None,
        keyword: str | None,
        path: Path,
        label: Label,
    ) -> bool:
        """A class without `__init__`: a dataclass, whose parameters are its fields."""
        fields = list(self._fields(cls))
        if position is not None and position < len(fields):
            keyword = fields[position]
        if keyword is None:
            return False
        self.bindings.bind_field(cls, keyword, Held(module, None, path, label))
        return True

    def _fields(self, cls: Definition) -> Iterator[str]:
        assert isinstance(cls.node, ast.ClassDef)
        for statement in cls.node.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                yield statement.target.id

    def callee(self, call: ast.Call, module: Module) -> tuple[Definition | None, int]:
        """The project's function that a call runs, and how many parameters stand before its first argument (`self`)."""
        made = self.project.definition(call.func, module)
        if made is not None:
            if isinstance(made.node, ast.ClassDef):
                return self.project.method(made, "__init__"), 1
            return made, 0
        if not isinstance(call.func, ast.Attribute):
            return None, 0
        method = self._method(call.func, module)
        if method is None:
            return None, 0
        static = any(ast.unparse(d) == "staticmethod" for d in method.node.decorator_list)
        return method, 0 if static else 1

    def _method(self, function: ast.Attribute, module: Module) -> Definition | None:
        heir = self._heir_of(function, module)
        if heir is not None:
            return self._above(heir, function.attr)
        owner = self.instances.class_of(function.value, module)
        return self.project.method(owner, function.attr) if owner is not None else None

    def _heir(self, call: ast.Call, module: Module) -> Definition | None:
        """The class in whose method `super().method(...)` is called."""
        return self._heir_of(call.func, module) if isinstance(call.func, ast.Attribute) else None

    def _heir_of(self, function: ast.Attribute, module: Module) -> Definition | None:
        receiver = function.value
        if isinstance(receiver, ast.Call) and isinstance(receiver.func, ast.Name):
            around = module.enclosing_class(function)
            if receiver.func.id == "super" and around is not None:
                return Definition(module, around)
        return None

    def _to_base(
        self,
        heir: Definition,
        function: Definition,
        shift: int,
        position: int | None,
        keyword: str | None,
        module: Module,
        label: Label,
    ) -> bool:
        """`super().__init__(model)`, where the base class keeps it: in `heir`'s instances, and not in its siblings'."""
        assert not isinstance(function.node, ast.ClassDef)
        positional = [a.arg for a in [*function.node.args.posonlyargs, *function.node.args.args]]
        if position is not None:
            keyword = dict(enumerate(positional)).get(position + shift)
        for node in ast.walk(function.node):
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Name)
                and node.value.id == keyword
            ):
                for target in node.targets:
                    if isinstance(target, ast.Attribute):
                        held = Held(module, None, (), label)
                        self.bindings.bind_inherited(heir, target.attr, held)
        return False

    def _above(self, cls: Definition, name: str) -> Definition | None:
        """The method that `super().name` means."""
        for base in self.project.bases(cls):
            if isinstance(base, Definition) and isinstance(base.node, ast.ClassDef):
                found = self.project.method(base, name)
                if found is not None:
                    return found
        return None
