"""The conditions that hold a program to what a run recorded, in the program's own terms: `args.strategy == "hybrid"`."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Import
from fsdp_migrate.facts.file import values_given
from fsdp_migrate.facts.names import RUNTIME
from fsdp_migrate.facts.scopes import Assigned, Binding, Defined, Imported
from fsdp_migrate.facts.values import element

if TYPE_CHECKING:
    from fsdp_migrate.values import Recorded

_MOST = 6
# The text of a value of these has the name of its class.
OPTIONS = {
    "MixedPrecision(": Import(RUNTIME, "MixedPrecision"),
    "CPUOffload(": Import(RUNTIME, "CPUOffload"),
}


def conditions(
    construction: Construction, recorded: Recorded, value: ast.expr, text: str
) -> list[str]:
    """What must hold for an argument to have its recorded value; none if nothing in the function's reach says it.

    A path such as `cfg.strategy` is compared itself. Of any other expression the paths are that it is computed from, also
    through local names. Where these may not say all, as inside of a function of the program that a configuration is
    passed to, the value itself is compared, if there is a text for it.
    """
    context, is_option = construction.context, text.startswith(tuple(OPTIONS))
    is_path = bool(_key(value)) or isinstance(value, ast.Subscript)
    source = written(value) if is_path or isinstance(value, ast.Call) else f"({written(value)})"
    own = "" if is_option and not _can_write(context, value, text) else _equal(source, text)
    if own and is_path and not is_option:
        return [own]
    computed = _Computed(construction, recorded)
    found = [*dict.fromkeys(computed.of(value, set()))][:_MOST]
    return found if found and (computed.say_all or not own) else [own] * bool(own)


def _can_write(context: Context, at: ast.expr, text: str) -> bool:
    """Whether FSDP1's class of an option can be named at a place."""
    name = text.partition("(")[0]
    return context.means(name, at, f"{RUNTIME}.{name}")


class _Computed:
    """The paths that a value is computed from, with what they held.

    Attributes:
        say_all: whether it depends on nothing else, as far as seen.
    """

    def __init__(self, construction: Construction, recorded: Recorded) -> None:
        self.context = construction.context
        self.model = getattr(construction.module, "id", "")
        self.names = recorded.names
        self.say_all = True

    def of(self, value: ast.AST, seen: set[ast.AST]) -> Iterator[str]:
        """The conditions on the paths in an expression."""
        key = _key(value)
        if key in self.names:
            yield _equal(written(value), self.names[key])
        elif isinstance(value, ast.Name):
            if value.id != self.model:  # what it was made from says nothing of its units
                yield from self._behind(value, seen)
        elif isinstance(value, ast.Call):
            yield from self._inside(value)
            for given in values_given(value):
                yield from self.of(given, seen)
        else:
            for child in ast.iter_child_nodes(value):
                yield from self.of(child, seen)

    def _behind(self, name: ast.Name, seen: set[ast.AST]) -> Iterator[str]:
        """The paths behind a local name: of all its values, and of the tests that choose between them."""
        file = self.context.file
        found = file.variable(name)
        if found is None:
            return
        if found.scope is file.scope or len(found.assigned) < len(found.bindings):
            self.say_all &= not any(map(_varies, found.bindings))
        for binding in found.assigned if found.scope is not file.scope else ():
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
        self.say_all = False
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


def _varies(binding: Binding) -> bool:
    """Whether a name may get another value when the program starts otherwise: it is no import, definition or constant."""
    if isinstance(binding, Assigned):
        return not isinstance(binding.value, ast.Constant)
    return not isinstance(binding, Imported | Defined)


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
    if isinstance(value, ast.Call) and text.startswith(tuple(OPTIONS)):
        return f"{source} == {text}"
    return ""
