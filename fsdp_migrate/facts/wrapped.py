"""Which names still meant the module inside of FSDP1's wrapper: `model` behind `sharded = FSDP(model)`.

Under FSDP2 such a name is the sharded model, because sharding in place leaves no other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.facts.answers import Answers
from fsdp_migrate.facts.file import File, given, last_name
from fsdp_migrate.facts.models import Models
from fsdp_migrate.facts.origins import Origin, reaches
from fsdp_migrate.facts.program import Program
from fsdp_migrate.facts.scopes import Assigned, Parameter


class Wrapped:
    """The modules inside of wrappers, of one program.

    Args:
        models: its models: a name that can be the wrapper itself is none of these.
    """

    def __init__(self, models: Models) -> None:
        self.models = models
        self._answers = Answers[bool](False)

    def is_inside(self, expression: ast.expr, file: File) -> bool:
        """Whether an expression can be a module inside of a wrapper, and not the wrapper."""
        return self._answers.of(expression, lambda: self._is_inside(expression, file))

    def _is_inside(self, expression: ast.expr, file: File) -> bool:
        if not isinstance(expression, ast.Name | ast.Attribute):
            return False
        if not self.models.shards(file) or self.models.can_hold(expression, file):
            return False
        return any(
            _is_behind(file, call, expression)
            for module, call in self._wrappings(file)
            if self._is_the_same(module, call, expression, file)
        ) or any(self.is_inside(each.value, each.file) for each in self._passed(expression, file))

    def _wrappings(self, file: File) -> Iterator[tuple[ast.expr, ast.Call]]:
        """What the calls of a file wrap, by a constructor or in a function of the program."""
        for call in self.models.constructors(file):
            if call.args and isinstance(call.args[0], ast.Name | ast.Attribute):
                yield call.args[0], call
        for name in self.models.wrapping & file.calls.keys():
            for call in file.calls[name]:
                for module in self._wrapped_by(call, file):
                    yield (module, call)

    def _wrapped_by(self, call: ast.Call, file: File) -> Iterator[ast.expr]:
        """What a call gives to a function that wraps it and returns the wrapper."""
        made = self.models.origins.called(call, file)
        if made is None or isinstance(made.node, ast.ClassDef):
            return
        if self.models.sharded(call, file) is not True:
            return
        for wrapping in self.models.constructors(made.file):
            if made.file.function(wrapping) is made.node and wrapping.args:
                for binding in made.file.bindings(wrapping.args[0]):
                    if isinstance(binding, Parameter):
                        module = given(call, made.node, binding.argument.arg)
                        if isinstance(module, ast.Name | ast.Attribute):
                            yield module

    def _is_the_same(
        self, module: ast.expr, call: ast.Call, expression: ast.expr, file: File
    ) -> bool:
        """Whether an expression means what a call wraps, by that name or by one that was bound to it before."""
        if _names_the_same(file, module, expression):
            return True
        for binding in file.bindings(expression):
            if not isinstance(binding, Assigned) or binding.path:
                continue
            is_before = binding.target.lineno < call.lineno
            if is_before and _names_the_same(file, module, binding.value):
                if reaches(file, binding.target, call):
                    if not self.models.can_hold(binding.value, file):
                        return True
        return False

    def _passed(self, expression: ast.expr, file: File) -> Iterator[Origin]:
        """What calls give for a parameter of a function."""
        for binding in file.bindings(expression):
            if isinstance(binding, Parameter) and binding.argument.arg != "self":
                yield from self.models.origins.given(binding, file)


def wrapped_of(models: Models) -> Wrapped:
    """The modules inside of wrappers of a program's models."""
    return models.program.once(_wrapped, models)


def _wrapped(program: Program, models: Models) -> Wrapped:
    return Wrapped(models)


def _names_the_same(file: File, module: ast.expr, other: ast.expr) -> bool:
    """Whether two expressions are one variable, or one attribute of `self` in a class."""
    if isinstance(module, ast.Name) and isinstance(other, ast.Name):
        return module.id == other.id and file.variable(module) == file.variable(other)
    if not isinstance(module, ast.Attribute) or not isinstance(other, ast.Attribute):
        return False
    if last_name(module.value) != "self" or last_name(other.value) != "self":
        return False
    return module.attr == other.attr and file.enclosing_class(module) is file.enclosing_class(other)


def _is_behind(file: File, call: ast.Call, use: ast.expr) -> bool:
    """Whether a use runs when a call has run."""
    here = file.function(call)
    there = file.function(use)
    if here is there:
        return call.lineno < use.lineno and reaches(file, call, use)
    if there is None:
        return False
    if there.name in ("__init__", "forward"):
        return False
    runs = [each for each in file.calls.get(there.name, ()) if file.function(each) is here]
    return not runs or any(call.lineno < each.lineno for each in runs)
