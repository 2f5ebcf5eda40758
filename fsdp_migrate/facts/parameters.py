"""Which expressions hold parameters or gradients that can be those of a model that FSDP1 sharded.

Followed back from where they are used, as models are: through loops, comprehensions, names, and arguments of calls.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.facts.answers import Answers
from fsdp_migrate.facts.file import File, given, last_name, root_of
from fsdp_migrate.facts.models import Models, either, is_unbound
from fsdp_migrate.facts.nodes import any_below, any_is
from fsdp_migrate.facts.origins import Origin, of_assigned, returned, stored
from fsdp_migrate.facts.program import Definition
from fsdp_migrate.facts.scopes import Opaque, Parameter
from fsdp_migrate.facts.wrapped import wrapped_of

# Where in each item of an iteration the parameter is: (1,) in `for name, p in model.named_parameters()`; `EACH` item of it.
Path = tuple[int, ...]
EACH = -1

PARTS = frozenset({"data", "grad", "main_grad"})
_DEEP = 4  # how far down in its items an iterable may hold a parameter
_COPIES = frozenset(
    {"abs", "clone", "contiguous", "cpu", "cuda", "detach", "double", "float", "square", "to"}
)
_SEQUENCES = frozenset({"filter", "iter", "list", "reversed", "set", "sorted", "tuple"})
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


class Taken:
    """The parameters that a program takes from its models.

    Each answer is True if they can be sharded, False if they are not, None where nothing says that these are parameters at all.
    """

    def __init__(self, models: Models, *, proven: bool = False) -> None:
        self.models = models
        self.origins = models.origins
        # Whether a model counts only where the program shows that it is sharded.
        self.proven = proven
        self._answers = Answers[bool | None](False)
        # The call whose result is asked for, and where: its function's parameters are what it gives.
        self._call: tuple[ast.Call, Definition, File] | None = None

    def is_parameter(self, expression: ast.expr, file: File) -> bool:
        """Whether an expression can be a sharded parameter, its `data`, its gradient, or a copy of one."""
        return self.models.shards(file) and self.one(expression, file) is True

    def are_parameters(self, iterable: ast.expr, file: File, path: Path = ()) -> bool:
        """Whether the items of an iterable can be sharded parameters, or hold one at a path."""
        return self.models.shards(file) and self.several(iterable, file, path) is True

    def one(self, expression: ast.expr, file: File) -> bool | None:
        """The same of one expression, which may be shown to be something else."""
        return self._once(expression, None, file)

    def several(self, iterable: ast.expr, file: File, path: Path = ()) -> bool | None:
        """The same of the items of an iterable."""
        return self._once(iterable, path, file)

    def _once(self, expression: ast.expr, path: Path | None, file: File) -> bool | None:
        key = expression, path, self._call and self._call[0]
        if path is not None and len(path) > _DEEP:
            return None
        if path is None:
            return self._answers.of(key, lambda: self._is_one(expression, file))
        return self._answers.of(key, lambda: self._are_several(expression, path, file))

    def _is_one(self, expression: ast.expr, file: File) -> bool | None:
        if isinstance(expression, ast.Name):
            return self._named(expression, file)
        if isinstance(expression, ast.Attribute):
            if expression.attr in PARTS:
                is_data = expression.attr == "data"  # which others have as well
                owner = self.one(expression.value, file)
                return owner if owner is not None or is_data else True
            # `model.logit_scale`; of a layer, `model.head.weight`
            of_layer = expression.attr in ("weight", "bias")
            owners = ast.walk(expression.value) if of_layer else (expression.value,)
            held = any(self.models.can_hold(e, file) for e in owners if isinstance(e, ast.expr))
            if held:
                return True
            root = root_of(expression)
            return self.models.sharded(root or expression, file) and None
        if isinstance(expression, ast.Call):
            function = expression.func
            if isinstance(function, ast.Attribute) and function.attr in _COPIES:
                return self.one(function.value, file)
            made = self.models.program.dotted(function, file)
            return False if any_below(made, "torch.") else None
        if isinstance(expression, ast.Subscript):
            return self.several(expression.value, file)
        if isinstance(expression, ast.IfExp):
            return either(self.one(each, file) for each in (expression.body, expression.orelse))
        return None

    def _named(self, name: ast.Name, file: File) -> bool | None:
        loop = loop_of(file, name)
        if loop is not None:
            target, iterable = loop
            path = _path(target, name.id)
            if path is None:
                return None
            return self.several(iterable, file, path)
        for binding in file.bindings(name):  # filter(lambda p: p.ndim > 1, model.parameters())
            if isinstance(binding, Parameter) and isinstance(binding.function, ast.Lambda):
                call = file.parents[binding.function]
                if isinstance(call, ast.Call):
                    return either(self.several(each, file) for each in call.args[1:])
        if is_unbound(name, file):
            return False
        return either(self.one(each.value, each.file) for each in self._values(name, file))

    def _are_several(self, iterable: ast.expr, path: Path, file: File) -> bool | None:
        if isinstance(iterable, ast.Call):
            return self._from_call(iterable, path, file)
        if isinstance(iterable, ast.DictComp):
            return self._element(iterable.value, path, file)
        if isinstance(iterable, ast.ListComp | ast.SetComp | ast.GeneratorExp):
            return self._element(iterable.elt, path, file)
        if isinstance(iterable, ast.List | ast.Tuple):
            each = [self.one(element, file) for element in iterable.elts if not path]
            return either(each) if each else None
        if isinstance(iterable, ast.Subscript):
            answer = None if path else self._are_an_optimizers(iterable, file)
            of_several = isinstance(iterable.value, ast.Name | ast.Attribute)
            inside = of_several and self.several(iterable.value, file, (EACH, *path))
            return inside or answer
        if isinstance(iterable, ast.Attribute):
            if iterable.attr == "_parameters" and not path:
                return self._are_of(iterable.value, file)
            kept = [self.several(value, file, path) for value in self._kept(iterable, file)]
            return either((*kept, *self._put_into(iterable, path, file)))
        if isinstance(iterable, ast.Name):
            loop = loop_of(file, iterable)
            if loop is not None:
                at = _path(loop[0], iterable.id) or ()
                return self.several(loop[1], file, (*at, EACH, *path))
            found = [self.several(e.value, e.file, path) for e in self._values(iterable, file)]
            found += [self._element(value, path, file) for value in self._appended(iterable, file)]
            return either(found)
        return None

    def _from_call(self, call: ast.Call, path: Path, file: File) -> bool | None:
        function = call.func
        if isinstance(function, ast.Attribute):
            owner = function.value
            if function.attr in {"parameters", "named_parameters"}:
                named = function.attr == "named_parameters"
                return path == ((1,) if named else ()) and self._are_of(owner, file)
            if function.attr in {"buffers", "named_buffers"}:
                return False
            if function.attr in {"items", "values"} and not call.args:
                return self.several(owner, file, path[1:] if function.attr == "items" else path)
        returned = self._returned(call, path, file)
        if returned is not None or not call.args or isinstance(function, ast.Attribute):
            return returned
        name = getattr(function, "id", "")
        if name in _SEQUENCES:
            return self.several(call.args[-1 if name == "filter" else 0], file, path)
        if name == "dict":
            return self.several(call.args[0], file, (1, *path))
        if name == "enumerate":
            return path[:1] == (1,) and self.several(call.args[0], file, path[1:])
        if name == "zip" and path and path[0] < len(call.args):
            return self.several(call.args[path[0]], file, path[1:])
        return None

    def _returned(self, call: ast.Call, path: Path, file: File) -> bool | None:
        """What the program's function returns that a call calls."""
        made = self.models.program.definition(call.func, file)
        if made is None:
            return None
        around = self._call
        self._call = (call, made, file)
        found = [self.several(each.value, each.file, path) for each in returned(made)]
        found += [
            self._element(item.value, path, made.file)
            for item in made.file.of(ast.Yield)
            if item.value is not None and made.file.function(item) is made.node
        ]
        self._call = around
        return either(found)

    def _element(self, element: ast.expr, path: Path, file: File) -> bool | None:
        for place, index in enumerate(path):
            if index == EACH:
                return self.several(element, file, path[place + 1 :])
            if not isinstance(element, ast.Tuple | ast.List) or index >= len(element.elts):
                return False
            element = element.elts[index]
        return self.one(element, file)

    def _put_into(self, owner: ast.Attribute, path: Path, file: File) -> Iterator[bool | None]:
        """The same of what a class puts into a dictionary of its own: `self.groups[index] = params`."""
        if not self._is_own(owner):
            return
        for store in file.attributes.get(owner.attr, ()):
            item = file.parents[store]
            statement = file.parents[item]
            if isinstance(item, ast.Subscript) and isinstance(statement, ast.Assign):
                if item in statement.targets:
                    yield self._element(statement.value, path, file)

    def _are_of(self, owner: ast.expr, file: File) -> bool:
        """Whether a module's parameters can be sharded: unless it is shown that it is not, nor a part of what is."""
        answer = self.models.sharded(owner, file)
        if answer is not True and wrapped_of(self.models).is_inside(owner, file):
            return True  # FSDP1's shards were registered there
        if answer is None and self.proven:
            method = None
            if getattr(owner, "id", "") == "self":
                method = file.function(owner)
            return method is not None and self.models.called_on(method.name) is True
        return answer is not False

    def _are_an_optimizers(self, group: ast.Subscript, file: File) -> bool | None:
        """`group["params"]` of `optimizer.param_groups`, unless the optimizer is shown to be another model's."""
        if not (isinstance(group.slice, ast.Constant) and group.slice.value == "params"):
            return None
        owner = group.value
        loop = None
        if isinstance(owner, ast.Name):
            loop = loop_of(file, owner)
        while isinstance(owner, ast.Subscript | ast.Name) and loop:
            owner = loop[1]
            loop = None
        if isinstance(owner, ast.Call) and last_name(owner.func) == "enumerate" and owner.args:
            owner = owner.args[0]
        if isinstance(owner, ast.Subscript):
            owner = owner.value
        if not (isinstance(owner, ast.Attribute) and owner.attr == "param_groups"):
            return None
        return self.optimized(owner.value, file) is not False

    def optimized(self, optimizer: ast.expr, file: File) -> bool | None:
        """The same of what an optimizer was made with: where it is made, or in a function or class that it is given to."""
        question = optimizer, "optimizer", self._call and self._call[0]
        return self._answers.of(question, lambda: self._is_optimized(optimizer, file))

    def _is_optimized(self, optimizer: ast.expr, file: File) -> bool | None:
        match optimizer:
            case ast.Name():
                made = self._values(optimizer, file)
                return either(self.optimized(each.value, each.file) for each in made)
            case ast.Attribute():
                return either(self.optimized(each, file) for each in self._kept(optimizer, file))
            case ast.Call():
                return self._is_made_for(optimizer, file)
        return None

    def _is_made_for(self, call: ast.Call, file: File) -> bool | None:
        """Whether a call makes an optimizer of such parameters, or a function of the program does that it calls."""
        made = self.models.program.definition(call.func, file)
        if made is not None and not isinstance(made.node, ast.ClassDef):
            return either(self.optimized(each.value, each.file) for each in returned(made))
        named = [each.value for each in call.keywords if each.arg == "params"]
        given = [*call.args[:1], *named]
        if given:
            return self.several(given[0], file)
        return None

    def _values(self, name: ast.Name, file: File) -> Iterator[Origin]:
        """What a name can be bound to; a parameter of the function whose result is asked for, to what this call gives."""
        if self._call is not None:
            call, made, other = self._call
            for binding in file.bindings(name):
                if isinstance(binding, Parameter) and binding.function is made.node:
                    passed = given(call, binding.function, binding.argument.arg)
                    if passed is not None:
                        yield Origin(passed, other)
                    return
        yield from (each for each in self.origins.of_name(name, file) if not each.path)

    @staticmethod
    def _is_own(attribute: ast.Attribute) -> bool:
        return getattr(attribute.value, "id", "") == "self"

    def _appended(self, name: ast.Name, file: File) -> Iterator[ast.expr]:
        """What is appended to a list that a name means."""
        own = file.variable(name)
        for attribute in file.attributes.get("append", ()):
            owner = attribute.value
            call = file.parents[attribute]
            if isinstance(owner, ast.Name) and owner.id == name.id and isinstance(call, ast.Call):
                if call.args and file.variable(owner) == own:
                    yield call.args[0]

    def _kept(self, attribute: ast.Attribute, file: File) -> Iterator[ast.expr]:
        """What the class around sets an attribute of `self` to, or returns as a property."""
        cls = file.enclosing_class(attribute)
        if cls is None or not self._is_own(attribute):
            return
        for each in stored(file, attribute.attr, cls):
            origin = of_assigned(each, file)
            if not origin.path:
                yield origin.value
        for method in cls.body:
            if isinstance(method, ast.FunctionDef) and method.name == attribute.attr:
                yield from (each.value for each in returned(Definition(file, method)))


def loop_of(file: File, name: ast.Name) -> tuple[ast.expr, ast.expr] | None:
    """The target and the iterable of the innermost loop that binds a name where it is read."""
    if not any_is(file.bindings(name), Opaque):
        return None
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
            if _path(target, name.id) is not None and name not in ast.walk(iterable):
                return target, iterable
    return None


def _path(target: ast.expr, name: str) -> Path | None:
    """Where a loop's target binds a name."""
    if isinstance(target, ast.Name):
        if target.id == name:
            return ()
        return None
    if isinstance(target, ast.Tuple | ast.List):
        for index, element in enumerate(target.elts):
            below = _path(element, name)
            if below is not None:
                return (index, *below)
    return None
