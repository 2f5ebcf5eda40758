"""Which expressions hold parameters or gradients of a model that FSDP1 sharded.

Followed back from where they are used, as models are: through loops, comprehensions, names, and arguments of calls.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.file import File, last_name
from fsdp_migrate.facts.models import Models
from fsdp_migrate.facts.names import CLASS, fsdp1_name
from fsdp_migrate.facts.scopes import Assigned, Imported, Parameter
from fsdp_migrate.facts.values import reaching

# Where in each item of an iteration the parameter is: (1,) in `for name, p in model.named_parameters()`.
Path = tuple[int, ...]

PARTS = frozenset({"data", "grad", "main_grad"})
# What is inside of a wrapper.
INNER = frozenset({"module", "_fsdp_wrapped_module"})
_COPIES = frozenset(
    {"abs", "clone", "contiguous", "cpu", "cuda", "detach", "double", "float", "square", "to"}
)
_SEQUENCES = frozenset({"filter", "iter", "list", "reversed", "set", "sorted", "tuple"})
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


class Taken:
    """The parameters that a program takes from its sharded models."""

    def __init__(self, models: Models) -> None:
        self.models = models
        self._known: dict[tuple[ast.AST, Path | None], bool] = {}

    def is_parameter(self, expression: ast.expr, file: File) -> bool:
        """Whether an expression can be a sharded parameter, its `data`, its gradient, or a copy of one."""
        return self._once(expression, None, file)

    def are_parameters(self, iterable: ast.expr, file: File, path: Path = ()) -> bool:
        """Whether the items of an iterable can be sharded parameters, or hold one at a path."""
        return self._once(iterable, path, file)

    def _once(self, expression: ast.expr, path: Path | None, file: File) -> bool:
        key = expression, path
        if key not in self._known:
            self._known[key] = False  # what leads back to itself adds nothing
            self._known[key] = (
                self._is_one(expression, file)
                if path is None
                else self._are_several(expression, path, file)
            )
        return self._known[key]

    def _is_one(self, expression: ast.expr, file: File) -> bool:
        if isinstance(expression, ast.Attribute):
            if expression.attr in PARTS:
                return self.is_parameter(expression.value, file)
            # `model.logit_scale`; of a layer, `model.head.weight`
            of_layer = expression.attr in ("weight", "bias")
            owners = ast.walk(expression.value) if of_layer else (expression.value,)
            return any(self.models.can_hold(e, file) for e in owners if isinstance(e, ast.expr))
        if isinstance(expression, ast.Call):
            function = expression.func
            return (
                isinstance(function, ast.Attribute)
                and function.attr in _COPIES
                and self.is_parameter(function.value, file)
            )
        if isinstance(expression, ast.Subscript):
            return self.are_parameters(expression.value, file)
        if isinstance(expression, ast.IfExp):
            branches = (expression.body, expression.orelse)
            return any(self.is_parameter(each, file) for each in branches)
        return isinstance(expression, ast.Name) and self._is_named(expression, file)

    def _is_named(self, name: ast.Name, file: File) -> bool:
        loop = loop_of(file, name)
        if loop is not None:
            target, iterable = loop
            path = _path(target, name.id)
            return path is not None and self.are_parameters(iterable, file, path)
        for binding in file.bindings(name):  # filter(lambda p: p.ndim > 1, model.parameters())
            if isinstance(binding, Parameter) and isinstance(binding.function, ast.Lambda):
                call = file.parents[binding.function]
                given = call.args[1:] if isinstance(call, ast.Call) else []
                return any(self.are_parameters(each, file) for each in given)
        return any(self.is_parameter(value, other) for value, other in self._values(name, file))

    def _are_several(self, iterable: ast.expr, path: Path, file: File) -> bool:
        if isinstance(iterable, ast.Call):
            return self._from_call(iterable, path, file)
        if isinstance(iterable, ast.DictComp):
            return self._element(iterable.value, path, file)
        if isinstance(iterable, ast.ListComp | ast.SetComp | ast.GeneratorExp):
            return self._element(iterable.elt, path, file)
        if isinstance(iterable, ast.List | ast.Tuple):
            return not path and any(self.is_parameter(each, file) for each in iterable.elts)
        if isinstance(iterable, ast.Subscript):
            return not path and self._are_an_optimizers(iterable, file)
        if isinstance(iterable, ast.Attribute):
            return any(
                self.are_parameters(value, file, path) for value in self._stored(iterable, file)
            )
        if isinstance(iterable, ast.Name):
            values, appended = self._values(iterable, file), self._appended(iterable, file)
            return any(self.are_parameters(value, other, path) for value, other in values) or any(
                self._element(value, path, file) for value in appended
            )
        return False

    def _from_call(self, call: ast.Call, path: Path, file: File) -> bool:
        function = call.func
        if isinstance(function, ast.Attribute):
            owner = function.value
            if function.attr in {"parameters", "named_parameters"}:
                named = function.attr == "named_parameters"
                return path == ((1,) if named else ()) and self._is_model(owner, file)
            if function.attr in {"items", "values"} and not call.args:
                return self.are_parameters(
                    owner, file, path[1:] if function.attr == "items" else path
                )
            return False
        name = getattr(function, "id", "")
        if any(self.are_parameters(each, of, path) for each, of in self._returned(call, file)):
            return True
        if not call.args:
            return False
        if name in _SEQUENCES:
            return self.are_parameters(call.args[-1 if name == "filter" else 0], file, path)
        if name == "dict":
            return self.are_parameters(call.args[0], file, (1, *path))
        if name == "enumerate":
            return path[:1] == (1,) and self.are_parameters(call.args[0], file, path[1:])
        if name == "zip" and path and path[0] < len(call.args):
            return self.are_parameters(call.args[path[0]], file, path[1:])
        return False

    def _returned(self, call: ast.Call, file: File) -> Iterator[tuple[ast.expr, File]]:
        """What the program's function returns that a call calls."""
        made = self.models.program.definition(call.func, file)
        if made is not None:
            for statement in made.file.of(ast.Return):
                if made.file.function(statement) is made.node and statement.value is not None:
                    yield statement.value, made.file

    def _element(self, element: ast.expr, path: Path, file: File) -> bool:
        for index in path:
            if not isinstance(element, ast.Tuple | ast.List) or index >= len(element.elts):
                return False
            element = element.elts[index]
        return self.is_parameter(element, file)

    def _is_model(self, owner: ast.expr, file: File) -> bool:
        """Whether a model is sharded; `self` is, in a method that is called on one."""
        if self.models.can_hold(owner, file):
            return True
        values = self._values(owner, file) if isinstance(owner, ast.Name) else ()
        if any(holds(self.models, value, other) for value, other in values):
            return True
        cls = file.enclosing_class(owner)
        if not (isinstance(owner, ast.Name) and owner.id == "self" and cls):
            return False
        method = file.function(owner)
        return method is not None and any(
            isinstance(call.func, ast.Attribute) and holds(self.models, call.func.value, other)
            for other, call in self.models.calls.get(method.name, ())
        )

    def _are_an_optimizers(self, group: ast.Subscript, file: File) -> bool:
        """`group["params"]` of `optimizer.param_groups`, in a file that mentions FSDP1's class."""
        if not (isinstance(group.slice, ast.Constant) and group.slice.value == "params"):
            return False
        loop = loop_of(file, group.value) if isinstance(group.value, ast.Name) else None
        is_one = loop is not None and getattr(loop[1], "attr", "") == "param_groups"
        return is_one and any(
            isinstance(binding, Imported)
            and fsdp1_name(f"{binding.module}.{binding.member}") == CLASS
            for bindings in file.scope.bindings.values()
            for binding in bindings
        )

    def _values(self, name: ast.Name, file: File) -> Iterator[tuple[ast.expr, File]]:
        """What a name can be bound to: by assignments, and by the calls of the function that it is a parameter of."""
        bindings = file.bindings(name)
        assigned = [b for b in bindings if isinstance(b, Assigned) and not b.path]
        for binding in reaching(file, assigned, name):
            yield binding.value, file
        for parameter in bindings:
            if isinstance(parameter, Parameter) and not isinstance(parameter.function, ast.Lambda):
                for other, value in self.models.arguments(parameter.function, parameter, file):
                    yield value, other

    def _appended(self, name: ast.Name, file: File) -> Iterator[ast.expr]:
        """What is appended to a list that a name means."""
        own = file.variable(name)
        for attribute in file.attributes.get("append", ()):
            owner, call = attribute.value, file.parents[attribute]
            if isinstance(owner, ast.Name) and owner.id == name.id and isinstance(call, ast.Call):
                if call.args and file.variable(owner) == own:
                    yield call.args[0]

    def _stored(self, attribute: ast.Attribute, file: File) -> Iterator[ast.expr]:
        """What the class around sets an attribute of `self` to, or returns as a property."""
        cls = file.enclosing_class(attribute)
        if cls is None or getattr(attribute.value, "id", "") != "self":
            return
        for store in file.attributes.get(attribute.attr, ()):
            statement = file.parents[store]
            if isinstance(statement, ast.Assign) and file.enclosing_class(store) is cls:
                yield statement.value
        for returned in file.of(ast.Return):
            if returned.value is not None and file.function(returned) in cls.body:
                if getattr(file.function(returned), "name", "") == attribute.attr:
                    yield returned.value


