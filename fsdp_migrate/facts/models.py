"""Which expressions can hold an FSDP1 model, and which certainly hold something else; of many only a run knows.

A value is followed back from where it is used: through names, attributes of the same class, results of functions and
arguments of calls, each only when asked. Nothing is followed forward.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable
from typing import Any

from fsdp_migrate.facts.answers import Answers
from fsdp_migrate.facts.file import File, given, last_name, root_of, values_given
from fsdp_migrate.facts.names import CLASS, RUNTIME
from fsdp_migrate.facts.nodes import any_is
from fsdp_migrate.facts.not_run import is_not_run
from fsdp_migrate.facts.origins import (
    Origin,
    of_assigned,
    origins_of,
    reaches,
    reaching,
    returned,
    stored,
)
from fsdp_migrate.facts.program import Definition, Program, is_module
from fsdp_migrate.facts.scopes import Assigned, Opaque, Parameter
from fsdp_migrate.facts.wrapping import Wrapping

# Methods that return the module that they are called on.
SAME = frozenset({"bfloat16", "cpu", "cuda", "double", "eval", "float", "half", "requires_grad_"})
SAME |= {"to", "train"}
# What is inside of a wrapper.
INNER = frozenset({"module", "_fsdp_wrapped_module"})
_PARTS = frozenset({"children", "get_submodule", "modules", "named_children", "named_modules"})
# Functions that return the model that they are given, or a wrapper around it.
_WRAPPERS = frozenset({"cast", "compile", "fully_shard"})
_DEEP = 40  # steps from a use: behind them it is open, before Python's own limit is reached


class Models(Wrapping):
    """The models of one program."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._answers = Answers[bool | None](False)
        self.origins = origins_of(program)
        self.taken: dict[bool, Any] = {}  # their parameters, as facts/parameters.py finds them

    def can_hold(self, expression: ast.expr, file: File) -> bool:
        """Whether an expression can be a model that FSDP1 wrapped, as far as the program shows."""
        return self.sharded(expression, file) is True

    def sharded(self, expression: ast.expr, file: File) -> bool | None:
        """True for what can be a model that FSDP1 wrapped, False for what is shown to be something else, else None."""
        if self._answers.depth > _DEEP:
            self._answers.unfinished()
            return None
        return self._answers.of(expression, lambda: self._sharded(expression, file))

    def _sharded(self, expression: ast.expr, file: File) -> bool | None:
        if isinstance(expression, ast.Call):
            return self._made_by(expression, file)
        if isinstance(expression, ast.IfExp):
            return self._any((expression.body, expression.orelse), file)
        if isinstance(expression, ast.NamedExpr | ast.Await | ast.Subscript):
            return self.sharded(expression.value, file)
        if isinstance(expression, ast.Name | ast.Attribute):
            if self._is_like_fsdp1(expression, file):
                return True
            if isinstance(expression, ast.Name):
                return self._named(expression, file)
            return self._kept(expression, file)
        if isinstance(expression, ast.Dict):
            return self._any(expression.values, file)
        if isinstance(expression, ast.Tuple | ast.List):
            return self._any(expression.elts, file)
        if isinstance(expression, ast.Constant | ast.BinOp | ast.Compare):
            return False
        return None

    def _is_like_fsdp1(self, expression: ast.Name | ast.Attribute, file: File) -> bool:
        """Whether an earlier run sharded a model in place, under `with like_fsdp1(model):`."""
        for call in file.calls.get("like_fsdp1", ()):
            if call.args and ast.dump(call.args[0]) == ast.dump(expression):
                here = root_of(expression)
                there = root_of(call.args[0])
                is_same = (
                    here is not None
                    and there is not None
                    and file.variable(here) == file.variable(there)
                )
                is_own = here is not None and here.id == "self"
                if (is_same or is_own) and reaches(file, call, expression):
                    return f"{RUNTIME}.like_fsdp1" in self.program.dotted(call.func, file)
        return False

    def _any(self, expressions: Iterable[ast.expr], file: File) -> bool | None:
        return either(self.sharded(each, file) for each in expressions)

    def _made_by(self, call: ast.Call, file: File, path: tuple[int, ...] = ()) -> bool | None:
        if self.is_constructor(call, file):
            return True
        name = last_name(call.func)
        receiver = [call.func.value] if isinstance(call.func, ast.Attribute) else []
        if name in SAME | _WRAPPERS:
            same = self._any((*receiver, *call.args), file)
            if same or name in SAME:
                return same
        definition = self.origins.called(call, file)
        if definition is None:
            if name == "fsdp_modules":
                return True
            if name in _PARTS:
                return self._any(receiver, file) and None
            # What another library makes of a sharded model may be one.
            is_known = bool(self.program.dotted(call.func, file)) or name[:1].isupper()
            is_known |= is_unbound(call.func, file)
            of_others = is_known and not self._any(values_given(call), file)
            return False if of_others else None
        if isinstance(definition.node, ast.ClassDef):
            wrapping = self.constructors(definition.file)  # which may stand in the class itself
            wraps = definition.node in map(definition.file.enclosing_class, wrapping)
            is_other = not (wraps or self._any(values_given(call), file))
            return False if is_other else None
        answer = either(
            self._returned(origin.value, definition, call, file)
            for origin in returned(definition, path)
        )
        return answer and not self._shards_for_others(definition, call)

    def _shards_for_others(self, definition: Definition, call: ast.Call) -> bool:
        """Whether a function shards only where the literal arguments of this call do not lead: `if world_size > 1`."""
        function = definition.node
        file = definition.file
        if not isinstance(function, ast.FunctionDef):
            return False
        if not any_is(values_given(call), ast.Constant):
            return False
        inside = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        makers = [each for each in inside if last_name(each.func) not in SAME]
        sharding = [each for each in makers if self.sharded(each, file)]
        return bool(sharding) and all(is_not_run(file, each, function, call) for each in sharding)

    def _returned(
        self, value: ast.expr, definition: Definition, call: ast.Call, file: File
    ) -> bool | None:
        """Whether a function returns such a model to a call; of a parameter, what this call gives for it counts."""
        if not isinstance(value, ast.Name) or self._is_like_fsdp1(value, definition.file):
            return self.sharded(value, definition.file)
        bindings = definition.file.bindings(value)
        for binding in bindings:
            if isinstance(binding, Parameter) and binding.function is definition.node:
                assert not isinstance(binding.function, ast.Lambda)
                passed = given(call, binding.function, binding.argument.arg)
                assigned = [each for each in bindings if isinstance(each, Assigned)]
                found = [
                    self.sharded(each.value, definition.file)
                    for each in reaching(definition.file, assigned, value)
                ]
                if passed is not None:
                    found.append(self.sharded(passed, file))
                return either(found)
        return self.sharded(value, definition.file)

    def _named(self, name: ast.Name, file: File) -> bool | None:
        bindings = file.bindings(name)
        assigned = [binding for binding in bindings if isinstance(binding, Assigned)]
        found = [self._at(of_assigned(each, file)) for each in reaching(file, assigned, name)]
        for binding in bindings:
            if isinstance(binding, Parameter):
                found.append(self._passed(binding, name, file))
            elif isinstance(binding, Opaque):
                found.append(self._iterated(binding.node, name.id, file))
            elif not isinstance(binding, Assigned):
                found.append(False)  # an import, a function or a class
        answer = False if is_unbound(name, file) else either(found)
        return self._wrapped_in_place(name, file, answer)

    def _wrapped_in_place(self, name: ast.Name, file: File, answer: bool | None) -> bool | None:
        """The answer where a model is given to what wraps it, or parts of it: open behind that, and False before it."""
        if answer is True:
            return True
        for read in file.reads(name):
            call = file.parents[read]
            if isinstance(call, ast.Call) and read in call.args and read is not name:
                if last_name(call.func) in self.wrapping or self.is_constructor(call, file):
                    if reaches(file, call, name):
                        return None
                    answer = False
        return answer

    def _iterated(self, loop: ast.AST, name: str, file: File) -> bool | None:
        """Whether a loop binds a name to such models, one after the other; also by `zip` or `enumerate` of them."""
        if not isinstance(loop, ast.For | ast.comprehension):
            return None
        items = loop.iter
        if isinstance(items, ast.Call) and last_name(items.func) in {"items", "values"}:
            return self.sharded(getattr(items.func, "value", items), file)
        if isinstance(loop.target, ast.Name):
            return self.sharded(items, file)
        if not isinstance(items, ast.Call) or last_name(items.func) not in {"zip", "enumerate"}:
            return None
        targets = getattr(loop.target, "elts", [])[last_name(items.func) == "enumerate" :]
        return either(
            self.sharded(each, file)
            for target, each in zip(targets, items.args, strict=False)
            if getattr(target, "id", "") == name
        )

    def _at(self, origin: Origin) -> bool | None:
        """Whether such a model is where a step back leads: also among the values that a function returns."""
        if origin.path and isinstance(origin.value, ast.Call):
            return self._made_by(origin.value, origin.file, origin.path)
        return self.sharded(origin.value, origin.file)

    def _passed(self, parameter: Parameter, name: ast.Name, file: File) -> bool | None:
        """Whether a call somewhere passes such a model for a parameter, or its annotation names the class."""
        annotation = parameter.argument.annotation
        if annotation is not None and any(
            isinstance(node, ast.Name | ast.Attribute | ast.Constant)
            and self.program.fsdp1(node, file) == CLASS
            for node in ast.walk(annotation)
        ):
            return True
        if parameter.argument.arg == "self":
            return self._own(name, file)
        return either(self._at(origin) for origin in self.origins.given(parameter, file))

    def _own(self, name: ast.Name, file: File) -> bool | None:
        """Whether `self` is sharded: not where it is made, nor while it runs, when its parameters are whole."""
        method = file.function(name)
        if method is None or method.name in ("__init__", "forward"):
            return False
        return self.called_on(method.name) and None  # another class may have a method of that name

    def called_on(self, method: str) -> bool | None:
        """Whether a method is called on such a model, going by its name."""
        return either(
            self.sharded(call.func.value, other)
            for other, call in self.program.calls(method)
            if isinstance(call.func, ast.Attribute)
        )

    def _kept(self, attribute: ast.Attribute, file: File) -> bool | None:
        """Whether such a model was assigned to an attribute of that name: of `self` in its class, else anywhere in the file."""
        cls = file.enclosing_class(attribute)
        own = getattr(attribute.value, "id", "") == "self"
        assigned = [*stored(file, attribute.attr, cls if own else None)]
        answer = either(
            self._at(of_assigned(each, file)) for each in reaching(file, assigned, attribute)
        )
        if answer or own:
            is_part = cls is not None and is_module(self.program, Definition(file, cls))
            if answer is False and is_part:
                return self.sharded(attribute.value, file)
            return answer
        if answer is None and attribute.attr in INNER:
            return self.sharded(attribute.value, file) and None
        return answer


def models_of(program: Program) -> Models:
    """The models of a program."""
    return program.once(Models)


def either(answers: Iterable[bool | None]) -> bool | None:
    """Of several possible values: True if one is, False if all are something else, None if that is open."""
    found = set()
    for answer in answers:
        if answer:
            return True
        found.add(answer)
    if found == {False}:
        return False
    return None


def is_unbound(name: ast.expr, file: File) -> bool:
    """Whether nothing can bind a name, in an excerpt of a program; builtins are bound."""
    is_free = isinstance(name, ast.Name) and not file.bindings(name) and not file.stars
    return is_free and not hasattr(builtins, last_name(name))
