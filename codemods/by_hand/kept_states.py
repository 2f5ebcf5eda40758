"""States of an optimizer that a program keeps in memory and loads again, as those of its best step: no file has them."""

import ast
from collections.abc import Iterator
from typing import TypeAlias

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.file import File, last_name
from fsdp_migrate.facts.nodes import constant
from fsdp_migrate.facts.origins import origins_of, returned, within

_COPIES = frozenset({"copy", "deepcopy", "dict"})
_LOOKS_UP = frozenset({"get", "pop"})
_WRITES = ("save", "dump", "send")
# What leaves the bytes of a buffer in memory.
_MOVES = ("close", "seek", "truncate")

# A value, and the key of it that is asked for; None for all of it.
_Part: TypeAlias = tuple[ast.AST, str | None]
_Step: TypeAlias = tuple[File, ast.expr, str | None]


def kept_states(context: Context) -> set[ast.Call]:
    """The calls of a file that take or load such states: what is loaded was taken by this program, and is not saved."""
    found: set[ast.Call] = set()
    for call in context.file.calls.get("load_state_dict", ()):
        if call.args:
            states = _States(context).of(call.args[0], context.file)
            if states.taken and not states.is_open and not _are_saved(context, states.taken):
                found |= {call, *states.taken}
    return found


def _are_saved(context: Context, states: set[ast.Call]) -> bool:
    """Whether the program writes one of them to a file, or sends it."""
    for name in _WRITES:
        for file, call in context.program.calls(name):
            if _fills_buffer(call, file):
                continue
            for value in call.args:
                if states & _States(context).of(value, file).taken:
                    return True
    return False


class _States:
    """Where states come from, followed back.

    Attributes:
        taken: the calls of `state_dict` that they come from.
        is_open: whether they can come from elsewhere, as from a file.
    """

    def __init__(self, context: Context, seen: frozenset[_Part] = frozenset()) -> None:
        self._context = context
        self._seen = {*seen}
        self.taken: set[ast.Call] = set()
        self.is_open = False

    def of(self, value: ast.expr, file: File, key: str | None = None) -> "_States":
        """Follow a value of a file, or what it has for a key."""
        if (value, key) in self._seen or isinstance(value, ast.Constant):
            return self
        self._seen.add((value, key))
        if isinstance(value, ast.Call) and last_name(value.func) == "state_dict":
            self.taken.add(value)
        elif isinstance(value, ast.Dict | ast.Tuple | ast.List):
            self._of_parts(value, file, key)
        elif not self._all(self._before(value, file, key)):
            self.is_open = True
        return self

    def _all(self, values: Iterator[_Step]) -> bool:
        """Follow values; False if there are none."""
        found = list(values)
        for file, value, key in found:
            self.of(value, file, key)
        return bool(found)

    def _of_parts(
        self, whole: ast.Dict | ast.Tuple | ast.List, file: File, key: str | None
    ) -> None:
        """Follow those parts that are states: the others are steps, losses and the like."""
        if isinstance(whole, ast.Dict):
            pairs = zip(whole.keys, whole.values, strict=True)
            parts = [part for name, part in pairs if _can_be(constant(name), key)]
        else:
            parts = whole.elts
        for part in parts:
            states = _States(self._context, frozenset(self._seen)).of(part, file)
            if states.taken:
                self.taken |= states.taken
                self.is_open |= states.is_open

    def _before(self, value: ast.expr, file: File, key: str | None) -> Iterator[_Step]:
        """The values that a value is made of; none where that is not known."""
        if isinstance(value, ast.Subscript):
            name = constant(value.slice)
            yield file, value.value, name if isinstance(name, str) else None
        elif isinstance(value, ast.NamedExpr):
            yield file, value.value, key
        elif isinstance(value, ast.Name | ast.Attribute):
            yield from _stored(value, file, key)
            for each in origins_of(self._context.program).of_name(value, file):
                yield each.file, each.value, key
        elif isinstance(value, ast.Call):
            if last_name(value.func) in _COPIES:
                owner = [value.func.value] if isinstance(value.func, ast.Attribute) else []
                yield from ((file, each, key) for each in value.args[:1] or owner)
            elif isinstance(value.func, ast.Attribute) and value.func.attr in _LOOKS_UP:
                yield from _looked_up(value, value.func.value, file)
            elif last_name(value.func) == "load" and value.args:
                yield from ((file, each, key) for each in _in_buffer(value.args[0], file))
            made = origins_of(self._context.program).called(value, file)
            if made is not None:
                yield from [(each.file, each.value, key) for each in returned(made)]


def _looked_up(call: ast.Call, owner: ast.expr, file: File) -> Iterator[_Step]:
    """What `best.get("optimizer", default)` is: of a list `pop` takes a number, or nothing."""
    name = None
    if call.args:
        name = constant(call.args[0])
    yield file, owner, name if isinstance(name, str) else None
    for default in call.args[1:]:
        yield file, default, None


def _can_be(name: object, key: str | None) -> bool:
    """Whether a key of a dictionary, None if it is not written out, can be the one that is asked for."""
    return None in (name, key) or name == key


def _fills_buffer(call: ast.Call, file: File) -> bool:
    """Whether a call writes to a buffer in memory: `torch.save(states, buffer)`."""
    return len(call.args) > 1 and bool(_in_buffer(call.args[1], file))


def _in_buffer(buffer: ast.expr, file: File) -> list[ast.expr]:
    """What `torch.save` writes into `buffer = io.BytesIO()`; nothing if its bytes can leave it but by `torch.load`."""
    name = last_name(buffer)
    made = [file.parents[each] for each in file.calls.get("BytesIO", ()) if not each.args]
    is_made = any(isinstance(s, ast.Assign) and last_name(s.targets[0]) == name for s in made)
    reads = [*file.loads.get(name, ()), *file.attributes.get(name, ())]
    if not is_made or not all(_stays(file, read) for read in reads):
        return []
    saves = [each for each in file.calls.get("save", ()) if len(each.args) > 1]
    return [each.args[0] for each in saves if last_name(each.args[1]) == name]


def _stays(file: File, buffer: ast.expr) -> bool:
    """Whether a use of a buffer saves to it, loads from it, or moves in it."""
    around = file.parents[buffer]
    if isinstance(around, ast.Attribute):
        return around.attr in _MOVES
    if isinstance(around, ast.Call):
        return last_name(around.func) in ("save", "load")
    return isinstance(getattr(buffer, "ctx", None), ast.Store)


def _stored(value: ast.Name | ast.Attribute, file: File, key: str | None) -> Iterator[_Step]:
    """What is put into an attribute or a dictionary of that name: `self.best = x`, `best["optimizer"] = x`."""
    for target, given in _stores(file):
        if isinstance(target, ast.Subscript):
            if last_name(target.value) == last_name(value) and _can_be(constant(target.slice), key):
                yield file, given, None
        elif not isinstance(target, ast.Name) and last_name(target) == last_name(value):
            yield file, given, key
    for name in ("append", "update"):
        for call in file.calls.get(name, ()):
            owner = getattr(call.func, "value", call)
            if last_name(owner) == last_name(value):
                for each in call.args:
                    yield file, each, key


def _stores(file: File) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Each target of the assignments of a file, with what it is set to."""
    stores = [(each.targets, each.value) for each in file.of(ast.Assign)]
    stores += [([each.target], each.value) for each in file.of(ast.AnnAssign) if each.value]
    for targets, given in stores:
        for target in targets:
            if isinstance(target, ast.Tuple):
                for place, each in enumerate(target.elts):
                    yield each, within(given, (place,))[0]
            else:
                yield target, given
