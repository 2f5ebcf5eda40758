"""The uses of a module of a sharded model."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.by_hand import means_the_same as words
from fsdp_migrate.codemods.by_hand.flows import Flow
from fsdp_migrate.codemods.by_hand.kinds import COMPREHENSIONS, GIVES, Kind, Leak
from fsdp_migrate.facts.file import last_name


def uses(flow: Flow, node: ast.expr, parent: ast.AST) -> Iterator[Leak]:
    if isinstance(parent, ast.Attribute):
        yield from _asked_of_module(flow, parent)
    elif isinstance(parent, ast.Call) and node is not parent.func:
        name = last_name(parent.func)
        if name == "type":
            yield from _class(flow, parent)
        elif name == "getattr" and len(parent.args) > 1:
            yield from _named(flow, parent, getattr(parent.args[1], "value", ""))
        elif name == "setattr":
            pass
        elif name in words.APPENDING and isinstance(parent.func, ast.Attribute):
            yield from flow.kept(parent.func.value, Kind.MODULES)
        else:
            yield from flow.into(node, parent, Kind.MODULE)
    elif isinstance(parent, ast.List | ast.Set | COMPREHENSIONS):
        yield from flow.leaks(parent, Kind.MODULES)
    elif isinstance(parent, ast.Subscript) and parent.value is node:
        yield from flow.leaks(parent, Kind.MODULE)
    else:
        yield from flow.passed_on(node, parent, Kind.MODULE)


def _asked_of_module(flow: Flow, asked: ast.Attribute) -> Iterator[Leak]:
    call = flow.context.call_of(asked)
    if asked.attr in {"__class__", "_get_name"}:
        if flow.context.form == "torch":  # `like_fsdp1` keeps what they answer
            yield from _class(flow, call or asked)
    elif asked.attr in words.DRAWS_MODULE and call is not None:
        yield Leak(call, "drawn")
    elif asked.attr in {"eval", "to", "train"} and call is not None:
        yield from flow.leaks(call, Kind.MODULE)
    elif asked.attr in GIVES[Kind.MODULE] and call is not None:
        yield from flow.leaks(call, GIVES[Kind.MODULE][asked.attr])
    elif asked.attr == "requires_grad_" and call is not None:
        yield from [Leak(call, "freeze")] if flow.were_flat else []
    elif isinstance(asked.ctx, ast.Load) and call is None:
        yield from _named(flow, asked, asked.attr)


def _named(flow: Flow, taken: ast.expr, name: object) -> Iterator[Leak]:
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
        for target in parent.targets if isinstance(parent, ast.Assign) else [parent.target]:
            for read in flow.reads(target):
                yield from _class(flow, read)
    if flow.in_place and (is_key or isinstance(parent, ast.Match)):
        yield Leak(cls, "class")
