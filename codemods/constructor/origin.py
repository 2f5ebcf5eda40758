"""Where the model of a constructor comes from: which calls make it, and who saw its parameters.

FSDP2 shards in place: `fully_shard` replaces the parameters of the model, and an optimizer that was given the old ones
trains nothing. The bridge remaps such an optimizer, and plain code asks the runtime to.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.constructor.plain import Stays
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.models import SAME, given
from fsdp_migrate.facts.file import File, last_name, root_of, values_given
from fsdp_migrate.facts.program import Definition, External, Meaning, Program
from fsdp_migrate.facts.scopes import Opaque, Parameter
from fsdp_migrate.facts.values import element, reaching

_LOOPS = (
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ListComp,
    ast.GeneratorExp,
    ast.SetComp,
    ast.DictComp,
)
_NO_MODULES = {"abc", "enum", "typing", "collections", "dataclasses"}
HINT = "record a run with `fsdp-migrate values`"
_HELD = "an optimizer may already hold the parameters that the model had before it was wrapped"
_ELSEWHERE = "the model is made elsewhere, where an optimizer may hold its parameters already"


@dataclass(eq=False)
class Origin:
    """Where one model comes from.

    Attributes:
        factories: the calls that make it.
        calls: the constructor, or where that gets a parameter, the calls of the function around it as well.
        is_part: whether it is taken out of another model.
        has_optimizer: whether an optimizer may hold the parameters that it had before.
    """

    factories: list[tuple[File, ast.Call]] = field(default_factory=list)
    calls: list[tuple[File, ast.Call]] = field(default_factory=list)
    is_part: bool = False
    has_optimizer: bool = False


def origin_of(construction: Construction) -> Origin:
    """Where a model comes from.

    Raises:
        Stays: if that is not known, or its parameters are read before it is wrapped.
    """
    search = _Search(construction.context)
    try:
        search.add_call(construction.context.file, construction.call, construction.module)
        if not search.origin.factories:
            raise Stays(_ELSEWHERE)
        if search.origin.has_optimizer and not keeps_parameters(construction):
            raise Stays(_HELD)
    except Stays as stays:
        raise Stays(f"{stays}; {HINT}") from None
    return search.origin


def keeps_parameters(construction: Construction) -> bool:
    """Whether FSDP1 certainly kept the model's parameter objects, which optimizers from before then trained."""
    value = construction.value("use_orig_params")
    return value is not None and construction.constant(value) is True


