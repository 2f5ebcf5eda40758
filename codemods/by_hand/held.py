"""What a program keeps parameters in: variables and attributes of `self`, as keys or as items."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from fsdp_migrate.codemods.by_hand import means_the_same as words
from fsdp_migrate.codemods.by_hand.flows import functions, is_own
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.file import given, last_name, words_in
from fsdp_migrate.facts.nodes import calls_around, is_parameter, targets_of

_IDENTITY = frozenset({"id", "hash"})
_TABLES = frozenset({"dict", "OrderedDict"})


class Held(NamedTuple):
    """A variable, or an attribute of `self`, that has such parameters: as its keys, or as its items."""

    target: ast.expr
    as_keys: bool


def kept(context: Context, node: ast.expr, *, as_keys: bool) -> Iterator[Held]:
    """The variables that an iterable of parameters, or one of them, is put into."""
    parent = context.file.parents[node]
    for target in _targets(context, node, parent):
        yield Held(target, as_keys)
    if isinstance(parent, ast.For | ast.comprehension) and parent.iter is node:
        for read in _looped(context, parent):
            yield from item(context, read)
    elif isinstance(parent, ast.Call) and node is not parent.func:
        yield from _given(context, parent, as_keys)
    elif isinstance(parent, ast.Return):
        yield from _returned(context, parent, as_keys)
    elif isinstance(parent, ast.expr) and _holds(parent, node):
        yield from kept(context, parent, as_keys=as_keys or isinstance(parent, ast.SetComp))


def _targets(context: Context, node: ast.expr, parent: ast.AST) -> list[ast.expr]:
    """The variables that a value is assigned to, also as an element of several."""
    targets: list[ast.expr] = []
    if isinstance(parent, ast.Assign | ast.AnnAssign | ast.NamedExpr):
        targets += targets_of(parent)
    elif isinstance(parent, ast.Tuple):
        around = context.file.parents[parent]
        if isinstance(around, ast.Assign):
            place = parent.elts.index(node)
            tuples = [each for each in around.targets if isinstance(each, ast.Tuple)]
            targets += [each.elts[place] for each in tuples]
    return [each for each in targets if isinstance(each, ast.Name | ast.Attribute)]


def _looped(context: Context, loop: ast.For | ast.comprehension) -> Iterator[ast.Name]:
    """Where the variables of a loop are read in it, but for the names beside parameters."""
    region: ast.AST = loop
    if isinstance(loop, ast.comprehension):
        region = context.file.parents[loop]
    target = loop.target
    if isinstance(target, ast.Tuple) and "named_parameters" in words_in(loop.iter):
        target = target.elts[-1]
    for name in ast.walk(target):
        if not isinstance(name, ast.Name):
            continue
        for read in context.file.reads(name):
            if region in context.file.ancestors(read):
                yield read


def _given(context: Context, call: ast.Call, as_keys: bool) -> Iterator[Held]:
    """What a call puts parameters into: another container, or its own one by `extend` and `update`."""
    if last_name(call.func) in words.SAME | {"enumerate", "zip"}:
        yield from kept(context, call, as_keys=as_keys or _is_set(call))
    elif isinstance(call.func, ast.Attribute) and call.func.attr in {"extend", "update"}:
        if isinstance(call.func.value, ast.Name | ast.Attribute):
            yield Held(call.func.value, as_keys)
    elif not _IDENTITY.isdisjoint(_applied(call)):
        yield from kept(context, call, as_keys=True)


def _applied(call: ast.Call) -> list[str]:
    """The function that a call is of, and the one that it maps."""
    if last_name(call.func) == "map":
        return [last_name(each) for each in call.args[:1]]
    return [last_name(call.func)]


def _returned(context: Context, statement: ast.Return, as_keys: bool) -> Iterator[Held]:
    """The variables that the calls of a function give what it returns."""
    for call in calls_around(context.file, statement):
        for target in _targets(context, call, context.file.parents[call]):
            yield Held(target, as_keys)


def _is_set(call: ast.Call) -> bool:
    return last_name(call.func) in {"set", "frozenset"}


def item(context: Context, read: ast.expr) -> Iterator[Held]:
    """Where a single parameter is kept: as a key, in a list, or in a dictionary."""
    node = read
    parent = context.file.parents[read]
    is_identity = isinstance(parent, ast.Call) and last_name(parent.func) in _IDENTITY
    if is_identity and isinstance(parent, ast.Call):
        node = parent
        parent = context.file.parents[parent]
    if isinstance(parent, ast.Tuple):
        pairs = context.file.parents[parent]
        table = context.file.parents[pairs]
        is_table = isinstance(table, ast.Call) and last_name(table.func) in _TABLES
        if is_table and isinstance(table, ast.expr) and parent.elts[0] is node:
            yield from kept(context, table, as_keys=True)
    elif isinstance(parent, ast.Call):
        yield from _added(node, parent, is_identity)
        yield from _stored_by(context, node, parent)
    elif isinstance(parent, ast.DictComp):
        yield from kept(context, parent, as_keys=parent.key is node)
    elif isinstance(parent, ast.SetComp):
        yield from kept(context, parent, as_keys=True)
    elif isinstance(parent, ast.ListComp | ast.GeneratorExp) and parent.elt is node:
        yield from kept(context, parent, as_keys=is_identity)
    else:
        yield from _stored_at(node, parent, is_identity)


def _stored_at(node: ast.expr, parent: ast.AST, is_identity: bool) -> Iterator[Held]:
    """`groups[p] = value`, where a parameter is the key, and `tensors[name] = p`."""
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Subscript):
        owner = parent.targets[0].value
        if parent.value is node and isinstance(owner, ast.Name | ast.Attribute):
            yield Held(owner, is_identity)
    elif isinstance(parent, ast.Subscript) and parent.slice is node:
        if isinstance(parent.ctx, ast.Store) and isinstance(parent.value, ast.Name | ast.Attribute):
            yield Held(parent.value, True)


def _added(node: ast.expr, call: ast.Call, is_identity: bool) -> Iterator[Held]:
    """What `append` or `add` put it into."""
    if isinstance(call.func, ast.Attribute) and node in call.args:
        owner = call.func.value
        name = call.func.attr
        if name in {"add", "append"} and isinstance(owner, ast.Name | ast.Attribute):
            yield Held(owner, is_identity or name == "add")


def _stored_by(context: Context, node: ast.expr, call: ast.Call) -> Iterator[Held]:
    """What a method of the file puts an argument into, of its object: `self.items[name] = tensor`."""
    for function in functions(context, call.func):
        for argument in function.args.args:
            if given(call, function, argument.arg) is not node:
                continue
            for read in reads_of(context, argument):
                for held in _put(context, read):
                    if is_own(held.target):
                        yield held


def reads_of(context: Context, argument: ast.arg) -> list[ast.Name]:
    """Where a function reads a parameter, in the order of the source."""
    named = context.file.loads.get(argument.arg, ())
    reads = [read for read in named if _is_read_of(context, read, argument)]
    return sorted(reads, key=lambda each: (each.lineno, each.col_offset))


def _is_read_of(context: Context, read: ast.Name, argument: ast.arg) -> bool:
    bindings = context.file.bindings(read)
    return is_parameter(bindings, argument)


def _put(context: Context, read: ast.expr) -> Iterator[Held]:
    """What a statement puts a value into."""
    parent = context.file.parents[read]
    yield from _stored_at(read, parent, False)
    if isinstance(parent, ast.Call):
        yield from _added(read, parent, False)
    for target in _targets(context, read, parent):
        yield Held(target, False)


def _holds(parent: ast.AST, node: ast.expr) -> bool:
    """Whether an expression is made of a part as it is."""
    if isinstance(parent, ast.ListComp | ast.SetComp | ast.GeneratorExp):
        return parent.elt is node
    if isinstance(parent, ast.DictComp):
        return parent.value is node
    return isinstance(parent, ast.List | ast.Tuple | ast.Set | ast.Dict | ast.Starred | ast.BinOp)
