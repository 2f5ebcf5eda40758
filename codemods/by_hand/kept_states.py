"""States of an optimizer that a program keeps in memory and loads again, as those of its best step: no file has them."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.file import File, last_name
from fsdp_migrate.facts.origins import origins_of, returned, within

_COPIES = frozenset({"copy", "deepcopy", "dict", "get", "pop"})
_WRITES = ("save", "dump", "send")


def kept_states(context: Context) -> set[ast.Call]:
    """The calls of a file that take or load such states: what is loaded was taken by this program, and is not saved."""
    found: set[ast.Call] = set()
    for call in context.file.calls.get("load_state_dict", ()):
        if call.args:
            states = _Origins(context).of(call.args[0], context.file)
            if states.taken and not states.is_open and not _are_saved(context, states.taken):
                found |= {call, *states.taken}
    return found


def _are_saved(context: Context, states: set[ast.Call]) -> bool:
    """Whether the program writes one of them to a file, or sends it."""
    return any(
        states & _Origins(context).of(value, file).taken
        for name in _WRITES
        for file, call in context.program.calls(name)
        for value in call.args
    )


class _Origins:
    """Where states come from, followed back.

    Attributes:
        taken: the calls of `state_dict` that they come from.
        is_open: whether they can come from elsewhere, as from a file.
    """

    def __init__(self, context: Context, seen: frozenset[ast.AST] = frozenset()) -> None:
        self._context = context
        self._seen = {*seen}
        self.taken: set[ast.Call] = set()
        self.is_open = False

    def of(self, value: ast.expr, file: File) -> "_Origins":
        """Follow a value of a file."""
        if value in self._seen or isinstance(value, ast.Constant):
            return self
        self._seen.add(value)
        if isinstance(value, ast.Call) and last_name(value.func) == "state_dict":
            self.taken.add(value)
        elif isinstance(value, ast.Dict | ast.Tuple | ast.List):
            self._of_parts(value, file)
        elif not self._all(self._before(value, file)):
            self.is_open = True
        return self

    def _all(self, values: Iterator[tuple[File, ast.expr]]) -> bool:
        """Follow values; False if there are none."""
        found = list(values)
        for file, value in found:
            self.of(value, file)
        return bool(found)

    def _of_parts(self, whole: ast.Dict | ast.Tuple | ast.List, file: File) -> None:
        """Follow those parts that are states: the others are steps, losses and the like."""
        parts = whole.values if isinstance(whole, ast.Dict) else whole.elts
        for part in parts:
            origins = _Origins(self._context, frozenset(self._seen)).of(part, file)
            if origins.taken:
                self.taken |= origins.taken
                self.is_open |= origins.is_open

    def _before(self, value: ast.expr, file: File) -> Iterator[tuple[File, ast.expr]]:
        """The values that a value is made of; none where that is not known."""
        if isinstance(value, ast.Subscript | ast.NamedExpr):
            yield file, value.value
        elif isinstance(value, ast.Name | ast.Attribute):
            yield from _stored(value, file)
            for each in origins_of(self._context.program).of_name(value, file):
                yield each.file, each.value
        elif isinstance(value, ast.Call):
            if last_name(value.func) in _COPIES:
                owner = [value.func.value] if isinstance(value.func, ast.Attribute) else []
                yield from ((file, each) for each in value.args[:1] or owner)
            made = origins_of(self._context.program).called(value, file)
            for each in returned(made) if made is not None else ():
                yield each.file, each.value


def _stored(value: ast.Name | ast.Attribute, file: File) -> Iterator[tuple[File, ast.expr]]:
    """What is put into an attribute or a dictionary of that name: `self.best = x`, `best["optimizer"] = x`."""
    stores = [(each.targets, each.value) for each in file.of(ast.Assign)]
    stores += [([each.target], each.value) for each in file.of(ast.AnnAssign) if each.value]
    for targets, given in stores:
        for target in targets:
            parts: list[tuple[tuple[int, ...], ast.expr]] = [((), target)]
            if isinstance(target, ast.Tuple):
                parts = [((place,), each) for place, each in enumerate(target.elts)]
            for path, each in parts:
                owner = each.value if isinstance(each, ast.Subscript) else each
                if not isinstance(each, ast.Name) and last_name(owner) == last_name(value):
                    yield file, within(given, path)[0]
    for name in ("append", "update"):
        for call in file.calls.get(name, ()):
            owner = getattr(call.func, "value", call)
            if last_name(owner) == last_name(value):
                yield from ((file, each) for each in call.args)