def holds(
    models: Models, expression: ast.expr, file: File, known: frozenset[str] = frozenset()
) -> bool:
    """Whether an expression can be a sharded model or the module inside: `raw = model.module if sharded else model`."""
    if models.can_hold(expression, file):
        return True
    if isinstance(expression, ast.Name) and expression.id not in known:
        known |= {expression.id}  # `model = model.module if sharded else model`
        found = file.variable(expression)
        values = [each.value for each in found.assigned] if found else []
        inner = [value for value in values if isinstance(value, ast.Attribute | ast.IfExp)]
        return any(holds(models, value, file, known) for value in inner)
    if isinstance(expression, ast.IfExp):
        return any(
            holds(models, each, file, known) for each in (expression.body, expression.orelse)
        )
    return (
        isinstance(expression, ast.Attribute)
        and expression.attr in INNER
        and models.can_hold(expression.value, file)
    )


@lru_cache(maxsize=2)  # those that the program shards, and those that Accelerate does
def _of(models: Models) -> Taken:
    return Taken(models)


def taken(context: Context) -> Taken:
    """The parameters of the run that a file is part of."""
    return _of(context.models)


def is_known_as_whole(context: Context, node: ast.AST) -> bool:
    """Whether a parameter is whole here under both versions, or the program asks whether it is a DTensor."""
    file = context.file
    for parent in file.ancestors(node):
        if isinstance(parent, ast.With | ast.AsyncWith):
            if any("summon_full_params" in file.source(item.context_expr) for item in parent.items):
                return True
        elif isinstance(parent, ast.If | ast.IfExp) and "DTensor" in file.source(parent.test):
            return True
    return _is_for_other_models(context, node)


