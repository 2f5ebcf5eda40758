"""The uses of what holds several parameters, names or modules."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.by_hand import means_the_same as words
from fsdp_migrate.codemods.by_hand import names_used
from fsdp_migrate.codemods.by_hand.flows import Flow, functions
from fsdp_migrate.codemods.by_hand.kinds import (
    AT,
    AT_KEY,
    BY_KEY,
    COMPREHENSIONS,
    GIVES,
    ITEM,
    OF_MODULES,
    OF_PARAMETERS,
    PARTS,
    Kind,
    Leak,
)
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.file import is_method, last_name
from fsdp_migrate.facts.nodes import constant, text_of


def uses(flow: Flow, node: ast.expr, parent: ast.AST, kind: Kind) -> Iterator[Leak]:
    if isinstance(parent, ast.For | ast.AsyncFor | ast.comprehension):
        if parent.iter is node:
            yield from _looped(flow, parent, kind)
    elif isinstance(parent, ast.Call) and node is not parent.func:
        yield from _given(flow, node, parent, kind)
    elif isinstance(parent, ast.Attribute):
        yield from _method(flow, parent, kind)
    elif isinstance(parent, ast.Subscript) and parent.value is node:
        yield from _at(flow, parent, kind)
    elif isinstance(parent, ast.Compare) and node in parent.comparators:
        yield from _searched(flow, parent, kind)
    elif isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Tuple):
        yield from _unpacked(flow, parent, parent.targets[0], kind)
    elif isinstance(parent, ast.BinOp) and kind is Kind.NAMES:
        yield from _joined(flow, node, parent)
    else:
        yield from flow.passed_on(node, parent, kind)


def _looped(
    flow: Flow, loop: ast.For | ast.AsyncFor | ast.comprehension, kind: Kind
) -> Iterator[Leak]:
    if isinstance(loop, ast.comprehension) and _counts(flow, loop.iter, kind):
        around = flow.file.parents[loop]
        if isinstance(around, COMPREHENSIONS) and isinstance(around.elt, ast.Constant):
            yield Leak(around, _number(kind))
    yield from flow.bound(loop.target, kind)


def _method(flow: Flow, asked: ast.Attribute, kind: Kind) -> Iterator[Leak]:
    call = flow.context.call_of(asked)
    if call is None:
        return
    if asked.attr in {"pop", "popleft", "index"} and kind not in PARTS:
        is_by_key = kind in {Kind.BY_NAME, Kind.OWN, Kind.STATES, Kind.STATE}
        if not is_by_key and _counts(flow, asked.value, kind):
            yield Leak(call, _number(kind))
    if asked.attr in {"get", "pop"} and kind is Kind.BY_NAME and call.args:
        if names_used.is_text(flow.context, call.args[0]):
            yield from _is_of_names(flow, call)
    if kind is Kind.NAMES and asked.attr in {"intersection", "difference", "isdisjoint"}:
        if any(names_used.are_texts(flow.context, each) for each in call.args):
            yield from _is_of_names(flow, call)
    yield from flow.leaks(call, GIVES.get(kind, {}).get(asked.attr))


def _at(flow: Flow, taken: ast.Subscript, kind: Kind) -> Iterator[Leak]:
    """What an index, a slice or a key takes out."""
    key = constant(taken.slice)
    if kind in PARTS:
        if isinstance(key, int) and key in (0, 1):
            yield from flow.leaks(taken, PARTS[kind][key])
        return
    if kind not in BY_KEY and _counts(flow, taken.value, kind):
        yield Leak(taken, _number(kind))
        return
    if kind is Kind.BY_NAME and names_used.is_text(flow.context, taken.slice):
        yield from _is_of_names(flow, taken)
    is_step = kind is Kind.STATE and key == "step"
    if isinstance(taken.ctx, ast.Load) and not is_step:
        if isinstance(taken.slice, ast.Slice):
            yield from flow.leaks(taken, kind)
        else:
            at = AT_KEY.get((kind, text_of(taken.slice)), AT.get(kind))
            yield from flow.leaks(taken, at)


def _joined(flow: Flow, names: ast.expr, both: ast.BinOp) -> Iterator[Leak]:
    """`names & {"head.weight"}`, and what comes out."""
    other = both.left
    if both.left is names:
        other = both.right
    if isinstance(both.op, ast.BitAnd | ast.Sub) and names_used.are_texts(flow.context, other):
        yield from _is_of_names(flow, both)
    yield from flow.leaks(both, Kind.NAMES)


def _searched(flow: Flow, compare: ast.Compare, kind: Kind) -> Iterator[Leak]:
    """`"head.weight" in names`."""
    if kind in {Kind.BY_NAME, Kind.NAMES} and isinstance(compare.ops[0], ast.In | ast.NotIn):
        if names_used.is_text(flow.context, compare.left):
            yield from _is_of_names(flow, compare)


def _is_of_names(flow: Flow, node: ast.expr) -> Iterator[Leak]:
    if flow.in_place and not flow.were_flat:
        yield Leak(node, "name")


def _unpacked(flow: Flow, assign: ast.Assign, target: ast.Tuple, kind: Kind) -> Iterator[Leak]:
    """`first, *rest = model.parameters()`."""
    if kind in PARTS:
        for part, each in zip(target.elts, PARTS[kind], strict=False):
            yield from flow.kept(part, each)
        return
    if _counts(flow, assign.value, kind):
        yield Leak(assign.value, _number(kind))
    for part in target.elts:
        if isinstance(part, ast.Starred):
            yield from flow.kept(part.value, kind)
        else:
            yield from flow.kept(part, ITEM.get(kind))


def _counts(flow: Flow, node: ast.expr, kind: Kind) -> bool:
    """Whether there were fewer, because a unit had one flat parameter, or more, because wrappers were modules."""
    if kind not in OF_MODULES:
        return flow.were_flat and kind in OF_PARAMETERS
    while isinstance(node, ast.Call) and last_name(node.func) in words.SAME and node.args:
        node = node.args[0]
    are_all = isinstance(node, ast.Call) and last_name(node.func) in {"modules", "named_modules"}
    return flow.in_place and are_all


def _number(kind: Kind) -> str:
    if kind in OF_MODULES:
        return "modules"
    return "order"


def _given(flow: Flow, node: ast.expr, call: ast.Call, kind: Kind) -> Iterator[Leak]:
    """A container that a function is given."""
    name = last_name(call.func)
    if kind in PARTS:
        yield from flow.into(node, call, kind)
    elif name in words.COUNTING and _counts(flow, node, kind):
        if not _asks_for_any(flow, call):
            yield Leak(call, _number(kind))
    elif name in words.SAME:
        yield from _keyed(flow, call, kind)
        yield from flow.leaks(call, _made_by(name, kind))
    elif name in words.ITERATING:
        yield from _iterated(flow, node, call, kind)
    elif name in words.APPENDING and isinstance(call.func, ast.Attribute):
        yield from flow.kept(call.func.value, kind)
    elif name in words.SAVING or name.startswith("_foreach_"):
        yield from _used_as_a_whole(call, name, kind)
    elif not flow.is_optimizers(call) and name not in words.TAKES_PARAMETER | words.COUNTING:
        yield from flow.into(node, call, kind)


def _used_as_a_whole(call: ast.Call, name: str, kind: Kind) -> Iterator[Leak]:
    """`torch.save(params)` and `torch._foreach_norm(params)`."""
    if name in words.SAVING:
        if kind in OF_PARAMETERS:
            yield Leak(call, "saved")
    elif "norm" in name:
        yield Leak(call, "value")


def _asks_for_any(flow: Flow, number: ast.Call) -> bool:
    """`len(params) > 0`, and `len(params)` as a test by itself: there were some before as well."""
    match flow.file.parents[number]:
        case ast.Compare(comparators=[ast.Constant(value=0)]):
            return last_name(number.func) == "len"
        case ast.If() | ast.While() | ast.Assert() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
            return True
    return False


def _made_by(name: str, kind: Kind) -> Kind:
    """What a function makes of a container whose items it keeps."""
    if name == "dict" and kind is Kind.NAMED:
        return Kind.BY_NAME
    if kind is Kind.BY_NAME and name != "dict":
        return Kind.NAMES
    return kind


def _iterated(flow: Flow, node: ast.expr, call: ast.Call, kind: Kind) -> Iterator[Leak]:
    """A container whose items a function takes one by one."""
    name = last_name(call.func)
    if name in {"enumerate", "zip"}:
        yield from _beside(flow, node, call, kind)
    elif name == "next":
        yield from flow.leaks(call, ITEM.get(kind))
    else:
        yield from _applied(flow, node, call, kind)


def _beside(flow: Flow, node: ast.expr, call: ast.Call, kind: Kind) -> Iterator[Leak]:
    """The items beside others: `enumerate(node)`, `zip(others, node)`."""
    place = 0
    if last_name(call.func) == "enumerate":
        place = 1
    if node in call.args and not place:
        place = call.args.index(node)
        others = [each for each in call.args if each is not node]
        if _counts(flow, node, kind) and any(_is_of_numbers(flow.context, each) for each in others):
            yield Leak(call, _number(kind))
    loop = flow.file.parents[call]
    if isinstance(loop, ast.For | ast.comprehension) and isinstance(loop.target, ast.Tuple):
        if place < len(loop.target.elts):
            yield from flow.bound(loop.target.elts[place], kind, loop)


def _keyed(flow: Flow, call: ast.Call, kind: Kind) -> Iterator[Leak]:
    """What a function that is given by name makes of the items: `sorted(node, key=lambda item: ...)`."""
    for keyword in call.keywords:
        if keyword.arg == "key" and isinstance(keyword.value, ast.Lambda):
            yield from flow.bound_by(keyword.value, kind)
        elif keyword.arg == "key":
            yield from _called_on(flow, keyword.value, call, kind, place=0)


def _called_on(
    flow: Flow, function: ast.expr, call: ast.Call, kind: Kind, place: int
) -> Iterator[Leak]:
    """What a function of the file does with the items that it is called on, as its argument at a place."""
    for made in functions(flow.context, function):
        at = place + is_method(made)
        if -len(made.args.args) <= at < len(made.args.args):
            yield from flow.argument(made.args.args[at], ITEM.get(kind))


def _applied(flow: Flow, node: ast.expr, call: ast.Call, kind: Kind) -> Iterator[Leak]:
    """What a function is applied to: `map(lambda p: p.norm(), node)`."""
    name = last_name(call.func)
    yield from _keyed(flow, call, kind)
    function = node
    if call.args:
        function = call.args[0]
    if len(call.args) > 1 and isinstance(call.args[1], ast.Lambda):
        function = call.args[1]  # of groupby
    if isinstance(function, ast.Lambda):
        yield from flow.bound_by(function, kind)
    elif last_name(function) == "type" and kind in OF_MODULES and flow.in_place:
        yield Leak(call, "class")
    elif function is not node and isinstance(function, ast.Name | ast.Attribute):
        place = 0
        if name == "reduce":
            place = 1
        yield from _called_on(flow, function, call, kind, place=place)
    if name == "filter":
        yield from flow.leaks(call, kind)
    elif name in {"max", "min"}:
        yield from flow.leaks(call, ITEM.get(kind))


def _is_of_numbers(context: Context, other: ast.expr) -> bool:
    """`itertools.count()`, `range(10)`, and numbers that are written out."""
    made = context.value(other)
    if made is not None:
        other = made.node
    if isinstance(other, ast.Call):
        return last_name(other.func) in {"count", "cycle", "linspace", "range"}
    return isinstance(other, ast.List | ast.Tuple)
