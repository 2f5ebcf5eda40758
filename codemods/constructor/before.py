"""What runs before a model is wrapped: there it is no FSDP1 model yet, and its names and classes are its own."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.constructor.origin import root_name
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.program import Definition, External

_LOOPS = (ast.For, ast.AsyncFor, ast.While)


class Before:
    """The code of a file that runs before its models are wrapped."""

    def __init__(self, context: Context, constructions: Iterable[Construction]) -> None:
        self.context = context
        self._first: dict[ast.AST | None, int] = {}
        self._wrapped: set[str] = set()
        for each in constructions:
            file = each.context.file
            function = file.function(each.call)
            around = [n for n in file.ancestors(each.call) if isinstance(n, _LOOPS)]
            line = 0 if around else each.call.lineno
            self._first[function] = min(line, self._first.get(function, line))
            statement = file.statement(each.call)
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            self._wrapped |= {root_name(each.module), *map(root_name, targets)}

    def covers(self, node: ast.AST) -> bool:
        """Whether a node is above every constructor of its function, or in `__init__` of a module."""
        function = self.context.file.function(node)
        first = self._first.get(function)
        if first is not None:
            above = (getattr(node, "end_lineno", 0) or 0) < first
            return above and not self._is_of_another_model(node)
        return self._builds_module(function)

    def is_fresh(self, node: ast.AST) -> bool:
        """Whether a node is behind a constructor in its function, and nothing between them can run the model."""
        file = self.context.file
        function = file.function(node)
        first = self._first.get(function)
        if first is None or any(isinstance(n, _LOOPS) for n in file.ancestors(node)):
            return False
        return not any(
            self._runs_model(call)
            for call in file.of(ast.Call)
            if file.function(call) is function and first < call.lineno < getattr(node, "lineno", 0)
        )

    def _runs_model(self, call: ast.Call) -> bool:
        """Whether a call is one of the model, or gets it as an argument."""
        given = [call.func, *call.args, *(keyword.value for keyword in call.keywords)]
        return any(isinstance(each, ast.Name) and each.id in self._wrapped for each in given)

    def _is_of_another_model(self, node: ast.AST) -> bool:
        """Whether a node is about a model that is wrapped elsewhere, perhaps before."""
        subject = node.value if isinstance(node, ast.Attribute) else None
        if isinstance(node, ast.Call):
            subject = node.args[0] if node.args else None
        if subject is None or root_name(subject) in self._wrapped:
            return False
        return self.context.can_be_model(subject)

    def _builds_module(self, function: ast.FunctionDef | ast.AsyncFunctionDef | None) -> bool:
        if function is None or function.name != "__init__":
            return False
        cls = self.context.file.enclosing_class(function)
        above = (
            self.context.program.classes_above(Definition(self.context.file, cls)) if cls else ()
        )
        return any(isinstance(a, External) and a.dotted == "torch.nn.Module" for a in above)
