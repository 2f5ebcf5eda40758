"""Where the code of a constructor goes: statements in its place or above it, a function, an expression."""

import ast
import re
from dataclasses import dataclass
from textwrap import indent

from fsdp_migrate.codemods.constructor import double
from fsdp_migrate.codemods.constructor.code import Code, under
from fsdp_migrate.codemods.constructor.conditions import negated
from fsdp_migrate.codemods.constructor.construction import FORMER_NAMES, Construction
from fsdp_migrate.codemods.constructor.remarks import remarks
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.items import read
from fsdp_migrate.codemods.edit.text import indentation
from fsdp_migrate.codemods.imports import WITHOUT_EFFECT
from fsdp_migrate.codemods.rule import Edit
from fsdp_migrate.facts.file import NEWLINE
from fsdp_migrate.facts.names import CLASS
from fsdp_migrate.facts.nodes import any_is, has_any, is_none


@dataclass(frozen=True, eq=False)
class Place:
    """Where the statements of a constructor go.

    Attributes:
        statement: the statement that they take the place of, or stand above.
        model: the model, as source.
        first: a statement that gives the model a name, if it had none.
        last: the statement behind the sharding; "" where the model keeps its name.
        test: the condition under which the model is sharded, as source; "" where it always is.
        otherwise: the statement where it is not.
        call: the call, where the statement stays and has the model in the place of it.
    """

    statement: ast.stmt
    model: str
    first: str = ""
    last: str = ""
    test: str = ""
    otherwise: str = ""
    call: ast.Call | None = None


def place_of(construction: Construction) -> Place | None:
    """Where a constructor's statements go; None where no statement can stand, as inside of a comprehension."""
    context = construction.context
    module = construction.module
    call = double.outermost(context, construction.call)
    file = context.file
    statement = file.statement(call)
    in_class = isinstance(file.scope_of(call).node, ast.ClassDef)
    if module is None or in_class or not context.is_alone(statement):
        return None
    if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.Return | ast.Expr):
        return None
    value = statement.value
    begins = _begins(context, statement)
    if value is call:
        return _in_place(construction, statement, begins)
    if isinstance(value, ast.IfExp) and call in (value.body, value.orelse):
        if _has_sibling(context, statement, call):  # whose statements would stand there as well
            return None
        place = _in_place(construction, statement, begins)
        test = context.source(value.test)
        other = value.orelse
        if call is value.orelse:
            test = negated(test)
            other = value.body
        otherwise = f"{begins}{construction.text(other)}"
        if begins and otherwise == f"{begins}{begins.removesuffix(' = ')}":
            otherwise = ""
        return Place(statement, place.model, place.first, place.last, test, otherwise)
    if not _comes_first(context, statement, call):
        return None
    model, first = _model(construction, "")
    return Place(statement, model, first, call=call)


def _has_sibling(context: Context, statement: ast.stmt, call: ast.Call) -> bool:
    """Return whether a statement has another constructor, as in `FSDP(a) if large else FSDP(b)`."""
    own = {*ast.walk(call), *context.file.ancestors(call)}
    others = [node for node in ast.walk(statement) if node not in own]
    return any(
        isinstance(node, ast.Call) and context.references.get(node.func) == CLASS for node in others
    )


def _begins(context: Context, statement: ast.Assign | ast.AnnAssign | ast.Return | ast.Expr) -> str:
    """The text of a statement in front of its value."""
    match statement:
        case ast.Return():
            return "return "
        case ast.Assign(targets=targets):
            return "".join(f"{context.source(target)} = " for target in targets)
        case ast.AnnAssign(target=target):
            return f"{context.source(target)} = "
    return ""


def _in_place(construction: Construction, statement: ast.stmt, begins: str) -> Place:
    target = ""
    if begins.count(" = ") == 1:
        target = begins.removesuffix(" = ")
    model, first = _model(construction, target)
    last = f"{begins}{model}"
    if begins in ("", f"{model} = "):
        last = ""
    return Place(statement, model, first, last)


def _model(construction: Construction, target: str) -> tuple[str, str]:
    """The model as source, and the statement that gives it a name if it had none."""
    context = construction.context
    call = construction.call
    module = construction.module
    assert module is not None
    is_path = isinstance(module, ast.Name | ast.Attribute | ast.Subscript)
    if is_path and not _calls(module):
        return ast.unparse(module), ""
    can_be_read = target and not has_any(target, "([,")
    name = target
    if not can_be_read:
        name = context.local("model", call)
    source = context.source(module)
    if NEWLINE.search(source):  # for a statement of its own; Black drops spare brackets
        source = f"({source})"
    return name, f"{name} = {source}"


def _calls(path: ast.expr) -> bool:
    """Whether an expression calls something, and must not be written twice."""
    return any_is(ast.walk(path), ast.Call)