def _is_for_other_models(context: Context, node: ast.AST) -> bool:
    """Whether a node is in a method that the subclass for FSDP replaces: it never runs on a sharded model."""
    method, cls = context.file.function(node), context.file.enclosing_class(node)
    if method is None or cls is None:
        return False
    return any(
        cls.name in {last_name(base) for base in other.bases}
        and "fsdp" in file.source(other).lower()
        and any(getattr(each, "name", "") == method.name for each in other.body)
        for file in context.program.files
        for other in file.of(ast.ClassDef)
    )


def is_sharded(context: Context, node: ast.expr) -> bool:
    """Whether an expression is a sharded parameter, and not known to be whole here."""
    sharded = taken(context).is_parameter(node, context.file)
    return sharded and not is_known_as_whole(context, node)


def loop_of(file: File, name: ast.Name) -> tuple[ast.expr, ast.expr] | None:
    """The target and the iterable of the innermost loop that binds a name where it is read."""
    for parent in file.ancestors(name):
        if isinstance(parent, _COMPREHENSIONS):
            loops = [(each.target, each.iter) for each in parent.generators]
        elif isinstance(parent, ast.For | ast.AsyncFor):
            loops = [(parent.target, parent.iter)]
        elif isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            return None
        else:
            continue
        for target, iterable in loops:
            inside = name in ast.walk(iterable)
            if not inside and _path(target, name.id) is not None:
                return target, iterable
    return None


def _path(target: ast.expr, name: str) -> Path | None:
    """Where a loop's target binds a name."""
    if isinstance(target, ast.Name):
        return () if target.id == name else None
    if isinstance(target, ast.Tuple | ast.List):
        for index, element in enumerate(target.elts):
            below = _path(element, name)
            if below is not None:
                return (index, *below)
    return None
