"""The statements of a function or a file in their order, with what may be true of one model behind each of them.

A loop is taken to run at least once, and one of several branches to be taken.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.program import Program


@dataclass(frozen=True)
class State:
    """What may be true of the model at a point.

    Attributes:
        is_gathered: the root is, since a forward without gradients.
        waits: a forward with gradients has run, whose backward frees it.
        is_made: it is sharded already.
    """

    is_gathered: bool = False
    waits: bool = False
    is_made: bool = True


States = frozenset[State]
Loop = ast.For | ast.AsyncFor | ast.While
NONE: States = frozenset()
FRESH: States = frozenset({State()})


class Search(Protocol):
    """What follows the calls in the statements.

    Attributes:
        sharding: the call or the statement that shards the model.
        is_over: whether nothing more is to be found.
    """

    program: Program
    sharding: ast.AST

    @property
    def is_over(self) -> bool: ...

    def call(self, file: File, call: ast.Call, grad: bool | None, states: States) -> States:
        """The states behind a call."""

    def inside(self, file: File, items: Sequence[ast.withitem], grad: bool | None) -> bool | None:
        """Whether gradients are on in a `with` block."""


class Body:
    """One run through the statements of a function or a file."""

    def __init__(self, search: Search, file: File) -> None:
        self.search = search
        self.file = file
        self.returned: States = NONE
        self._broken: list[States] = []
        self._continued: list[States] = []

    def block(self, block: Sequence[ast.stmt], grad: bool | None, states: States) -> States:
        """The states behind statements."""
        for statement in block:
            if states and not self.search.is_over:
                states = self.statement(statement, grad, states)
            if statement is self.search.sharding:
                states = FRESH
        return states

    def statement(self, statement: ast.stmt, grad: bool | None, states: States) -> States:
        """The states behind a statement; none where it is left."""
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return states
            case ast.If(test=test, body=body, orelse=orelse):
                states = self.calls(test, grad, states)
                ends = self.block(body, grad, states)
                # The last of several branches: one of them is taken.
                is_last = _is_elif(self.file, statement) and not orelse
                if is_last:
                    return ends
                return ends | self.block(orelse, grad, states)
            case ast.For(iter=head) | ast.AsyncFor(iter=head) | ast.While(test=head):
                states = self.calls(head, grad, states)
                return self._loop(statement, grad, states)
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                for item in items:
                    states = self.calls(item.context_expr, grad, states)
                return self.block(body, self.search.inside(self.file, items, grad), states)
            case ast.Try():
                return self._try(statement, grad, states)
            case ast.Match(subject=subject, cases=cases):
                states = self.calls(subject, grad, states)
                return states.union(*[self.block(case.body, grad, states) for case in cases])
        if isinstance(statement, ast.Return | ast.Raise | ast.Break | ast.Continue):
            self._leave(statement, self.calls(statement, grad, states))
            return NONE
        return self.calls(statement, grad, states)

    def _leave(
        self, statement: ast.Return | ast.Raise | ast.Break | ast.Continue, states: States
    ) -> None:
        match statement:
            case ast.Return():
                self.returned |= states
            case ast.Break():
                self._broken[-1] |= states
            case ast.Continue():
                self._continued[-1] |= states

    def _loop(self, loop: Loop, grad: bool | None, states: States) -> States:
        """The states behind a loop, which is left by a `break` only after a first run, if it can be."""
        ends, broken = self._iteration(loop, grad, states)
        if not ends:
            return broken
        states = ends
        left = NONE
        while True:
            ends, broken = self._iteration(loop, grad, states)
            left |= broken
            if ends <= states:
                return self.block(loop.orelse, grad, states) | left
            states |= ends

    def _iteration(self, loop: Loop, grad: bool | None, states: States) -> tuple[States, States]:
        """The states at the end of one run of a loop's body, and those at its `break`."""
        self._broken.append(NONE)
        self._continued.append(NONE)
        ends = self.block(loop.body, grad, states) | self._continued.pop()
        return ends, self._broken.pop()

    def _try(self, statement: ast.Try, grad: bool | None, states: States) -> States:
        ends = self.block(statement.body, grad, states)
        raised = states | ends
        ends = self.block(statement.orelse, grad, ends)
        for handler in statement.handlers:
            ends |= self.block(handler.body, grad, raised)
        return self.block(statement.finalbody, grad, ends)

    def calls(self, node: ast.AST, grad: bool | None, states: States) -> States:
        """The states behind the calls in an expression or a simple statement, arguments first."""
        for call in self.search.program.once(_calls, node):
            states = self.search.call(self.file, call, grad, states)
        return states


def _is_elif(file: File, statement: ast.stmt) -> bool:
    around = file.parents[statement]
    return isinstance(around, ast.If) and around.orelse == [statement]


def _calls(_: Program, node: ast.AST) -> list[ast.Call]:
    return [*_calls_in(node)]


def _calls_in(node: ast.AST) -> Iterator[ast.Call]:
    if isinstance(node, ast.Lambda):
        return
    for child in ast.iter_child_nodes(node):
        yield from _calls_in(child)
    if isinstance(node, ast.Call):
        yield node
