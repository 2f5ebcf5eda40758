"""Whether a program may read a sharded model's parameters after a forward without gradients, before its next backward.

The statements of each function are followed in their order, into the functions that they call. What is known on the way is
whether the root may be gathered by such a forward, and whether a forward with gradients waits for its backward, which frees
it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fsdp_migrate.codemods.constructor.events import FUNCTIONS, WORDS, Effect, Event, Events
from fsdp_migrate.codemods.constructor.statements import FRESH, NONE, Body, State, States
from fsdp_migrate.facts.file import File, last_name
from fsdp_migrate.facts.nodes import any_is
from fsdp_migrate.facts.program import Definition, External, Program

_WITHOUT = frozenset({"no_grad", "inference_mode"})
_CHOSEN = "set_grad_enabled"
_CALL_NOTHING = frozenset(
    {"object", "abc.ABC", "typing.Generic", "torch.nn.Module", "torch.nn.modules.module.Module"}
)
_WORD = re.compile(rb"[A-Za-z_]\w*")
_DEEP = 40  # calls: behind them nothing is followed, before Python's own limit is reached


@dataclass(frozen=True)
class Place:
    """A node of a file.

    Attributes:
        reads: whether it reads the parameters itself; else it may call code that the files do not show.
    """

    file: File
    node: ast.AST
    reads: bool


FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
NOT_MADE: States = frozenset({State(is_made=False)})
GATHERED: States = frozenset({State(is_gathered=True)})


def first_read(program: Program, sharding: ast.AST, paths: Sequence[str]) -> Place | None:
    """The first place that may read a model's parameters while its root is gathered; None if the files show that none does.

    Args:
        sharding: the call or the statement that shards the model.
        paths: the files that can get the model.
    """
    if program.tree.having(WORDS).isdisjoint(paths):
        return None
    events = Events(program, sharding, frozenset(paths))
    search = _Search(program, events, sharding)
    search.follow(events.files, frozenset(paths))
    return search.found


class _Search:
    """The order of what happens to one model.

    Attributes:
        found: the place that reads its parameters then.
        is_open: whether what the files do not show may run it without gradients.
    """

    def __init__(self, program: Program, events: Events, sharding: ast.AST) -> None:
        self.program = program
        self.events = events
        self.sharding = sharding
        self.found: Place | None = None
        self.is_open = False
        # Of functions that nothing calls only what the files show counts.
        self._is_strict = True
        self._depth = 0
        self._makers = _makers(events.files, sharding)
        self._ends: dict[tuple[ast.AST, bool | None, State], States] = {}

    @property
    def is_over(self) -> bool:
        """Whether such a place is found."""
        return self.found is not None

    def follow(self, files: Sequence[File], paths: frozenset[str]) -> None:
        """Follows all that the files run by themselves, and the functions that nothing in them calls.

        Args:
            paths: all files that can get the model.
        """
        uncalled = [*_uncalled(files)]
        makers = self._makers
        if any_is(makers, ast.Module):  # of no other program
            names = self.program.once(_names_in, paths)
            uncalled = [each for each in uncalled if not self._is_dead(names, each)]
        for each in uncalled:
            if each.node not in makers:
                ends = self.function(each, True, FRESH)
                self.is_open |= any(state.is_gathered for state in ends)
        if self.is_open:
            for each in uncalled:
                if each.node not in makers:
                    self.function(each, True, GATHERED)
        self._is_strict = False
        self._ends.clear()
        for each in uncalled:
            if each.node in makers:
                self.function(each, True, NOT_MADE)
        for file in files:
            self.body(file, file.tree.body, True, self._begins(file))

    def _begins(self, file: File) -> States:
        """The states where a file begins."""
        if file.tree in self._makers:
            return NOT_MADE
        return FRESH

    def _is_dead(self, names: frozenset[str], function: Definition) -> bool:
        """Whether nothing can call a function that nothing calls by its name: no code names it at all.

        A class of another library may call the methods of those below it.
        """
        file = function.file
        node = function.node
        around = file.parents[node]
        if node.decorator_list or node.name in names:
            return False
        if isinstance(around, ast.ClassDef):
            above = self.program.classes_above(Definition(file, around))
            outside = {each.dotted for each in above if isinstance(each, External)}
            return outside <= _CALL_NOTHING
        return isinstance(around, ast.Module)

    def function(self, called: Definition, grad: bool | None, states: States) -> States:
        """The states behind a call of a function."""
        file = called.file
        function = called.node
        assert isinstance(function, FUNCTIONS)
        grad = _inside(file, function, grad)
        return NONE.union(*[self._behind(file, function, grad, state) for state in states])

    def _behind(
        self, file: File, function: FunctionNode, grad: bool | None, state: State
    ) -> States:
        states = frozenset({state})
        if not state.is_made and function not in self._makers:
            return states
        key = function, grad, state
        if key not in self._ends:
            self._ends[key] = states
            self._depth += 1
            if self._depth < _DEEP:
                self._ends[key] = self.body(file, function.body, grad, states)
            else:
                self._ends[key] = self._unseen(file, function, grad, states)
            self._depth -= 1
        return self._ends[key]

    def body(
        self, file: File, block: Sequence[ast.stmt], grad: bool | None, states: States
    ) -> States:
        """The states behind the body of a function or a file."""
        run = Body(self, file)
        return run.block(block, grad, states) | run.returned

    def call(self, file: File, call: ast.Call, grad: bool | None, states: States) -> States:
        """The states behind a call."""
        if call is self.sharding:
            return FRESH.union([state for state in states if state.is_made])
        effect: Effect = self.events.of(file, call)
        if effect.functions:
            ends = [self.function(each, grad, states) for each in effect.functions]
            return frozenset[State]().union(*ends)
        if self._is_strict and not effect.is_shown:
            return states
        match effect.event:
            case Event.RUNS:
                return _run(states, grad)
            case Event.GENERATES:
                return _run(states, False)
            case Event.BACKWARD:
                return _behind_backward(states)
            case Event.FREES:
                return frozenset(replace(each, is_gathered=False) for each in states)
            case Event.READS:
                self._read(file, call, states, reads=True)
            case Event.OPEN:
                return self._unseen(file, call, grad, states)
        return states

    def inside(self, file: File, items: Sequence[ast.withitem], grad: bool | None) -> bool | None:
        """Whether gradients are on in a `with` block."""
        for item in items:
            match item.context_expr:
                case ast.Call(func=function, args=args) if last_name(function) == _CHOSEN:
                    flag = None
                    if args:
                        flag = args[0]
                    grad = None
                    if isinstance(flag, ast.Constant):
                        grad = bool(flag.value)
                case ast.Call(func=function) if last_name(function) in _WITHOUT:
                    grad = False
                case ast.Call(func=function) if last_name(function) == "enable_grad":
                    grad = True
                case ast.Call() as call if grad and self._may_switch_off(file, call):
                    grad = None
        return grad

    def _may_switch_off(self, file: File, context: ast.Call) -> bool:
        """Whether a context of the program, or one that it does not show, may be one that switches gradients off."""
        if self.program.dotted(context.func, file):
            return False
        called = self.events.models.origins.called(context, file)
        if called is None:
            return bool(self._choosing)
        return called.node in self._choosing

    @cached_property
    def _choosing(self) -> set[ast.AST | None]:
        """The functions that use what switches gradients off as a value."""
        return {file.function(node) for file in self.events.files for node in _chosen(file)}

    def _unseen(self, file: File, call: ast.AST, grad: bool | None, states: States) -> States:
        """The states behind what is not followed, which is given the model."""
        self._read(file, call, states, reads=False)
        if self.is_open:
            states |= _run(states, False)
        return states | _run(states, grad)

    def _read(self, file: File, call: ast.AST, states: States, *, reads: bool) -> None:
        if self.found is None and any(state.is_gathered for state in states):
            self.found = Place(file, call, reads)


def _behind_backward(states: States) -> States:
    """The states behind a backward, which frees what waits for it."""
    waiting = {each for each in states if each.waits}
    if waiting:
        return (states - waiting) | {State()}
    return states


def _run(states: States, grad: bool | None) -> States:
    """The states behind a forward, with gradients or without, or either."""
    not_made = states - {each for each in states if each.is_made}
    with_them = {replace(each, waits=True) for each in states - not_made}
    without = {replace(each, is_gathered=True) for each in states - not_made}
    if grad is None:
        return not_made | with_them | without
    if grad:
        return not_made | with_them
    return not_made | without


def _inside(file: File, function: ast.AST, grad: bool | None) -> bool | None:
    """Whether gradients are on in a function, by its decorators; None where it, or its file, chooses that by a value."""
    assert isinstance(function, FUNCTIONS)
    for decorator in function.decorator_list:
        named = decorator
        if isinstance(decorator, ast.Call):
            named = decorator.func
        if last_name(named) in _WITHOUT:
            return False
    if grad is False:
        return False
    odd = [file.function(node) for node in _chosen(file)]
    if function in odd or None in odd:
        return None
    return grad


def _chosen(file: File) -> Iterator[ast.expr]:
    """What switches gradients off neither as a decorator nor as the context of a `with` itself."""
    for name in (*_WITHOUT, _CHOSEN):
        for node in (*file.attributes.get(name, ()), *file.loads.get(name, ())):
            at: ast.AST = node
            parent = file.parents[node]
            if isinstance(parent, ast.Call) and parent.func is node:
                at = parent
                parent = file.parents[parent]
            is_decorator = isinstance(parent, FUNCTIONS) and at in parent.decorator_list
            if not isinstance(parent, ast.withitem) and not is_decorator:
                yield node


def _uncalled(files: Sequence[File]) -> Iterator[Definition]:
    """The functions that nothing in some files calls by their names; what runs as part of a forward aside."""
    called = {name for file in files for name in file.calls}
    for file in files:
        for node in _functions(file):
            name = node.name
            if name == "__init__" and (cls := file.enclosing_class(node)) is not None:
                name = cls.name
            if name not in called and name not in ("forward", "__call__"):
                yield Definition(file, node)


def _functions(file: File) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from file.of(ast.FunctionDef)
    yield from file.of(ast.AsyncFunctionDef)


def _names_in(program: Program, paths: frozenset[str]) -> frozenset[str]:
    """The names that some files may use, also in texts: all words of those that are not followed."""
    found = set[str]()
    known = program.tree.having(WORDS)
    for path in paths:
        if path not in known and not program.mentions(path):
            found.update(map(bytes.decode, _WORD.findall(program.tree.data(path))))
        elif (file := program.load(path)) is not None:
            found.update(file.loads, file.attributes)
            texts = [each.value for each in file.of(ast.Constant)]
            found.update([text for text in texts if isinstance(text, str)])
    return frozenset(found)


def _makers(files: Sequence[File], sharding: ast.AST) -> set[ast.AST]:
    """The functions that shard the model themselves or call one that does, and the files that do so at their top."""
    found = set[ast.AST]()
    pending = [(file, sharding) for file in files if sharding in file.parents]
    while pending:
        file, node = pending.pop()
        function = file.function(node)
        if function is None:
            found.add(file.tree)
        elif function not in found:
            found.add(function)
            for other in files:
                pending += [(other, call) for call in other.calls.get(function.name, ())]
    return found
