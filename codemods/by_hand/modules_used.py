"""The uses of a module of a sharded model."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.by_hand import child_tests, containers_used
from fsdp_migrate.codemods.by_hand import means_the_same as words
from fsdp_migrate.codemods.by_hand.flows import Flow
from fsdp_migrate.codemods.by_hand.kinds import COMPREHENSIONS, GIVES, SEVERAL, Kind, Leak
from fsdp_migrate.facts.file import last_name
from fsdp_migrate.facts.nodes import constant, targets_of


def uses(flow: Flow, node: ast.expr, parent: ast.AST, kind: Kind) -> Iterator[Leak]:
    if isinstance(parent, ast.Attribute):
        yield from _asked_of_module(flow, parent, kind)
    elif isinstance(parent, ast.Call) and node is not parent.func:
        yield from _given(flow, node, parent, kind)
    elif isinstance(parent, ast.For | ast.AsyncFor | ast.comprehension) and parent.iter is node:
        yield from flow.bound(parent.target, Kind.MODULES)
    elif isinstance(parent, ast.Match) and kind is Kind.MODULE:
        yield from child_tests.matched(flow, node, parent)
    elif isinstance(parent, ast.List | ast.Set | COMPREHENSIONS):
        yield from flow.leaks(parent, SEVERAL[kind])
    elif isinstance(parent, ast.Subscript) and parent.value is node:
        yield from flow.leaks(parent, Kind.MODULE)
    else:
        yield from flow.passed_on(node, parent, kind)


def _given(flow: Flow, node: ast.expr, call: ast.Call, kind: Kind) -> Iterator[Leak]:
    """A module, or a container of modules, that a function is given."""
    name = last_name(call.func)
    if name == "type":
        yield from _class(flow, call)
        if kind is Kind.MODULE:
            yield from child_tests.named(flow, call)
    elif name == "getattr" and len(call.args) > 1:
        yield from named(flow, call, constant(call.args[1]))
    elif name == "setattr":
        return
    elif name in words.APPENDING and isinstance(call.func, ast.Attribute):
        yield from flow.kept(call.func.value, SEVERAL[kind])
    elif name in words.SAME | words.ITERATING:
        yield from containers_used.uses(flow, node, call, SEVERAL[kind])
    else:
        if kind is Kind.MODULE:
            yield from child_tests.given(flow, call)
        if name != "isinstance":
            yield from flow.into(node, call, kind)


def _asked_of_module(flow: Flow, asked: ast.Attribute, kind: Kind) -> Iterator[Leak]:
    call = flow.context.call_of(asked)
    if asked.attr in {"__class__", "_get_name"}:
        if flow.context.form == "torch":  # `like_fsdp1` keeps what they answer
            yield from _class(flow, call or asked)
        if kind is Kind.MODULE:
            yield from child_tests.named(flow, call or asked)
    elif call is not None:
        yield from _called(flow, call, asked.attr, kind)
    elif isinstance(asked.ctx, ast.Load):
        yield from named(flow, asked, asked.attr)


def _called(flow: Flow, call: ast.Call, method: str, kind: Kind) -> Iterator[Leak]:
    """A call of a method of a module."""
    if method in words.DRAWS_MODULE:
        yield Leak(call, "drawn")
    elif method in {"eval", "to", "train"}:
        yield from flow.leaks(call, kind)
    elif method == "values":  # of a dictionary of modules
        yield from flow.leaks(call, Kind.MODULES)
    elif method in GIVES[Kind.MODULE]:
        yield from flow.leaks(call, GIVES[Kind.MODULE][method])
    elif method == "requires_grad_" and flow.were_flat:
        yield Leak(call, "freeze")


def named(flow: Flow, taken: ast.expr, name: object) -> Iterator[Leak]:
    """An attribute of a module: a parameter by its usual names, its table of parameters, or what may be a module."""
    if name in {"weight", "bias"}:
        yield from flow.leaks(taken, Kind.PARAMETER)
    elif name == "_parameters":
        yield from flow.leaks(taken, Kind.OWN)
    elif isinstance(name, str) and name not in words.OF_MODULE:
        yield from flow.leaks(taken, Kind.MODULE)


def _class(flow: Flow, cls: ast.expr) -> Iterator[Leak]:
    """The class of a module, where it is a key, or goes by `match`; tests of it have a rule of their own."""
    parent = flow.file.parents[cls]
    if isinstance(parent, ast.Attribute) and parent.attr == "__name__":
        if flow.context.form == "torch":
            yield from _class(flow, parent)
        return
    is_key = isinstance(parent, ast.Subscript) and parent.slice is cls
    if isinstance(parent, ast.Call):
        is_key = last_name(parent.func) in {"get", "pop", "setdefault"} and cls in parent.args[:1]
    elif isinstance(parent, ast.Compare):
        is_key = isinstance(parent.ops[0], ast.In | ast.NotIn) and parent.left is cls
    elif isinstance(parent, ast.NamedExpr | ast.Assign):
        for target in targets_of(parent):
            for read in flow.reads(target):
                yield from _class(flow, read)
    if flow.in_place and (is_key or isinstance(parent, ast.Match)):
        yield Leak(cls, "class")
