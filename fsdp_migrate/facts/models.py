"""Which expressions can hold an FSDP1 model: good enough to report a use, never to prove what an expression is.

A value is followed back from where it is used: through names, attributes of the same class, results of functions and
arguments of calls, each only when asked. Nothing is followed forward.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from fsdp_migrate.facts.file import File, last_name, values_given
from fsdp_migrate.facts.names import CLASS
from fsdp_migrate.facts.program import Definition, External, Program
from fsdp_migrate.facts.scopes import Assigned, Imported, Opaque, Parameter
from fsdp_migrate.facts.values import element, reaches, reaching, within

# Methods that return the module that they are called on.
SAME = frozenset({"bfloat16", "cpu", "cuda", "double", "eval", "float", "half", "requires_grad_"})
SAME |= {"to", "train"}
# Functions that return the model that they are given, or a wrapper around it.
_WRAPPERS = frozenset({"cast", "compile"})


class Models:
    """The models of one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._answers: dict[ast.AST, bool] = {}
        self._depth = (
            0  # how many answers are being looked for, each for the sake of the one before
        )
        self._fields: dict[str, bool] = {}
        self._given: dict[str, list[tuple[File, ast.expr]]] = {}
        self._texts: dict[Imported, bytes] = {}  # of the files that define the imported classes
        self._classes: dict[ast.Call, list[str]] = {}

    def constructors(self, file: File) -> list[ast.Call]:
        """The calls in a file that wrap a model: of FSDP1's class, of a subclass of it, of a `partial` of it."""
        return [call for call in file.of(ast.Call) if self.is_constructor(call, file)]

    def is_constructor(self, call: ast.Call, file: File) -> bool:
        """Whether a call wraps a model."""
        name = last_name(call.func)
        if name == "wrap" and self.program.fsdp1(call.func, file) == name:
            return True
        return self.is_class(call.func, file)

    def is_class(self, expression: ast.expr, file: File) -> bool:
        """Whether an expression can be FSDP1's class, a subclass of it in the program, or a `partial` of one."""
        if not isinstance(expression, ast.Name | ast.Attribute):
            return False
        if self.program.fsdp1(expression, file) == CLASS:
            return True
        return bool(self.subclasses and self._subclass(expression, file)) or self._is_partial(
            expression, file
        )

    def is_subclass(self, definition: Definition) -> bool:
        """Whether a class of the program has FSDP1's among its bases."""
        return definition.node in self.subclasses

    @cached_property
    def subclasses(self) -> set[ast.AST]:
        """The classes of the program that have FSDP1's among their bases."""
        found: set[ast.AST] = set()
        heirs: dict[ast.AST, list[ast.ClassDef]] = {}
        for file in self.program.files:
            for cls in file.of(ast.ClassDef):
                for base in cls.bases:
                    if self.program.fsdp1(base, file) == CLASS:
                        found.add(cls)
                    for above in self.program.definitions(base, file):
                        heirs.setdefault(above.node, []).append(cls)
        pending = list(found)
        while pending:
            below = [cls for cls in heirs.get(pending.pop(), ()) if cls not in found]
            found.update(below)
            pending += below
        return found

    def _subclass(self, expression: ast.expr, file: File) -> bool:
        definitions = self.program.definitions(expression, file)
        return any(definition.node in self.subclasses for definition in definitions)

    def _is_partial(self, expression: ast.expr, file: File) -> bool:
        found = file.variable(expression)
        return found is not None and any(
            isinstance(binding.value, ast.Call)
            and "functools.partial" in self.program.dotted(binding.value.func, file)
            and bool(binding.value.args)
            and binding.value.args[0] is not expression
            and isinstance(binding.value.args[0], ast.Name | ast.Attribute)
            and self.program.fsdp1(binding.value.args[0], file) == CLASS
            for binding in found.assigned
        )

    def can_hold(self, expression: ast.expr, file: File) -> bool:
        """Whether an expression can be a model that FSDP1 wrapped."""
        if expression not in self._answers:
            self._answers[expression] = False  # what leads back to itself adds nothing
            self._depth += 1
            self._answers[expression] = self._can_hold(expression, file)
            self._depth -= 1
        return self._answers[expression]

    def _can_hold(self, expression: ast.expr, file: File) -> bool:
        if isinstance(expression, ast.Call):
            return self._made_by(expression, file)
        if isinstance(expression, ast.IfExp):
            return self.can_hold(expression.body, file) or self.can_hold(expression.orelse, file)
        if isinstance(expression, ast.NamedExpr | ast.Await):
            return self.can_hold(expression.value, file)
        if isinstance(expression, ast.Name):
            return self._named(expression, file)
        if isinstance(expression, ast.Attribute):
            return self._kept(expression, file)
        if isinstance(expression, ast.Subscript):
            return self.can_hold(expression.value, file)
        held = expression.values if isinstance(expression, ast.Dict) else ()
        if isinstance(expression, ast.Tuple | ast.List):
            held = expression.elts
        return any(self.can_hold(each, file) for each in held)

    def _made_by(self, call: ast.Call, file: File, path: tuple[int, ...] = ()) -> bool:
        if self.is_constructor(call, file):
            return True
        name = last_name(call.func)
        if name in SAME | _WRAPPERS:
            receiver = [call.func.value] if isinstance(call.func, ast.Attribute) else []
            if any(self.can_hold(each, file) for each in (*receiver, *call.args)):
                return True
        definition = self._called(call, file)
        if definition is None or isinstance(definition.node, ast.ClassDef):
            return name == "fsdp_modules"
        return any(
            statement.value is not None
            and self._returned(within(statement.value, path)[0], definition, call, file)
            for statement in definition.file.of(ast.Return)
            if definition.file.function(statement) is definition.node
        )

    def _returned(
        self, value: ast.expr, definition: Definition, call: ast.Call, file: File
    ) -> bool:
        """Whether a function returns such a model to a call; of a parameter, what this call gives for it counts."""
        if not isinstance(value, ast.Name):
            return self.can_hold(value, definition.file)
        bindings = definition.file.bindings(value)
        for binding in bindings:
            if isinstance(binding, Parameter) and binding.function is definition.node:
                assert not isinstance(binding.function, ast.Lambda)
                passed = given(call, binding.function, binding.argument.arg)
                assigned = [each for each in bindings if isinstance(each, Assigned)]
                return (passed is not None and self.can_hold(passed, file)) or any(
                    self.can_hold(each.value, definition.file)
                    for each in reaching(definition.file, assigned, value)
                )
        return self.can_hold(value, definition.file)

    def _called(self, call: ast.Call, file: File) -> Definition | None:
        if isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "") == "self":
            cls = file.enclosing_class(call)
            methods = cls.body if cls else []
            for method in methods:
                if isinstance(method, ast.FunctionDef) and method.name == call.func.attr:
                    return Definition(file, method)
            return None
        if isinstance(call.func, ast.Name | ast.Attribute):
            return self.program.definition(call.func, file)
        return None

    def _named(self, name: ast.Name, file: File) -> bool:
        bindings = file.bindings(name)
        assigned = [binding for binding in bindings if isinstance(binding, Assigned)]
        if any(self._bound(each, file) for each in reaching(file, assigned, name)):
            return True
        for binding in bindings:
            if isinstance(binding, Parameter) and self._passed(binding, file):
                return True
            if isinstance(binding, Opaque) and isinstance(
                binding.node, ast.For | ast.comprehension
            ):
                if self._iterated(binding.node, name.id, file):
                    return True
        return False

    def _iterated(self, loop: ast.For | ast.comprehension, name: str, file: File) -> bool:
        """Whether a loop binds a name to such models, one after the other; also by `zip` or `enumerate` of them."""
        items = loop.iter
        if isinstance(items, ast.Call) and last_name(items.func) in {"items", "values"}:
            return self.can_hold(getattr(items.func, "value", items), file)
        if isinstance(loop.target, ast.Name):
            return self.can_hold(items, file)
        if not isinstance(items, ast.Call) or last_name(items.func) not in {"zip", "enumerate"}:
            return False
        targets = getattr(loop.target, "elts", [])[last_name(items.func) == "enumerate" :]
        return any(
            getattr(target, "id", "") == name and self.can_hold(each, file)
            for target, each in zip(targets, items.args, strict=False)
        )

    def _bound(self, assigned: Assigned, file: File) -> bool:
        """Whether an assignment binds such a model: one of the values that a function returns, where it takes them apart."""
        value = element(assigned)
        if value is None and isinstance(assigned.value, ast.Call):
            return self._made_by(assigned.value, file, assigned.path)
        return self.can_hold(value or assigned.value, file)

    def _passed(self, parameter: Parameter, file: File) -> bool:
        """Whether a call somewhere passes such a model for a parameter, or its annotation names the class."""
        annotation = parameter.argument.annotation
        if annotation is not None and any(
            isinstance(node, ast.Name | ast.Attribute | ast.Constant)
            and self.program.fsdp1(node, file) == CLASS
            for node in ast.walk(annotation)
        ):
            return True
        function = parameter.function
        if isinstance(function, ast.Lambda):
            return False
        return any(
            self.can_hold(value, other)
            for other, value in self.arguments(function, parameter, file)
        )

    def arguments(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef, parameter: Parameter, file: File
    ) -> Iterator[tuple[File, ast.expr]]:
        """What the calls of a function by its name give for a parameter."""
        name = function.name
        if name == "__init__" and (cls := file.enclosing_class(function)):
            name = cls.name
        for other, call in self.calls.get(name, ()):
            called = None if _is_method(function) else self._called(call, other)
            if called is not None and called.node is not function:
                continue
            value = given(call, function, parameter.argument.arg)
            if value is not None:
                yield other, value

    @cached_property
    def calls(self) -> dict[str, list[tuple[File, ast.Call]]]:
        """The calls of each name in the files that mention FSDP."""
        found: dict[str, list[tuple[File, ast.Call]]] = {}
        for file in self.program.files:
            for name, calls in file.calls.items():
                found.setdefault(name, []).extend((file, call) for call in calls)
        return found

    def _kept(self, attribute: ast.Attribute, file: File) -> bool:
        """Whether such a model was assigned to an attribute of that name: of `self` in its class, else anywhere in the file."""
        cls = file.enclosing_class(attribute)
        own = getattr(attribute.value, "id", "") == "self"
        for store in file.attributes.get(attribute.attr, ()):
            path: tuple[int, ...] = ()
            statement = around = file.parents.get(store)
            if isinstance(around, ast.Tuple):  # `self.model, self.optimizer = build()`
                statement, path = file.parents[around], (around.elts.index(store),)
            if not isinstance(store.ctx, ast.Store) or not isinstance(
                statement, ast.Assign | ast.AnnAssign
            ):
                continue
            if own and file.enclosing_class(store) is not cls:
                continue
            if statement.value is None or not reaches(file, store, attribute):
                continue
            if self._bound(Assigned(store, statement.value, path), file):
                return True
        return not own and self._is_held_field(attribute.attr)

    def _is_held_field(self, name: str) -> bool:
        if name not in self._fields:
            found = self._is_field(name)
            if not found and self._depth > 1:
                return False  # perhaps only because another question is still open
            self._fields[name] = found
        return self._fields[name]

    def _is_field(self, name: str) -> bool:
        """Whether a field of the program's dataclasses is given such a model: `Models(generator=FSDP(...))`."""
        if name not in self._given:
            self._given[name] = [*self._given_for(name)]
        return any(self.can_hold(value, file) for file, value in self._given[name])

    def _given_for(self, name: str) -> Iterator[tuple[File, ast.expr]]:
        """What calls that make an object give for a field of its class."""
        for file, call in (*self._made.get(name, ()), *self._made.get("", ())):
            fields = self._fields_of(call, file) if self._may_have(call, file, name) else []
            if name in fields:
                place = fields.index(name)
                named = [each.value for each in call.keywords if each.arg == name]
                for value in named or call.args[place : place + 1]:
                    yield file, value

    def _may_have(self, call: ast.Call, file: File, name: str) -> bool:
        """Whether the class that a call makes an object of can have a field, by the text of its file: few are parsed for it."""
        for binding in file.bindings(call.func):
            if isinstance(binding, Imported) and binding.member is not None:
                if binding not in self._texts:
                    path = self.program.locate(binding.module, file.folder)
                    text = self.program.data(path) if path is not None else b""
                    defined = f"class {binding.member}".encode() in text
                    self._texts[binding] = text if defined else b""
                if text := self._texts[binding]:
                    return f"{name}:".encode() in text or f"{name} :".encode() in text
        return True

    @cached_property
    def _made(self) -> dict[str, list[tuple[File, ast.Call]]]:
        """The calls that make an object with something in it that can be a model, by keyword; "" for those by position."""
        found: dict[str, list[tuple[File, ast.Call]]] = {}
        for name, calls in self.calls.items():
            for file, call in calls if name[:1].isupper() else ():
                if any(not isinstance(value, ast.Constant) for value in values_given(call)):
                    keywords = {keyword.arg for keyword in call.keywords if keyword.arg}
                    for key in (*keywords, *([""] if call.args else ())):
                        found.setdefault(key, []).append((file, call))
        return found

    def _fields_of(self, call: ast.Call, file: File) -> list[str]:
        """The fields of the class that a call makes an object of."""
        if call not in self._classes:
            made = self._called(call, file)
            body = made.node.body if made and isinstance(made.node, ast.ClassDef) else []
            annotated = [node.target for node in body if isinstance(node, ast.AnnAssign)]
            self._classes[call] = [each.id for each in annotated if isinstance(each, ast.Name)]
        return self._classes[call]


def models_of(program: Program) -> Models:
    """The models of a program."""
    return program.once(Models)


def _is_method(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return names[:1] in (["self"], ["cls"])


def given(
    call: ast.Call, function: ast.FunctionDef | ast.AsyncFunctionDef, parameter: str
) -> ast.expr | None:
    """What a call gives for a parameter of a function."""
    for keyword in call.keywords:
        if keyword.arg == parameter:
            return keyword.value
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    position = names.index(parameter) - _is_method(function) if parameter in names else -1
    if 0 <= position < len(call.args) and not isinstance(call.args[position], ast.Starred):
        return call.args[position]
    return None


def is_module(program: Program, cls: Definition) -> bool:
    """Whether a class is certainly an nn.Module."""
    return any(
        isinstance(above, External) and above.dotted.startswith("torch.nn.")
        for above in program.classes_above(cls)
    )
