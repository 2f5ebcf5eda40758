"""The uses of one parameter."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.by_hand import means_the_same as words
from fsdp_migrate.codemods.by_hand.flows import Flow
from fsdp_migrate.codemods.by_hand.kinds import COMPREHENSIONS, Kind, Leak
from fsdp_migrate.facts.file import is_name, last_name
from fsdp_migrate.facts.nodes import any_below, constant


def uses(flow: Flow, node: ast.expr, parent: ast.AST) -> Iterator[Leak]:
    if isinstance(parent, ast.Attribute):
        yield from _asked(flow, parent)
    elif isinstance(parent, ast.Call) and node is not parent.func:
        yield from _given_one(flow, node, parent)
    elif isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.MatMult):
        yield Leak(parent, "value")
    elif isinstance(parent, ast.BinOp | ast.UnaryOp):
        yield from flow.leaks(parent, Kind.PARAMETER)
    elif isinstance(parent, ast.Compare):
        yield from _compared(flow, node, parent)
    elif isinstance(parent, ast.Subscript) and parent.value is node:
        yield Leak(parent, "value")
    elif isinstance(parent, ast.List | ast.Set | COMPREHENSIONS):
        yield from flow.leaks(parent, Kind.PARAMETERS)
    else:
        yield from flow.passed_on(node, parent, Kind.PARAMETER)


def _compared(flow: Flow, node: ast.expr, compare: ast.Compare) -> Iterator[Leak]:
    """`p.grad is None`, where that is counted, listed or refused; to leave such a parameter out gives the same."""
    match compare:
        case ast.Compare(ops=[ast.Is()], comparators=[ast.Constant(value=None)]):
            is_gradient = isinstance(node, ast.Attribute) and node.attr == "grad"
            if is_gradient and not _leaves_out(flow, compare):
                yield Leak(compare, "gradient")


def _leaves_out(flow: Flow, test: ast.expr) -> bool:
    """Whether a test only leaves a parameter out, or gives it a gradient."""
    around = flow.file.parents[test]
    while isinstance(around, ast.BoolOp):
        around = flow.file.parents[around]
    if isinstance(around, ast.If):
        return all(map(_does_nothing, around.body))
    is_listed = isinstance(around, ast.comprehension | COMPREHENSIONS | ast.DictComp)
    return not is_listed


def _does_nothing(statement: ast.stmt) -> bool:
    match statement:
        case ast.Continue() | ast.Pass() | ast.Return():
            return True
        case ast.Assign(targets=[ast.Attribute(attr="grad")]):
            return True
    return False


def _asked(flow: Flow, asked: ast.Attribute) -> Iterator[Leak]:
    """What is asked of a parameter, or done to it."""
    call = flow.context.call_of(asked)
    freezes = asked.attr == "requires_grad_" or isinstance(asked.ctx, ast.Store)
    if freezes and asked.attr.startswith("requires_grad"):
        if flow.were_flat:
            is_of_part = not _is_of_whole_model(flow, asked)
            if is_of_part:
                yield Leak(asked, "freeze")
            elif is_toggled(flow, asked):
                yield Leak(asked, "toggle")
    elif asked.attr in words.ELEMENTWISE and isinstance(asked.ctx, ast.Load):
        yield from flow.leaks(call or asked, Kind.PARAMETER)
    elif asked.attr in words.TRANSPOSED:
        yield Leak(asked, "value")
    elif asked.attr in words.DRAWN and call is not None:
        yield Leak(call, "drawn")
    elif asked.attr not in words.ASKED and call is not None:
        yield Leak(call, "value")


def _is_of_whole_model(flow: Flow, asked: ast.Attribute) -> bool:
    """Whether all parameters of a sharded model are frozen, which froze FSDP1's flat ones as well."""
    for around in flow.file.ancestors(asked):
        if isinstance(around, ast.If | ast.IfExp | ast.Try):
            return False
        if isinstance(around, ast.For):
            match around.iter:
                case ast.Call(func=ast.Attribute(value=model, attr="parameters")):
                    return is_name(model, "self") or flow.context.can_be_model(model)
            return False
    return False


def is_toggled(flow: Flow, asked: ast.Attribute) -> bool:
    """Whether `p.requires_grad = trains`, or `model.requires_grad_(trains)`, sets now one and now the other."""
    call = flow.context.call_of(asked)
    if call is not None:
        return bool(call.args) and not isinstance(call.args[0], ast.Constant)
    statement = flow.file.parents[asked]
    return isinstance(statement, ast.Assign) and not isinstance(statement.value, ast.Constant)


def _given_one(flow: Flow, node: ast.expr, call: ast.Call) -> Iterator[Leak]:
    """A parameter that a function is given."""
    name = last_name(call.func)
    if name in words.APPENDING and isinstance(call.func, ast.Attribute):
        yield from flow.kept(call.func.value, Kind.PARAMETERS)
    elif name == "setdefault" and isinstance(call.func, ast.Attribute):
        yield from flow.kept(call.func.value, Kind.OWN)
    elif name in words.ELEMENTWISE:
        yield from flow.leaks(call, Kind.PARAMETER)
    elif any_below(flow.context.dotted(call.func), "torch.nn.init."):
        yield Leak(call, "drawn")
    elif name in words.SAVING:
        yield Leak(call, "saved")
    elif name == "setattr" and len(call.args) > 1:
        if flow.were_flat and constant(call.args[1]) == "requires_grad":
            yield Leak(call, "freeze")
    elif name not in words.TAKES_PARAMETER and not flow.is_optimizers(call):
        yield from flow.into(node, call, Kind.PARAMETER)