class _Search:
    def __init__(self, context: Context) -> None:
        self.context = context
        self.origin = Origin()
        self._seen: set[object] = set()

    def add_call(self, file: File, call: ast.Call, model: ast.expr | None) -> None:
        """Follows the model of one call that wraps it."""
        if model is None:
            raise Stays("the model comes from an unpacked dictionary")
        self.origin.has_optimizer |= self.reads_before(file, call, model)
        self.origin.calls.append((file, call))
        self.follow(file, model, call)

    def reads_before(self, file: File, call: ast.Call, model: ast.expr) -> bool:
        """Whether something in the same function, above a call, may keep parameters of the model."""
        function, text = file.function(call), ast.unparse(model)
        around = [n for n in file.ancestors(call) if isinstance(n, _LOOPS)]
        last = call.lineno if not any(file.function(n) is function for n in around) else sys.maxsize
        if any(
            file.function(node) is function and node.lineno < last and not is_looked_at(file, node)
            for node in _readers(file)
        ):
            return True
        return any(
            self.may_keep(file, each, text)
            for each in file.of(ast.Call)
            if each.lineno < last and each is not call and file.function(each) is function
        )

    def may_keep(self, file: File, call: ast.Call, model: str) -> bool:
        """Whether a call may keep parameters: one that makes an optimizer, or a function of the program that gets the model."""
        called = last_name(call.func)
        if re.search(r"optim|adam|sgd", called, re.IGNORECASE):
            return "load" not in called
        values = values_given(call)
        if not any(ast.unparse(value) == model for value in values):
            return False
        definition = self.context.program.definition(call.func, file)
        if definition is None or definition.node in self._seen:
            return False
        self._seen.add(definition.node)
        inside = {*ast.walk(definition.node)}
        if any(
            n in inside and not is_looked_at(definition.file, n) for n in _readers(definition.file)
        ):
            return True
        return any(
            self.may_keep(definition.file, each, ast.unparse(value))
            for each in definition.file.of(ast.Call)
            if each in inside
            for value in values_given(each)
            if isinstance(value, ast.Name)
        )

    def follow(self, file: File, model: ast.expr, at: ast.Call) -> None:
        """Follows an expression to what makes its value."""
        if model is at:
            return
        if isinstance(model, ast.Call):
            function, name = model.func, last_name(model.func)
            if isinstance(function, ast.Attribute) and name in SAME:
                self.follow(file, function.value, at)
            elif name == "deepcopy" and model.args:
                self.follow(file, model.args[0], model)
            else:
                self.made(file, model)
        elif isinstance(model, ast.IfExp):
            self.follow(file, model.body, at)
            self.follow(file, model.orelse, at)
        elif isinstance(model, ast.Name):
            self.named(file, model, at)
        elif isinstance(model, ast.Attribute | ast.Subscript):
            self.origin.is_part |= not self.set_here(file, model, at)
        else:
            raise Stays(_ELSEWHERE)

    def made(self, file: File, call: ast.Call) -> None:
        """A call that makes the model; not one that may make an optimizer of it, too."""
        definition = self.context.program.definition(call.func, file)
        if definition is not None and not isinstance(definition.node, ast.ClassDef):
            if re.search("optim", definition.file.source(definition.node), re.IGNORECASE):
                raise Stays(_ELSEWHERE)
        self.origin.factories.append((file, call))

    def named(self, file: File, name: ast.Name, at: ast.Call) -> None:
        """Follows a local name; a parameter through the calls of its function."""
        found = file.variable(name)
        if found is None or found.scope is not file.scope_of(at):
            raise Stays(_ELSEWHERE)
        for each in reaching(file, found.assigned, name):
            value = element(each) or each.value
            if each.path and re.search("optim", ast.unparse(file.statement(each.target))):
                raise Stays(_ELSEWHERE)
            if each not in self._seen:
                self._seen.add(each)
                self.follow(file, value, at)
        for binding in found.bindings:
            if isinstance(binding, Parameter):
                self.passed(file, binding)
            elif isinstance(binding, Opaque):  # of a loop, or a `with`
                raise Stays(_ELSEWHERE)

    def passed(self, file: File, parameter: Parameter) -> None:
        """Follows a parameter to the calls of its function."""
        function = parameter.function
        if isinstance(function, ast.Lambda):
            raise Stays(_ELSEWHERE)
        if function in self._seen:
            return
        self._seen.add(function)
        every = list(callers(self.context, file, function))
        if not every:
            raise Stays("no caller of the function that wraps the model was found")
        for other, call in every:
            self.add_call(other, call, given(call, function, parameter.argument.arg))

    def set_here(self, file: File, model: ast.Attribute | ast.Subscript, at: ast.Call) -> bool:
        """Follows `self.model` to its assignment above, in the same function; anything else as a part of a local model."""
        root = root_of(model)
        if root is None:
            raise Stays(_ELSEWHERE)
        if root.id != "self" or not isinstance(model, ast.Attribute):
            self.named(file, root, at)
            return False
        text = ast.unparse(model)
        values = [
            statement.value
            for store in file.attributes.get(model.attr, ())
            if isinstance(statement := file.parents.get(store), ast.Assign)
            and file.function(store) is file.function(at)
            and store.lineno < at.lineno
            and ast.unparse(store) == text
        ]
        if not values:
            raise Stays(_ELSEWHERE)
        for value in values:
            self.follow(file, value, at)
        return True


def callers(
    context: Context, file: File, function: ast.FunctionDef | ast.AsyncFunctionDef
) -> Iterator[tuple[File, ast.Call]]:
    """The calls of a function; of a method, every call of its name; of `__init__`, those that make an object of its class."""
    cls = file.parents[function]
    if isinstance(cls, ast.ClassDef) and function.name == "__init__":
        yield from _makers(context, Definition(file, cls))
        return
    method = isinstance(cls, ast.ClassDef)
    for other, call in context.models.calls.get(function.name, ()):
        if isinstance(call.func, ast.Name | ast.Attribute):
            definition = context.program.definition(call.func, other)
            if (definition is not None and definition.node is function) or (
                method and definition is None and isinstance(call.func, ast.Attribute)
            ):
                yield other, call


def _makers(context: Context, cls: Definition) -> Iterator[tuple[File, ast.Call]]:
    """The calls of a class, of those that have their `__init__` from it, and `super().__init__(...)` right below it."""
    program, made = context.program, set()
    for file in program.files:
        for other in file.of(ast.ClassDef):
            each = Definition(file, other)
            owners = [a.node for a in (each, *program.classes_above(each)) if _has_init(a)]  # type: ignore[union-attr]
            if owners[:1] == [cls.node]:
                made.add(other)
            elif owners[:2] == [other, cls.node]:
                for attribute in file.attributes.get("__init__", ()):
                    call = file.parents[attribute]
                    if isinstance(call, ast.Call) and file.enclosing_class(call) is other:
                        yield file, call
    for name in sorted({each.name for each in made}):
        for file, call in context.models.calls.get(name, ()):
            definition = program.definition(call.func, file)
            if definition is not None and definition.node in made:
                yield file, call


