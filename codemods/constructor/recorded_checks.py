"""The conditions that hold a program to what a run recorded, in the program's own terms: `args.strategy == "hybrid"`."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.values import element

if TYPE_CHECKING:
    from fsdp_migrate.values import Recorded

_MOST = 6


def conditions(context: Context, recorded: Recorded, value: ast.expr, text: str) -> list[str]:
    """What must hold for an argument to have its recorded value; none if nothing in the function's reach says it.

    A path such as `cfg.strategy` is compared itself. Of any other expression the paths are that it is computed from, also
    through local names and inside of a function of the program that a configuration is passed to.
    """
    if _key(value) or isinstance(value, ast.Subscript):
        own = _equal(written(value), text)
        if own:
            return [own]
    found = dict.fromkeys(_Computed(context, recorded).of(value, set()))
    return list(found)[:_MOST]


class _Computed:
    """The paths that a value is computed from, with what they held."""

    def __init__(self, context: Context, recorded: Recorded) -> None:
        self.context = context
        self.names = recorded.names

    def of(self, value: ast.AST, seen: set[ast.AST]) -> Iterator[str]:
        """The conditions on the paths in an expression."""
        key = _key(value)
        if key in self.names:
            yield _equal(written(value), self.names[key])
        elif isinstance(value, ast.Name):
            yield from self._behind(value, seen)
        elif isinstance(value, ast.Call):
            yield from self._inside(value)
            for given in (*value.args, *(keyword.value for keyword in value.keywords)):
                yield from self.of(given, seen)
        else:
            for child in ast.iter_child_nodes(value):
                yield from self.of(child, seen)

    def _behind(self, name: ast.Name, seen: set[ast.AST]) -> Iterator[str]:
        """The paths behind a local name: of all its values, and of the tests that choose between them."""
        file = self.context.file
        found = file.variable(name)
        local = found is not None and found.scope is not file.scope
        for binding in found.assigned if found and local else ():
            if binding.target not in seen:
                seen.add(binding.target)
                for parent in file.ancestors(binding.target):
                    if isinstance(parent, ast.If):
                        yield from self.of(parent.test, seen)
                yield from self.of(element(binding) or binding.value, seen)

    def _inside(self, call: ast.Call) -> Iterator[str]:
        """The fields that a function of the program reads from its arguments: `cfg.dtype` in `get_policy(cfg)`."""
        made = self.context.program.definition(call.func, self.context.file)
        if made is None or isinstance(made.node, ast.ClassDef):
            return
        names = [argument.arg for argument in made.node.args.args]
        is_method = isinstance(made.file.parents[made.node], ast.ClassDef)
        own = [call.func.value] if is_method and isinstance(call.func, ast.Attribute) else []
        given = dict(zip(names, [*own, *call.args], strict=False))
        given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        for node in ast.walk(made.node):
            root, _, rest = _key(node).partition(".")
            if rest and root in given and _key(given[root]):
                key = f"{_key(given[root])}.{rest}"
                if key in self.names:
                    field = written(node).removeprefix(root)
                    yield _equal(written(given[root]) + field, self.names[key])


def written(node: ast.AST) -> str:
    """An expression as source, with double quotes."""
    text = ast.unparse(node)
    return text if '"' in text else text.replace("'", '"')


def _key(node: ast.AST) -> str:
    """A path as the recording writes it: `cfg.model.depth` for `cfg.model["depth"]`, too; "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    inner, name = "", ""
    if isinstance(node, ast.Attribute):
        inner, name = _key(node.value), node.attr
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        inner, name = _key(node.value), str(node.slice.value)
    return f"{inner}.{name}" if inner else ""


def _equal(source: str, text: str) -> str:
    """The condition that an expression has a value; "" for a value that none can be written for."""
    try:
        value = ast.parse(text, mode="eval").body
    except SyntaxError:
        return ""
    if isinstance(value, ast.Constant):
        text = json.dumps(value.value) if isinstance(value.value, str) else text
        return f"{source} {'is' if value.value in (None, True, False) else '=='} {text}"
    if isinstance(value, ast.Call) and text.startswith("torch.device("):
        return f"{source}.type == {written(value.args[0])}"
    if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name):
        return f'{source}.name == "{value.attr}"'  # of torch's enum as of the runtime's
    return ""
