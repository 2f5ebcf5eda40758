"""Parameters that a program takes from a module before it is sharded, and uses behind that: they are others then."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.by_hand import means_the_same as words
from fsdp_migrate.codemods.by_hand.flows import functions
from fsdp_migrate.codemods.by_hand.held import Held, item, kept, reads_of
from fsdp_migrate.codemods.by_hand.owners import shards
from fsdp_migrate.codemods.by_hand.taken_out import RULE
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.models_by_argument import where_original
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found
from fsdp_migrate.facts.file import given, is_method, is_name, last_name, root_of
from fsdp_migrate.facts.nodes import calls_around, loops_of, name_around
from fsdp_migrate.facts.origins import returned, stored, within
from fsdp_migrate.facts.scopes import Assigned, FunctionNode, Parameter
from fsdp_migrate.findings import Action

_KEYS = (
    "This has parameters from before sharding as keys, but sharding replaces them. Create it after sharding, or use "
    "names as keys."
)
_HELD = (
    "This uses parameters from before sharding, which `fully_shard` replaces; FSDP1 kept them with "
    "`use_orig_params=True`. Take them from the sharded model."
)
_TAKING = ("parameters", "named_parameters", "weight", "bias")


@codemod(words=("arameters(", ".weight", ".bias"))
def find(context: Context) -> Iterator[Found]:
    """The first use of each such variable behind the sharding."""
    original = where_original(context)  # a flat model had none of them under FSDP1 either
    if original is None or not original.models.shards(context.file):
        return
    for sharding in _shardings(original):
        for held in _held(original, sharding):
            if held.as_keys or context.form == "torch":
                message = _HELD
                if held.as_keys:
                    message = _KEYS
                for read in _first_behind(context, held, sharding):
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
                held = [*kept(context, taken, as_keys=False)]
                if taken is attribute:
                    held += item(context, attribute)
                returned = [each for one in held for each in _given_back(context, one)]
                for each in (*held, *returned):
                    key = ast.dump(each.target), context.file.function(each.target), each.as_keys
                    if key not in seen:
                        seen.add(key)
                        yield each


def _given_back(context: Context, held: Held) -> Iterator[Held]:
    """What the calls of a function bind to a variable of it that it returns, by itself or among others."""
    if not isinstance(held.target, ast.Name):
        return
    for read in context.file.reads(held.target):
        parent = context.file.parents[read]
        path: tuple[int, ...] = ()
        if isinstance(parent, ast.Tuple):
            path = (parent.elts.index(read),)
            parent = context.file.parents[parent]
        if not isinstance(parent, ast.Return):
            continue
        for call in calls_around(context.file, held.target):
            statement = context.file.parents[call]
            if not isinstance(statement, ast.Assign):
                continue
            for target in statement.targets:
                bound, is_whole_path = within(target, path)
                if is_whole_path and isinstance(bound, ast.Name | ast.Attribute):
                    yield Held(bound, held.as_keys)


def _is_before(context: Context, owner: ast.expr, sharding: ast.Call) -> bool:
    """Whether an expression is the module, or a part of it, above the call that shards it."""
    file = context.file
    module = sharding.args[0]
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
    own = file.enclosing_class(owner)
    whole = file.enclosing_class(sharding)
    if own is not None and own is whole and ast.unparse(module).startswith("self."):
        if name_around(file, owner) == "__init__":
            names = [module, *_stored(context, own, module)]
            return any(_is_of(context, owner, each) for each in names)
    return False


def _is_called_by_name(function: FunctionNode) -> bool:
    """Whether the calls of a function are known: not those of a method, but for what makes an object of a class."""
    if isinstance(function, ast.Lambda) or not is_method(function):
        return True
    return function.name == "__init__"


def _is_made_in(context: Context, owner: ast.expr, sharding: ast.Call) -> bool:
    """Whether an expression is of the module in the function that makes it: `net, names = build()`."""
    file = context.file
    function = context.file.function(owner)
    for binding in file.bindings(sharding.args[0]):
        if not isinstance(binding, Assigned) or not isinstance(binding.value, ast.Call):
            continue
        made = context.program.definition(binding.value.func, file)
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
            here = root_of(node)
            there = root_of(module)
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
                for loop in loops_of(around):
                    if any(is_name(each, node.id) for each in ast.walk(loop.target)):
                        found.append(loop.iter)
    return iter(found)


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
                yield from reads_of(context, argument)


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
    here = context.file.function(read)
    there = context.file.function(sharding)
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