def _has_init(cls: Meaning) -> bool:
    body = (
        cls.node.body if isinstance(cls, Definition) and isinstance(cls.node, ast.ClassDef) else []
    )
    return any(getattr(each, "name", "") == "__init__" for each in body)


def _readers(file: File) -> Iterator[ast.Attribute]:
    """Where a file reads parameters."""
    for name in ("parameters", "named_parameters"):
        yield from file.attributes.get(name, ())


def is_looked_at(file: File, attribute: ast.Attribute) -> bool:
    """Whether parameters are only asked something: `sum(p.numel() for p in model.parameters())`, or the type of the next."""
    call = file.parents[attribute]
    user = file.parents.get(call)
    if isinstance(user, ast.Call) and getattr(user.func, "id", "") == "next":
        return isinstance(file.parents[user], ast.Attribute)
    if isinstance(user, ast.comprehension):
        whole: ast.AST = file.parents[user]
    elif isinstance(user, ast.For):
        whole = user
    else:
        return False
    target = user.target
    if attribute.attr.startswith("named_") and isinstance(target, ast.Tuple):
        target = target.elts[-1]
    names = {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
    return all(
        isinstance(file.parents[node], ast.Attribute | ast.Compare | ast.FormattedValue)
        for node in ast.walk(whole)
        if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load)
    )


def stays_inside(construction: Construction) -> bool:
    """Whether a wrapped model is used in the function around its constructor alone: by its methods and torch's functions."""
    context, call = construction.context, construction.call
    file, statement = context.file, context.file.parents[call]
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if not isinstance(target, ast.Name) or not isinstance(construction.module, ast.Name):
        return False
    scope = file.scope_of(target)
    if scope is file.scope:
        return False
    uses = [*file.reads(target), *file.reads(construction.module)]
    return all(_stays_there(context, use, call) for use in uses)


def _stays_there(context: Context, load: ast.Name, constructor: ast.Call) -> bool:
    parent = context.file.parents[load]
    if isinstance(parent, ast.Attribute):
        return isinstance(parent.ctx, ast.Load)
    if not isinstance(parent, ast.Call) or parent.func is load:
        return isinstance(parent, ast.Call)
    dotted = context.dotted(parent.func)
    of_torch = bool(dotted) and all(d.startswith(("torch.", "fsdp_migrate.")) for d in dotted)
    return parent is constructor or of_torch or getattr(parent.func, "id", "") == "print"


def may_be_nested(context: Context, origin: Origin, every: Iterable[Origin]) -> bool:
    """Whether a model can be a part of another that is wrapped, or hold one: only the root's inputs are cast."""
    if origin.is_part:
        return True
    factories = [call for each in every for _, call in each.factories]
    pending, seen = list(origin.calls), set()
    while pending:
        file, call = pending.pop()
        function, loops = (
            file.function(call),
            [n for n in file.ancestors(call) if isinstance(n, _LOOPS)],
        )
        if any(file.function(loop) is function for loop in loops):
            return True
        statement = file.parents[call]
        if isinstance(statement, ast.Return) and function is not None:
            every_call = [each for each in callers(context, file, function) if each not in seen]
            seen.update(every_call)
            pending += every_call
        elif not isinstance(statement, ast.Expr) and not _is_kept(
            context, file, statement, factories
        ):
            return True
    return False


def _is_kept(context: Context, file: File, statement: ast.AST, factories: list[ast.Call]) -> bool:
    """Whether a wrapped model is only bound to a name, and no other model is made from it."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    target = statement.targets[0]
    if not isinstance(target, ast.Name) and not _is_of_program(context.program, file, target):
        return False
    text = ast.unparse(target)
    values = (v for m in factories for v in values_given(m))
    return all(ast.unparse(value) != text for value in values)


def _is_of_program(program: Program, file: File, target: ast.expr) -> bool:
    """Whether `self.model` is an attribute of what is certainly no module."""
    cls = file.enclosing_class(target)
    if cls is None or getattr(getattr(target, "value", None), "id", "") != "self":
        return False
    return not may_be_module(program, Definition(file, cls))


def is_module(program: Program, cls: Definition) -> bool:
    """Whether a class is certainly an nn.Module."""
    return any(
        isinstance(above, External) and above.dotted.startswith("torch.nn.")
        for above in program.classes_above(cls)
    )


def may_be_module(program: Program, cls: Definition) -> bool:
    """Whether a class may be an nn.Module: some base of it is of another package, or not known."""
    return any(
        not (isinstance(above, External) and above.dotted.split(".")[0] in _NO_MODULES)
        for above in program.classes_above(cls)
        if not isinstance(above, Definition)
    )