_LATER = (ast.Lambda, ast.IfExp, ast.BoolOp, ast.comprehension, ast.NamedExpr, ast.Await)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _comes_first(context: Context, statement: ast.stmt, call: ast.Call) -> bool:
    """Whether a call is what a statement does first, so that it can be done in front of it."""
    around = []
    for node in context.file.ancestors(call):
        if node is statement:
            break
        around.append(node)
    if any_is(around, _LATER + _COMPREHENSIONS):
        return False
    place = (call.lineno, call.col_offset)
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    others = [node for node in calls if node not in around and node is not call]
    return all((node.lineno, node.col_offset) >= place for node in others)


def in_place(construction: Construction, code: Code, place: Place) -> list[Edit]:
    """The edits that put calls of `fully_shard` in the place of the constructor."""
    context = construction.context
    lines = code.lines(construction)
    room = context.line_length - place.statement.col_offset
    if place.test:
        lines = [
            f"if {place.test}:",
            *[indent(line, "    ") for line in _flat(place, lines, room - 4)],
        ]
        if place.otherwise:
            lines += ["else:", f"    {place.otherwise}"]
    else:
        lines = _flat(place, lines, room)
    whole: ast.AST = place.statement
    if place.call is not None:
        whole = construction.call
    kept, gone = remarks(construction, "\n".join(lines), whole)
    text = "\n".join([*kept, *lines])
    if place.call is None:
        return [context.replace_statement(place.statement, text)._replace(lost=gone)]
    return [
        context.insert_above(place.statement, text)._replace(lost=gone),
        context.replace(place.call, place.model),
    ]


def _flat(place: Place, lines: list[str], room: int) -> list[str]:
    """The statements, with those that name the model in front and behind; `fully_shard` returns it.

    Args:
        room: the characters that a line has.
    """
    first = []
    if place.first:
        first = [place.first]
    if not place.last:
        return [*first, *lines]
    begins = place.last.removesuffix(place.model)
    root = f"fully_shard({place.model}"
    for at, line in reversed([*enumerate(lines)]):
        if line.lstrip().startswith((f"{root},", f"{root})")):
            # What a function returns, it returns last.
            if begins.startswith("return ") and at < len(lines) - 1:
                break
            margin = line[: len(line) - len(line.lstrip())]
            is_wider = len(line) <= room < len(line) + len(begins)
            if is_wider and not begins.startswith("return "):
                break
            return [*first, *lines[:at], f"{margin}{begins}{line.lstrip()}", *lines[at + 1 :]]
    return [*first, *lines, place.last]


def by_units(construction: Construction, place: Place) -> list[Edit]:
    """The edits that put a loop over FSDP1's units, by its own arguments, in the place of the constructor."""
    context = construction.context
    call = construction.call
    name = context.local("module", call)
    options = context.local("options", call)
    given = _given(construction, place.model)
    is_long = NEWLINE.search(given) is not None
    if is_long:  # stays in its own layout
        own = indentation(context.file, place.statement)
        rows = [line.removeprefix(own) for line in NEWLINE.split(given)]
        # As deep as the loop's body, the last one would read as a part of that.
        is_alike = re.match(r"(?: {4}|\t)\S", rows[-1])
        if is_alike:
            rows.append("")
        given = "\n".join(rows)
    loop = [f"for {name}, {options} in units({given}):", f"    fully_shard({name}, **{options})"]
    loop = under(construction, place.model, loop)
    lines = _flat(place, loop, context.line_length - place.statement.col_offset)
    code = "\n".join(lines)
    kept, gone = remarks(construction, code, place.statement)
    code = "\n".join([*kept, *lines])
    edit = context.replace_statement(place.statement, code, as_it_is=is_long)
    return [edit._replace(lost=gone)]


def _given(construction: Construction, model: str) -> str:
    """The arguments of a call as they are written, with a name for the model, the names of today, and without those that have
    no effect."""
    context = construction.context
    call = construction.call
    module = construction.module
    file = context.file
    assert module is not None
    source = context.source(call)
    items = read(source)
    values: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    for value, item in zip(values, list(items.items), strict=True):
        name = None
        if isinstance(value, ast.keyword):
            name = value.arg
        if value is module or (isinstance(value, ast.keyword) and value.value is module):
            if name is None:
                item.text = model
            else:
                item.text = f"{name}={model}"
        elif name in FORMER_NAMES:
            item.text = item.text.replace(name, FORMER_NAMES[name], 1)
        elif name in WITHOUT_EFFECT and not _is_read_by_units(name, value):
            items.drop(item)
    code = items.code
    return code[len(file.source(call.func)) :].strip().removeprefix("(").removesuffix(")")


def _is_read_by_units(name: str, value: ast.expr | ast.keyword) -> bool:
    """Return whether the runtime does something with an argument that means nothing to `fully_shard`."""
    return name == "use_orig_params" or (name == "backward_prefetch" and _is_none(value))


def _is_none(keyword: ast.expr | ast.keyword) -> bool:
    value = keyword
    if isinstance(keyword, ast.keyword):
        value = keyword.value
    return is_none(value)
