"""Entries of a dictionary of arguments that nothing reads any more, where others keep the dictionary: they are removed."""

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.constructor.outcome import Form
from fsdp_migrate.codemods.constructor.rows import ROWS
from fsdp_migrate.codemods.context import Context, shortened
from fsdp_migrate.codemods.dictionaries import Argument, given_keys
from fsdp_migrate.codemods.edit.taken_away import drop_statement
from fsdp_migrate.codemods.imports import WITHOUT_EFFECT, is_pure, may_change
from fsdp_migrate.codemods.rule import Edit, Found
from fsdp_migrate.facts.file import last_name
from fsdp_migrate.facts.scopes import Variable
from fsdp_migrate.findings import Action

_SHOWS = re.compile(r"print|debug|info|warning|str|repr|format")


@dataclass(frozen=True)
class Entry:
    """An entry of a dictionary, and how it is removed.

    Attributes:
        node: its key, or the place that it is assigned to: `options["key"]`.
        gone: the code that is removed with it.
    """

    node: ast.expr
    edits: Callable[[], Sequence[Edit]]
    gone: ast.AST


def find(done: Sequence[tuple[Construction, Form]]) -> Iterator[Found]:
    """The entries that nothing reads any more.

    Args:
        done: the constructors of the file that are rewritten, each with what it becomes.
    """
    said = set[ast.AST]()
    for construction, form in done:
        for argument in construction.arguments:
            for entry in _unread(construction, argument, done):
                if entry.node in said or argument.name not in form.said:
                    continue
                said.add(entry.node)
                rule, _ = ROWS[argument.name].say(construction, argument)
                construct = f"{argument.name}={shortened(construction.text(argument.value))}"
                made = entry.edits, (), (entry.gone,)
                text = form.said[argument.name]
                yield Found(rule, entry.node, Action.REWRITE, text, construct, *made)


def _unread(
    construction: Construction, argument: Argument, done: Sequence[tuple[Construction, Form]]
) -> list[Entry]:
    """The entries that give an argument; none where something may read one of them."""
    context = construction.context
    first = _given(context, argument.node)
    if first is None:
        return []
    dictionary, key, _ = first
    variable = context.file.variable(dictionary)
    if variable is None or not _is_own(context, variable):
        return []
    codes = {keyword: form.text for each, form in done for keyword in each.call.keywords}
    names = [dictionary, *context.file.reads(dictionary)]
    if not all(_passes_over(context, name, key, codes) for name in names):
        return []
    nodes = [each.node for each in given_keys(context, dictionary) if each.name == key]
    uses = [context.file.parents[name] for name in context.file.reads(dictionary)]
    if all(isinstance(each, ast.keyword) or _is_store(each) for each in uses):
        if not any(re.search(rf"\b{dictionary.id}\b", code) for code in codes.values()):
            nodes = [each for each in nodes if not isinstance(each, ast.Constant)]  # all of it goes
    entries = [_entry(context, argument.name, node) for node in nodes]
    if None in entries:
        return []
    return [each for each in entries if each is not None]


def _entry(context: Context, name: str, node: ast.AST) -> Entry | None:
    """An entry that gives an argument of a name, if nothing but its value comes of it."""
    given = _given(context, node)
    if given is None or not isinstance(node, ast.expr):
        return None
    _, _, value = given
    if not is_pure(context, value) and (name not in WITHOUT_EFFECT or may_change(value)):
        return None
    if isinstance(node, ast.Constant):
        return Entry(node, lambda: _without_entry(context, node), value)
    statement = context.file.statement(node)
    if not context.is_alone(statement):
        return None
    return Entry(node, lambda: [drop_statement(context.file, statement)], statement)


def _without_entry(context: Context, key: ast.AST) -> list[Edit]:
    changed = context.statement(key)
    changed.lose(changed.drop(key))
    return changed.edits()


def _given(context: Context, node: ast.AST) -> tuple[ast.Name, str, ast.expr] | None:
    """The variable that has a dictionary, a key of it, and the value that it has there."""
    match node, context.file.parents.get(node):
        case (
            ast.Subscript(ast.Name() as name, ast.Constant(str(key))),
            ast.Assign(targets=[_], value=value),
        ):
            return name, key, value
        case ast.Constant(str(key)), ast.Dict() as literal:
            value = literal.values[literal.keys.index(node)]
            match context.file.parents[literal]:
                case ast.Assign(targets=[ast.Name() as name]):
                    return name, key, value
    return None


def _is_own(context: Context, variable: Variable) -> bool:
    """Whether a variable is only assigned to, and no other file reads it."""
    is_assigned = len(variable.assigned) == len(variable.bindings)
    if variable.scope is context.file.scope:
        return is_assigned and not any(
            context.is_for_others(each.target.id)
            for each in variable.assigned
            if isinstance(each.target, ast.Name)
        )
    return is_assigned


def _passes_over(context: Context, name: ast.Name, key: str, codes: dict[ast.keyword, str]) -> bool:
    """Whether a use of a dictionary does not read one of its keys, or only to show it.

    Args:
        codes: what the calls into which it may be unpacked become.
    """
    around = context.file.parents[name]
    match around:
        case ast.keyword(arg=None):
            return around in codes and not re.search(
                rf"""["']{re.escape(key)}["']""", codes[around]
            )
        case ast.Assign():
            return name in around.targets
        case ast.Subscript(slice=ast.Constant(other)):
            return other != key or isinstance(around.ctx, ast.Store)
        case ast.Attribute(attr="get"):
            call = context.call_of(around)
            return call is not None and _is_of_another(call, key)
        case ast.Attribute(attr="update"):
            return context.call_of(around) is not None
        case ast.Call() | ast.FormattedValue():
            return _is_shown(context, around)
    return False


def _is_store(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)


def _is_of_another(call: ast.Call, key: str) -> bool:
    match call.args:
        case [ast.Constant(other), *_]:
            return other != key
    return False


def _is_shown(context: Context, node: ast.AST) -> bool:
    """Whether all that is done with a value is to print it."""
    calls = [each for each in _around(context, node) if isinstance(each, ast.Call)]
    return bool(calls) and all(_SHOWS.fullmatch(last_name(each.func)) for each in calls)


def _around(context: Context, node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for each in context.file.ancestors(node):
        if isinstance(each, ast.stmt):
            return
        yield each
