"""Parameters that nothing in their function reads after the edits: they are removed where the file shows every call."""

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.text import overlap
from fsdp_migrate.codemods.questions import only_looks
from fsdp_migrate.codemods.rule import Edit, Found, Rule
from fsdp_migrate.codemods.same import Made
from fsdp_migrate.codemods.without_use import RULE, Parameter
from fsdp_migrate.facts.nodes import has_double_star, has_star
from fsdp_migrate.facts.scopes import Defined
from fsdp_migrate.findings import Action

_PARAMETER = "Removed: nothing in `{}` reads it any more."
_ARGUMENT = "Removed: `{}` does not take `{}` any more."
_BETWEEN = re.compile(r"[\s,]*")


@dataclass(frozen=True)
class _Given:
    """An argument of a call that gives a parameter."""

    call: ast.Call
    node: ast.expr | ast.keyword


def without_parameters(
    context: Context,
    made: Sequence[Made],
    unread: Sequence[Parameter],
    is_on: Callable[[Rule, ast.AST], bool],
) -> list[Made]:
    """The findings and their edits, with those that remove unread parameters, and what the calls give for them."""
    found = list(made)
    edits = [edit for _, own in made for edit in own]
    for parameter in unread:
        given = _given(context, parameter)
        if given is None or not is_on(RULE, parameter.node):
            continue
        try:
            own = [*_edits(context, parameter, given)]
        except _Unusual:
            continue
        if overlap([*edits, *own]) or any(_is_changed(edit, edits) for edit in own):
            continue
        edits += own
        name = parameter.function.name
        message = _PARAMETER.format(name)
        gone = _default(parameter)
        found.append((Found(RULE, parameter.node, Action.REWRITE, message, removed=gone), own))
        message = _ARGUMENT.format(name, parameter.node.arg)
        for each in given:
            removed = Found(RULE, each.node, Action.REWRITE, message, removed=(each.node,))
            found.append((removed, ()))
    return found


def _is_changed(edit: Edit, others: Sequence[Edit]) -> bool:
    return any(other.start <= edit.start and edit.end <= other.end for other in others)


def _given(context: Context, parameter: Parameter) -> list[_Given] | None:
    """What the calls of a function give for a parameter; None where the file may not show all calls, or all of them."""
    function = parameter.function
    loads = context.file.loads.get(function.name, ())
    if not loads or not _is_own(context, function) or _is_documented(parameter):
        return None
    found: list[_Given] = []
    for load in loads:
        call = context.call_of(load)
        if call is None or not _shows_all(call):
            return None
        for each in _of_call(call, parameter):
            value = each.value if isinstance(each, ast.keyword) else each
            if not only_looks(value):
                return None
            found.append(_Given(call, each))
    return found


def _is_own(context: Context, function: ast.FunctionDef) -> bool:
    """Whether a function is called as it is, and by its own file alone."""
    bindings = context.file.scope.bindings.get(function.name, ())
    nodes = [each.node for each in bindings if isinstance(each, Defined)]
    is_only = nodes == [function] and len(bindings) == 1
    return is_only and not function.decorator_list and not context.is_for_others(function.name)


def _is_documented(parameter: Parameter) -> bool:
    text = ast.get_docstring(parameter.function, clean=False) or ""
    return re.search(rf"\b{parameter.node.arg}\b", text) is not None


def _shows_all(call: ast.Call) -> bool:
    return not has_star(call) and not has_double_star(call)


def _of_call(call: ast.Call, parameter: Parameter) -> Iterator[ast.expr | ast.keyword]:
    """What a call gives for a parameter, by name or by place."""
    for each in call.keywords:
        if each.arg == parameter.node.arg:
            yield each
    arguments = parameter.function.args.args
    if parameter.node in arguments:
        yield from call.args[arguments.index(parameter.node) :][:1]


class _Unusual(Exception):
    """Something else than commas and white space stands between the items of a list."""


def _edits(context: Context, parameter: Parameter, given: Sequence[_Given]) -> Iterator[Edit]:
    yield _without(context, _parameters(context, parameter.function.args), parameter.node)
    for each in given:
        items = [
            (*context.file.span(item), item) for item in (*each.call.args, *each.call.keywords)
        ]
        yield _without(context, items, each.node)


def _parameters(context: Context, arguments: ast.arguments) -> list[tuple[int, int, ast.AST]]:
    """The parameters of a function with their defaults.

    Raises:
        _Unusual: where a star or a slash is among them.
    """
    if arguments.posonlyargs or arguments.vararg or arguments.kwonlyargs or arguments.kwarg:
        raise _Unusual
    found: list[tuple[int, int, ast.AST]] = []
    without_default = len(arguments.args) - len(arguments.defaults)
    for place, each in enumerate(arguments.args):
        start, end = context.file.span(each)
        if place >= without_default:
            end = context.file.span(arguments.defaults[place - without_default])[1]
        found.append((start, end, each))
    return found


def _default(parameter: Parameter) -> tuple[ast.expr, ...]:
    """A parameter's default, if it has one."""
    arguments = parameter.function.args
    from_behind = zip(reversed(arguments.args), reversed(arguments.defaults), strict=False)
    return tuple(default for argument, default in from_behind if argument is parameter.node)


def _without(context: Context, items: Sequence[tuple[int, int, ast.AST]], item: ast.AST) -> Edit:
    """The edit that removes one of the items between commas.

    Raises:
        _Unusual: where comments or brackets stand between them.
    """
    text = context.file.text
    items = sorted(items, key=lambda each: each[:2])
    if not all(_BETWEEN.fullmatch(text[one[1] : other[0]]) for one, other in pairwise(items)):
        raise _Unusual
    place = next(at for at, each in enumerate(items) if each[2] is item)
    start, end, _ = items[place]
    if place + 1 < len(items):
        return Edit(start, items[place + 1][0], "")
    if place:
        return Edit(items[place - 1][1], end, "")
    behind = _BETWEEN.match(text, end)
    assert behind is not None
    return Edit(start, behind.end(), "")
