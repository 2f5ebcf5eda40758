"""The uses of a parameter's or module's name, which had FSDP1's prefixes in it where parameters kept their names."""

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.codemods.by_hand import means_the_same as words
from fsdp_migrate.codemods.by_hand.clean_names import PREFIX
from fsdp_migrate.codemods.by_hand.flows import Flow
from fsdp_migrate.codemods.by_hand.kinds import COMPREHENSIONS, Kind, Leak
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.file import last_name
from fsdp_migrate.facts.nodes import constant, text_of
from fsdp_migrate.facts.scopes import Assigned, Opaque

# `args.trained`, `self.config.prefixes`: what somebody who runs the program writes.
_CONFIGURED = re.compile(r"\b(?:args?|cfg|conf|config|configs|flags|hparams|options?|opts?)\b")
_CONTAINERS = frozenset({"set", "frozenset", "list", "tuple", "dict", "defaultdict"})
_LAST = frozenset({"split", "rsplit", "rpartition"})


def uses(flow: Flow, node: ast.expr, parent: ast.AST) -> Iterator[Leak]:
    """The uses of a name that had FSDP1's prefixes in it, with original parameters; flat ones have a rule of their own."""
    if flow.were_flat or not flow.in_place:
        return
    if isinstance(parent, ast.Attribute):
        yield from _method(flow, parent)
        return
    yield from _tested(flow.context, node, parent)
    if isinstance(parent, ast.FormattedValue):
        yield from flow.leaks(flow.file.parents[parent], Kind.NAME)
    elif isinstance(parent, ast.List | ast.Set | COMPREHENSIONS):
        yield from flow.leaks(parent, Kind.NAMES)
    elif isinstance(parent, ast.Call) and node is not parent.func:
        if last_name(parent.func) not in words.TAKES_PARAMETER | words.SEARCHING:
            yield from flow.into(node, parent, Kind.NAME)
    elif not isinstance(parent, ast.Compare | ast.Subscript | ast.Dict | ast.DictComp):
        yield from flow.passed_on(node, parent, Kind.NAME)


def _tested(context: Context, name: ast.expr, parent: ast.AST) -> Iterator[Leak]:
    """The use of a name by its parent in the tree, if prefixes change what it gives."""
    leaks = False
    if isinstance(parent, ast.Compare):
        leaks = not _is_tested_alike(context, name, parent)
    elif isinstance(parent, ast.Subscript):
        is_read = isinstance(parent.ctx, ast.Load)
        leaks = parent.value is name or (is_read and are_texts(context, parent.value))
    elif isinstance(parent, ast.Match):
        leaks = True
    elif isinstance(parent, ast.Call) and name is not parent.func:
        leaks = _is_given_away(context, parent)
    if leaks and isinstance(parent, ast.expr):
        yield Leak(parent, "name")
    elif leaks:
        yield Leak(name, "name")


def _method(flow: Flow, asked: ast.Attribute) -> Iterator[Leak]:
    """A method that is called on a name: it gives another name, the same as before, or what prefixes change."""
    context = flow.context
    call = context.call_of(asked)
    if call is None or PREFIX in context.source(call):
        return
    if asked.attr in words.NAMES:
        yield from flow.leaks(call, Kind.NAME)
    elif asked.attr in {"endswith", "isidentifier"} or _takes_last(context, call, asked):
        return
    elif not (asked.attr.endswith("split") and _has_no_dot(call.args)):
        yield Leak(call, "name")


def _takes_last(context: Context, call: ast.Call, asked: ast.Attribute) -> bool:
    """`name.split(".")[-1]`: the parameter's own name."""
    taken = context.file.parents[call]
    if asked.attr not in _LAST or not isinstance(taken, ast.Subscript):
        return False
    at = context.source(taken.slice)
    return at == "-1" or (asked.attr == "rpartition" and at == "2")


def _has_no_dot(arguments: list[ast.expr]) -> bool:
    """Whether a name is split at a text, and that at no dot."""
    if not arguments:
        return False
    if isinstance(arguments[0], ast.Constant) and not isinstance(arguments[0].value, str):
        return False
    return "." not in text_of(arguments[0])


