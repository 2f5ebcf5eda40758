"""Tests for the class of a child of a sharded model: a unit was found as FSDP1's wrapper, which was of no other class.

Among all modules the wrapped one was found as well, so a test there is true as often. So it is where a function goes on with
the children of what it does not know.
"""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.by_hand.flows import Flow, functions
from fsdp_migrate.codemods.by_hand.kinds import Leak
from fsdp_migrate.codemods.by_hand.unit_classes import may_be_named, may_be_unit
from fsdp_migrate.facts.file import last_name

_USE = "child"


def given(flow: Flow, call: ast.Call) -> Iterator[Leak]:
    """`isinstance(child, Block)`, and a call of what `@functools.singledispatch` makes."""
    if not flow.in_place or _goes_on(flow, call):
        return
    tested: list[ast.expr] = []
    if last_name(call.func) == "isinstance":
        tested = call.args[1:]
    for function in functions(flow.context, call.func):
        if "singledispatch" in map(last_name, function.decorator_list):
            tested += _registered(flow, function.name)
    if any(may_be_unit(flow.context, cls) for cls in tested):
        yield Leak(call, _USE)


def matched(flow: Flow, subject: ast.expr, match: ast.Match) -> Iterator[Leak]:
    """`match child`, with `case Block()`."""
    patterns = [each for case in match.cases for each in ast.walk(case.pattern)]
    classes = [each.cls for each in patterns if isinstance(each, ast.MatchClass)]
    if flow.in_place and match.subject is subject and not _goes_on(flow, subject):
        if any(may_be_unit(flow.context, cls) for cls in classes):
            yield Leak(subject, _USE)


def named(flow: Flow, cls: ast.expr) -> Iterator[Leak]:
    """`type(child).__name__ == "Block"`, and `child._get_name()`: classes keep their names under `like_fsdp1`."""
    name: ast.AST = cls
    parent = flow.file.parents[cls]
    if isinstance(parent, ast.Attribute) and parent.attr == "__name__":
        name = parent
        parent = flow.file.parents[parent]
    if not isinstance(parent, ast.Compare) or flow.context.form != "auto":
        return
    sides = [each for each in (parent.left, *parent.comparators) if each is not name]
    texts = [
        each.value for side in sides for each in ast.walk(side) if isinstance(each, ast.Constant)
    ]
    if not _goes_on(flow, parent):
        if any(isinstance(text, str) and may_be_named(flow.context, text) for text in texts):
            yield Leak(parent, _USE)


def _registered(flow: Flow, name: str) -> Iterator[ast.expr]:
    """The classes of `@name.register` with an annotation, of `@name.register(Block)`, and of `name.register(Block, f)`."""
    for attribute in flow.file.attributes.get("register", ()):
        if last_name(attribute.value) != name:
            continue
        around = flow.file.parents[attribute]
        if isinstance(around, ast.Call) and around.func is attribute:
            yield from around.args[:1]
        elif isinstance(around, ast.FunctionDef) and around.args.args:
            annotation = around.args.args[0].annotation
            if annotation is not None:
                yield annotation


def _goes_on(flow: Flow, node: ast.expr) -> bool:
    """Whether the function around a node calls itself: in a wrapper it finds the module."""
    function = flow.file.function(node)
    return function is not None and flow.file.calls_in(function, function.name)
