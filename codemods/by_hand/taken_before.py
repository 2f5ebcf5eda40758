"""Parameters that a program takes from a module before it is sharded, and uses behind that: they are others then."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from fsdp_migrate.codemods.by_hand import means_the_same as words
from fsdp_migrate.codemods.by_hand.flows import functions, is_own
from fsdp_migrate.codemods.by_hand.taken_out import RULE, shards
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.models_by_argument import where_original
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found
from fsdp_migrate.facts.file import given, is_method, last_name, root_of, words_in
from fsdp_migrate.facts.origins import returned, stored, within
from fsdp_migrate.facts.scopes import Assigned, FunctionNode, Parameter
from fsdp_migrate.findings import Action

_KEYS = "Has parameters from before sharding as keys, and the sharded model has others. Make it after sharding, or use names."
_HELD = (
    "Uses parameters from before sharding, which `fully_shard` replaces; FSDP1 kept them with `use_orig_params=True`. "
    "Take them from the sharded model."
)
_TAKING = ("parameters", "named_parameters", "weight", "bias")
_IDENTITY = frozenset({"id", "hash"})
_TABLES = frozenset({"dict", "OrderedDict"})


class Held(NamedTuple):
    """A variable, or an attribute of `self`, that has such parameters: as its keys, or as its items."""

    target: ast.expr
    as_keys: bool


@codemod(words=("arameters(", ".weight", ".bias"))
def find(context: Context) -> Iterator[Found]:
    """The first use of each such variable behind the sharding."""
    original = where_original(context)  # a flat model had none of them under FSDP1 either
    if original is None or not original.models.shards(context.file):
        return
    for sharding in _shardings(original):
        for held in _held(original, sharding):
            if held.as_keys or context.form == "torch":
                for read in _first_behind(context, held, sharding):
                    message = _KEYS if held.as_keys else _HELD
                    yield Found(RULE, read, Action.MANUAL, message, ast.unparse(held.target))


def _shardings(context: Context) -> Iterator[ast.Call]:
    """The calls that shard a module which a variable has."""
    named = context.models.wrapping & context.file.calls.keys()
    by_functions = [call for name in named for call in context.file.calls[name]]
    for call in (*context.models.constructors(context.file), *by_functions):
        if call.args and isinstance(call.args[0], ast.Name | ast.Attribute):
            if shards(context, call):
                yield call


def _held(context: Context, sharding: ast.Call) -> Iterator[Held]:
    """The variables that get parameters of the module before a call shards it."""
    seen = set()
    for name in _TAKING:
        for attribute in context.file.attributes.get(name, ()):
            taken: ast.expr | None = attribute
            if name in {"parameters", "named_parameters"}:
                taken = context.call_of(attribute)
            if taken is not None and _is_before(context, attribute.value, sharding):
                held = [*_kept(context, taken, as_keys=False)]
                if taken is attribute:
                    held += _item(context, attribute)
                for each in (
                    *held,
                    *(given for one in held for given in _given_back(context, one)),
                ):
                    key = ast.dump(each.target), context.file.function(each.target), each.as_keys
                    if key not in seen:
                        seen.add(key)
                        yield each


def _given_back(context: Context, held: Held) -> Iterator[Held]:
    """What the calls of a function bind to a variable of it that it returns, by itself or among others."""
    function = context.file.function(held.target)
    for read in context.file.reads(held.target) if isinstance(held.target, ast.Name) else ():
        parent = context.file.parents[read]
        path: tuple[int, ...] = ()
        if isinstance(parent, ast.Tuple):
            path = (parent.elts.index(read),)
            parent = context.file.parents[parent]
        if not isinstance(parent, ast.Return):
            continue
        for call in context.file.calls.get(getattr(function, "name", ""), ()):
            statement = context.file.parents[call]
            for target in statement.targets if isinstance(statement, ast.Assign) else ():
                bound, is_it = within(target, path)
                if is_it and isinstance(bound, ast.Name | ast.Attribute):
                    yield Held(bound, held.as_keys)


def _is_before(context: Context, owner: ast.expr, sharding: ast.Call) -> bool:
    """Whether an expression is the module, or a part of it, above the call that shards it."""
    file, module = context.file, sharding.args[0]
    is_above = owner.lineno < sharding.lineno
    if is_above and file.function(owner) is file.function(sharding):
        return _is_of(context, owner, module)
    for node in _steps(context, owner):
        for binding in file.bindings(node):
            if isinstance(binding, Parameter) and _is_called_by_name(binding.function):
                given = context.models.origins.given(binding, file)
                if any(_is_given_above(context, each.value, sharding) for each in given):
                    return True
    if _is_made_in(context, owner, sharding):
        return True
    own, whole = file.enclosing_class(owner), file.enclosing_class(sharding)
    if own is not None and own is whole and ast.unparse(module).startswith("self."):
        method = file.function(owner)
        if getattr(method, "name", "") == "__init__":
            names = [module, *_stored(context, own, module)]
            return any(_is_of(context, owner, each) for each in names)
    return False


def _is_called_by_name(function: FunctionNode) -> bool:
    """Whether the calls of a function are known: not those of a method, but for what makes an object of a class."""
    return not is_method(function) or getattr(function, "name", "") == "__init__"


def _is_made_in(context: Context, owner: ast.expr, sharding: ast.Call) -> bool:
    """Whether an expression is of the module in the function that makes it: `net, names = build()`."""
    file, function = context.file, context.file.function(owner)
    for binding in file.bindings(sharding.args[0]):
        call = getattr(binding, "value", None)
        if not isinstance(binding, Assigned) or not isinstance(call, ast.Call):
            continue
        made = context.program.definition(call.func, file)
        if made is None or made.node is not function:
            continue
        if any(_is_of(context, owner, each.value) for each in returned(made, binding.path)):
            return True
    return False


def _is_given_above(context: Context, value: ast.expr, sharding: ast.Call) -> bool:
    """Whether a function is given the module above the call that shards it."""
    file = context.file
    is_here = value in file.parents and file.function(value) is file.function(sharding)
    return is_here and value.lineno < sharding.lineno and _is_of(context, value, sharding.args[0])


def _stored(context: Context, cls: ast.ClassDef, attribute: ast.expr) -> Iterator[ast.expr]:
    """What a class sets an attribute of `self` to."""
    for each in stored(context.file, last_name(attribute), cls):
        if not each.path:
            yield each.value


def _is_of(context: Context, owner: ast.expr, module: ast.expr) -> bool:
    """Whether an expression is a module or a part of it: `net.head`, `net[:2]`, and what a loop takes from `net.modules()`."""
    file = context.file
    for node in _steps(context, owner):
        if ast.unparse(node) == ast.unparse(module):
            here, there = root_of(node), root_of(module)
            if here is not None and there is not None:
                return here.id == "self" or file.variable(here) == file.variable(there)
    return False


def _steps(context: Context, owner: ast.expr) -> Iterator[ast.expr]:
    """An expression, and what it is taken from, step by step."""
    found = [owner]
    for node in found:  # which grows
        if isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
            found.append(node.value)
        elif isinstance(node, ast.Call):
            found += [node.func, *node.args]
        elif isinstance(node, ast.Tuple | ast.List):
            found += node.elts
        elif isinstance(node, ast.Name) and len(found) < 20:
            for around in context.file.ancestors(node):
                loops = (
                    [around] if isinstance(around, ast.For) else getattr(around, "generators", ())
                )
                for loop in loops:
                    if any(getattr(each, "id", "") == node.id for each in ast.walk(loop.target)):
                        found.append(loop.iter)
    return iter(found)


def _kept(context: Context, node: ast.expr, *, as_keys: bool) -> Iterator[Held]:
    """The variables that an iterable of parameters, or one of them, is put into."""
    parent = context.file.parents[node]
    for target in _targets(context, node, parent):
        yield Held(target, as_keys)
    if isinstance(parent, ast.For | ast.comprehension) and parent.iter is node:
        for read in _looped(context, parent):
            yield from _item(context, read)
    elif isinstance(parent, ast.Call) and node is not parent.func:
        yield from _given(context, parent, as_keys)
    elif isinstance(parent, ast.Return):
        yield from _returned(context, parent, as_keys)
    elif isinstance(parent, ast.expr) and _holds(parent, node):
        yield from _kept(context, parent, as_keys=as_keys or isinstance(parent, ast.SetComp))


def _targets(context: Context, node: ast.expr, parent: ast.AST) -> list[ast.expr]:
    """The variables that a value is assigned to, also as an element of several."""
    if isinstance(parent, ast.Assign):
        targets = parent.targets
    elif isinstance(parent, ast.AnnAssign | ast.NamedExpr):
        targets = [parent.target]
    else:
        around = context.file.parents[parent] if isinstance(parent, ast.Tuple) else None
        targets = []
        for target in around.targets if isinstance(around, ast.Assign) else ():
            if isinstance(target, ast.Tuple) and isinstance(parent, ast.Tuple):
                targets.append(target.elts[parent.elts.index(node)])
    return [each for each in targets if isinstance(each, ast.Name | ast.Attribute)]


def _looped(context: Context, loop: ast.For | ast.comprehension) -> Iterator[ast.Name]:
    """Where the variables of a loop are read in it, but for the names beside parameters."""
    region = loop if isinstance(loop, ast.For) else context.file.parents[loop]
    target = loop.target
    if isinstance(target, ast.Tuple) and "named_parameters" in words_in(loop.iter):
        target = target.elts[-1]
    for name in ast.walk(target):
        for read in context.file.reads(name) if isinstance(name, ast.Name) else ():
            if any(each is region for each in context.file.ancestors(read)):
                yield read


def _given(context: Context, call: ast.Call, as_keys: bool) -> Iterator[Held]:
    """What a call puts parameters into: another container, or its own one by `extend` and `update`."""
    if last_name(call.func) in words.SAME | {"enumerate", "zip"}:
        yield from _kept(context, call, as_keys=as_keys or _is_set(call))
    elif isinstance(call.func, ast.Attribute) and call.func.attr in {"extend", "update"}:
        if isinstance(call.func.value, ast.Name | ast.Attribute):
            yield Held(call.func.value, as_keys)
    elif not _IDENTITY.isdisjoint(_applied(call)):
        yield from _kept(context, call, as_keys=True)


def _applied(call: ast.Call) -> list[str]:
    """The function that a call is of, and the one that it maps."""
    if last_name(call.func) == "map":
        return [last_name(each) for each in call.args[:1]]
    return [last_name(call.func)]


def _returned(context: Context, statement: ast.Return, as_keys: bool) -> Iterator[Held]:
    """The variables that the calls of a function give what it returns."""
    function = context.file.function(statement)
    for call in context.file.calls.get(getattr(function, "name", ""), ()):
        for target in _targets(context, call, context.file.parents[call]):
            yield Held(target, as_keys)


def _is_set(call: ast.Call) -> bool:
    return last_name(call.func) in {"set", "frozenset"}


def _item(context: Context, read: ast.expr) -> Iterator[Held]:
    """Where a single parameter is kept: as a key, in a list, or in a dictionary."""
    node, parent = read, context.file.parents[read]
    is_identity = isinstance(parent, ast.Call) and last_name(parent.func) in _IDENTITY
    if is_identity and isinstance(parent, ast.Call):
        node, parent = parent, context.file.parents[parent]
    if isinstance(parent, ast.Tuple):
        pairs = context.file.parents[parent]
        table = context.file.parents[pairs]
        is_table = isinstance(table, ast.Call) and last_name(table.func) in _TABLES
        if is_table and isinstance(table, ast.expr) and parent.elts[0] is node:
            yield from _kept(context, table, as_keys=True)
    elif isinstance(parent, ast.Call):
        yield from _added(node, parent, is_identity)
        yield from _stored_by(context, node, parent)
    elif isinstance(parent, ast.DictComp):
        yield from _kept(context, parent, as_keys=parent.key is node)
    elif isinstance(parent, ast.SetComp):
        yield from _kept(context, parent, as_keys=True)
    elif isinstance(parent, ast.ListComp | ast.GeneratorExp) and parent.elt is node:
        yield from _kept(context, parent, as_keys=is_identity)
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
        owner, name = call.func.value, call.func.attr
        if name in {"add", "append"} and isinstance(owner, ast.Name | ast.Attribute):
            yield Held(owner, is_identity or name == "add")


def _stored_by(context: Context, node: ast.expr, call: ast.Call) -> Iterator[Held]:
    """What a method of the file puts an argument into, of its object: `self.items[name] = tensor`."""
    for function in functions(context, call.func):
        for argument in function.args.args:
            if given(call, function, argument.arg) is node:
                for read in _reads_of(context, argument):
                    yield from (held for held in _put(context, read) if is_own(held.target))


def _reads_of(context: Context, argument: ast.arg) -> list[ast.Name]:
    """Where a function reads a parameter, in the order of the source."""
    reads = [
        read
        for read in context.file.loads.get(argument.arg, ())
        if any(getattr(each, "argument", None) is argument for each in context.file.bindings(read))
    ]
    return sorted(reads, key=lambda each: (each.lineno, each.col_offset))


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


def _first_behind(context: Context, held: Held, sharding: ast.Call) -> Iterator[ast.expr]:
    """The first place where a variable is read when the module is sharded."""
    maker = context.file.function(held.target)
    if isinstance(held.target, ast.Name) and maker is not None:
        if maker not in context.file.ancestors(sharding):
            return  # it is gone then, unless it is returned
    reads = [read for read in _reads(context, held.target) if _is_behind(context, read, sharding)]
    reads = [read for read in reads if not _is_only_stored(context, read)]
    if reads:
        first = min(reads, key=lambda read: (read.lineno, read.col_offset))
        yield next(_inside(context, first), first)


def _inside(context: Context, read: ast.expr) -> Iterator[ast.expr]:
    """Where the function of the file that is given a variable reads it first."""
    call = context.file.parents[read]
    if not isinstance(call, ast.Call):
        return
    for function in functions(context, call.func):
        for argument in (*function.args.args, *function.args.kwonlyargs):
            if given(call, function, argument.arg) is read:
                yield from _reads_of(context, argument)


def _reads(context: Context, target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Name):
        yield from context.file.reads(target)
    elif isinstance(target, ast.Attribute):
        for read in context.file.attributes.get(target.attr, ()):
            if isinstance(read.ctx, ast.Load) and ast.unparse(read) == ast.unparse(target):
                if context.file.enclosing_class(read) is context.file.enclosing_class(target):
                    yield read


def _is_behind(context: Context, read: ast.expr, sharding: ast.Call) -> bool:
    """Whether a read can run when the sharding has: further down, or in a function of its own."""
    here, there = context.file.function(read), context.file.function(sharding)
    if here is there:
        end = sharding.end_lineno or sharding.lineno
        return read.lineno > end
    return here is not None and here.name != "__init__"


def _is_only_stored(context: Context, read: ast.expr) -> bool:
    """`groups[key] = value`, `names.append(value)`."""
    parent = context.file.parents[read]
    if isinstance(parent, ast.Subscript):
        return isinstance(parent.ctx, ast.Store)
    return isinstance(parent, ast.Attribute) and parent.attr in words.APPENDING