def _is_given_away(context: Context, call: ast.Call) -> bool:
    """Whether a function that is not the program's compares a name that it is given, as far as its own name says."""
    name = last_name(call.func)
    if name in {"get", "pop"} and isinstance(call.func, ast.Attribute):
        return are_texts(context, call.func.value)
    return name in {"match", "fullmatch", "fnmatch", "fnmatchcase", "hash", "len", "ord"}


def _is_tested_alike(context: Context, name: ast.expr, compare: ast.Compare) -> bool:
    """`"bias" in name`, `name in names_of(model)`: as true with FSDP1's prefixes in all names as without them."""
    if not isinstance(compare.ops[0], ast.In | ast.NotIn):
        if name is compare.left:
            other = compare.comparators[0]
        else:
            other = compare.left
        return not (isinstance(other, ast.Constant) or are_texts(context, other))
    if name is compare.left:
        return not are_texts(context, compare.comparators[0])
    text = constant(compare.left)
    if not isinstance(text, str) or PREFIX in text:  # which has rules of its own
        return True
    return "." not in text.strip(".")


def are_texts(context: Context, container: ast.expr) -> bool:
    """Whether names are written out, in a list, a set or a dictionary, or are configured."""
    return _are_texts(context, container, frozenset())


def _are_texts(context: Context, container: ast.expr, seen: frozenset[ast.AST]) -> bool:
    if container in seen:
        return False
    seen |= {container}
    match container:
        case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
            return any(isinstance(constant(each), str) for each in items)
        case ast.Dict(keys=keys):
            return any(isinstance(constant(each), str) for each in keys)
    sources = _sources(context, container)
    if any(_are_texts(context, each, seen) for each in sources):
        return True
    is_item_of_a_known = isinstance(container, ast.Subscript) and sources
    if isinstance(container, ast.Attribute | ast.Subscript) and not is_item_of_a_known:
        return _CONFIGURED.search(context.source(container.value)) is not None
    return False


def _sources(context: Context, container: ast.expr) -> list[ast.expr]:
    """The expressions that a container can be, or is made of."""
    match container:
        case ast.Name():
            variable = context.file.variable(container)
            if variable:
                return [each.value for each in variable.assigned]
        case ast.Attribute(attr=name):
            stored = [_stored(context, each) for each in context.file.attributes[name]]
            stored += [each.value for each in _of_class(context, container)]
            return [each for each in stored if each is not None]
        case ast.Subscript():
            value = _at(context, container)
            if value is not None:
                return [value]
        case ast.Call(func=function, args=arguments) if last_name(function) in _CONTAINERS:
            return arguments
        case ast.BinOp(left=left, right=right):
            return [left, right]
    return []


def _at(context: Context, taken: ast.Subscript) -> ast.expr | None:
    """The value at a key of a dictionary that the file has."""
    table: ast.AST = taken.value
    found = context.value(taken.value)
    if found is not None:
        table = found.node
    if isinstance(table, ast.Dict) and isinstance(taken.slice, ast.Constant):
        for key, value in zip(table.keys, table.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == taken.slice.value:
                return value
    return None


def _stored(context: Context, attribute: ast.Attribute) -> ast.expr | None:
    """What is assigned to an attribute."""
    statement = context.file.parents[attribute]
    if isinstance(attribute.ctx, ast.Store) and isinstance(statement, ast.Assign):
        return statement.value
    return None


def _of_class(context: Context, attribute: ast.Attribute) -> Iterator[Assigned]:
    """The assignments in the class around to what `self.names` reads."""
    cls = context.file.enclosing_class(attribute)
    is_own = isinstance(attribute.value, ast.Name) and attribute.value.id in {"self", "cls"}
    if cls is not None and is_own:
        for statement in cls.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                if statement.targets[0].id == attribute.attr:
                    yield Assigned(statement.targets[0], statement.value, ())


def is_text(context: Context, key: ast.expr) -> bool:
    """Whether a key is a name that the program has written out, by itself or in what a loop goes over."""
    if isinstance(key, ast.Constant):
        return isinstance(key.value, str) and PREFIX not in key.value
    if not isinstance(key, ast.Name):
        return False
    loops = [each.node for each in context.file.bindings(key) if isinstance(each, Opaque)]
    return any(
        isinstance(loop, ast.For | ast.comprehension) and are_texts(context, loop.iter)
        for loop in loops
    )
