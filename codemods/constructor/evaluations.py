"""Which calls may run a forward of a model: directly, in a function or method of the program, or by their name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cached_property

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.models import given
from fsdp_migrate.facts.file import File, last_name, values_given
from fsdp_migrate.facts.program import Definition

_NAMED = re.compile(r"(^|_)(eval|valid|test|sanity|infer|generat|sampl)")
_DATA = re.compile(r"load|data|sampler|split|config|metric|transform")


class Evaluations:
    """The calls of a program that may evaluate a model."""

    def __init__(self, context: Context) -> None:
        self.program = context.program
        self.can_hold = context.models.can_hold
        self._known: dict[ast.AST, bool] = {}

    def may_be(self, file: File, call: ast.Call) -> bool:
        """Whether a call evaluates a model, or runs a function that does; or it says so by its name, as a method or a function
        that gets a model."""
        if self.can_hold(call.func, file) or self._hands_to_caller(file, call):
            return True
        name, values = last_name(call.func), values_given(call)
        if _NAMED.search(name) and not _DATA.search(name) and (name != "eval" or call.args):
            return isinstance(call.func, ast.Attribute) or any(
                self.can_hold(each, file) or "model" in ast.unparse(each).lower() for each in values
            )
        if name in {"map", "partial"} and any(self.can_hold(each, file) for each in values):
            return True
        return any(map(self._evaluates, self._called(file, call)))

    def _hands_to_caller(self, file: File, call: ast.Call) -> bool:
        """Whether a call gives a model to a function of the program that calls it."""
        models = [value for value in values_given(call) if self.can_hold(value, file)]
        made = self.program.definition(call.func, file) if models else None
        if made is None or not isinstance(made.node, ast.FunctionDef):
            return False
        return any(
            made.file.function(inner) is made.node
            and given(call, made.node, getattr(inner.func, "id", "")) in models
            for inner in made.file.of(ast.Call)
        )

    def _evaluates(self, function: Definition) -> bool:
        """Whether a call in a function may evaluate a model."""
        if function.node not in self._known:
            self._known[function.node] = False  # what leads back to itself adds nothing
            calls = (node for node in ast.walk(function.node) if isinstance(node, ast.Call))
            self._known[function.node] = any(self.may_be(function.file, each) for each in calls)
        return self._known[function.node]

    def _called(self, file: File, call: ast.Call) -> Iterator[Definition]:
        """The functions of the program that a call runs; for a method, all of its name."""
        made = self.program.definition(call.func, file)
        if made is not None and isinstance(made.node, ast.FunctionDef):
            yield made
        elif made is not None:
            found = (each for each in ast.walk(made.node) if isinstance(each, ast.FunctionDef))
            yield from (Definition(made.file, each) for each in found if each.name == "__init__")
        elif isinstance(call.func, ast.Attribute):
            yield from self._methods.get(call.func.attr, ())

    @cached_property
    def _methods(self) -> dict[str, list[Definition]]:
        found: dict[str, list[Definition]] = {}
        for file in self.program.files:
            for function in file.of(ast.FunctionDef):
                if isinstance(file.parents[function], ast.ClassDef):
                    found.setdefault(function.name, []).append(Definition(file, function))
        return found
