"""Where the code of a constructor goes: statements in its place or above it, a function, an expression."""

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from textwrap import indent

from fsdp_migrate.codemods.constructor import double
from fsdp_migrate.codemods.constructor.code import Code, under
from fsdp_migrate.codemods.constructor.conditions import negated
from fsdp_migrate.codemods.constructor.construction import (
    ENABLE_WRAP,
    FORMER_NAMES,
    PARTIAL,
    Construction,
)
from fsdp_migrate.codemods.constructor.remarks import remarks
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.text import Refused, indentation, line_start, newline, read
from fsdp_migrate.codemods.imports import WITHOUT_EFFECT
from fsdp_migrate.codemods.rule import Edit, Import
from fsdp_migrate.facts.file import NEWLINE
from fsdp_migrate.facts.names import CLASS


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
    context, module = construction.context, construction.module
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
        other = value.orelse if call is value.body else value.body
        test = context.source(value.test)
        kept = f"{begins}{construction.text(other)}"
        is_same = begins and kept == f"{begins}{begins.removesuffix(' = ')}"
        return Place(
            statement,
            place.model,
            place.first,
            place.last,
            test if call is value.body else negated(test),
            "" if is_same else kept,
        )
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
    target = begins.removesuffix(" = ") if begins.count(" = ") == 1 else ""
    model, first = _model(construction, target)
    last = "" if begins in ("", f"{model} = ") else f"{begins}{model}"
    return Place(statement, model, first, last)


def _model(construction: Construction, target: str) -> tuple[str, str]:
    """The model as source, and the statement that gives it a name if it had none."""
    context, call, module = construction.context, construction.call, construction.module
    assert module is not None
    is_path = isinstance(module, ast.Name | ast.Attribute | ast.Subscript)
    if is_path and not _calls(module):
        return ast.unparse(module), ""
    can_be_read = target and not any(mark in target for mark in "([,")
    name = target if can_be_read else context.local("model", call)
    source = context.source(module)
    if NEWLINE.search(source):  # for a statement of its own; Black drops spare brackets
        source = f"({source})"
    return name, f"{name} = {source}"


def _calls(path: ast.expr) -> bool:
    """Whether an expression calls something, and must not be written twice."""
    return any(isinstance(node, ast.Call) for node in ast.walk(path))


_LATER = (ast.Lambda, ast.IfExp, ast.BoolOp, ast.comprehension, ast.NamedExpr, ast.Await)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _comes_first(context: Context, statement: ast.stmt, call: ast.Call) -> bool:
    """Whether a call is what a statement does first, so that it can be done in front of it."""
    around = []
    for node in context.file.ancestors(call):
        if node is statement:
            break
        around.append(node)
    if any(isinstance(node, _LATER + _COMPREHENSIONS) for node in around):
        return False
    place = (call.lineno, call.col_offset)
    before = (
        node
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and node not in around and node is not call
    )
    return all((node.lineno, node.col_offset) >= place for node in before)


def in_place(construction: Construction, code: Code, place: Place) -> list[Edit]:
    """The edits that put calls of `fully_shard` in the place of the constructor."""
    context = construction.context
    lines = code.lines(construction)
    room = context.line_length - place.statement.col_offset
    if place.test:
        lines = [
            f"if {place.test}:",
            *(indent(line, "    ") for line in _flat(place, lines, room - 4)),
        ]
        lines += ["else:", f"    {place.otherwise}"] if place.otherwise else []
    else:
        lines = _flat(place, lines, room)
    whole = construction.call if place.call is not None else place.statement
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
    first = [place.first] if place.first else []
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


def in_function(construction: Construction, code: Code, name: str) -> list[Edit]:
    """The edits that put a function above the statement, and its name in the place of the class."""
    context, call = construction.context, construction.call
    statement = context.file.statement(call)
    anchor = _anchor(context, _outside_of_class(context, statement, call))
    lines = code.lines(construction)
    kept, gone = remarks(construction, "\n".join(lines), call)
    body = "\n".join([*kept, *lines, f"return {code.model}"])
    doc = '"""Shards a model in place, and returns it."""'
    text = f"def {name}({code.model}):\n{indent(doc, '    ')}\n{indent(body, '    ')}"
    if isinstance(context.file.parents[anchor], ast.Module):
        above = defined_above(context, anchor, text)
    else:
        above = context.insert_above(anchor, text)
        above = above._replace(text=above.text + newline(context.file))
    above = above._replace(lost=gone)
    if construction.kind == PARTIAL and _assigns(statement, call):
        return [above, context.remove(statement)]
    return [above, *_called(construction, name, "")]


def _outside_of_class(context: Context, statement: ast.stmt, call: ast.Call) -> ast.stmt:
    """The statement, or the class around it where code inside of the statement does not see the class's names."""
    parent = context.file.parents[statement]
    if isinstance(parent, ast.ClassDef) and context.file.scope_of(call).node is not parent:
        return _outside_of_class(context, parent, call)
    return statement


def _anchor(context: Context, statement: ast.stmt) -> ast.stmt:
    """The statement above which a function can stand: the first on the line, or the one whose head is on it."""
    file = context.file
    while True:
        first = next(each for each in file.block(statement) if each.lineno == statement.lineno)
        if not file.text[line_start(file, first) : file.span(first)[0]].strip():
            return first
        parent = file.parents[first]
        if not isinstance(parent, ast.stmt):
            raise Refused("there is no room for a function above")
        statement = parent


def in_expression(construction: Construction, code: Code) -> list[Edit]:
    """The edits that put a call of `fully_shard` in the place of the class's, in any expression."""
    return _called(construction, "fully_shard", code.call)


def name_of_function(construction: Construction) -> str:
    """The name of the function that takes the place of a constructor: of the `partial` that it was, else a free one."""
    context, call = construction.context, construction.call
    statement = context.file.statement(call)
    if construction.kind == PARTIAL and isinstance(statement, ast.Assign):
        if _assigns(statement, call):
            return context.source(statement.targets[0])
    # Each constructor of the file has a function of its own.
    taken = context.program.kept.setdefault("functions of constructors", {})
    known: dict[ast.Call, str] = taken.setdefault(str(context.file.path), {})
    if call not in known:
        name, number = context.free("shard", call), 2
        while name in known.values():
            name, number = context.free(f"shard_{number}", call), number + 1
        known[call] = name
    return known[call]


def _assigns(statement: ast.stmt, call: ast.Call) -> bool:
    match statement:
        case ast.Assign(targets=[ast.Name()], value=value):
            return value is call
    return False


def _called(construction: Construction, name: str, arguments: str) -> list[Edit]:
    """The edits of the call itself: the function takes the model, and perhaps some arguments."""
    context, call, module = construction.context, construction.call, construction.module
    file = context.file
    end = file.span(call)[1]
    if construction.kind == PARTIAL:
        if not arguments:
            return [context.replace(call, name)]
        return [context.replace(call, f"{context.source(call.func)}({name}{arguments})")]
    if construction.kind == ENABLE_WRAP:
        first, last = file.span(call.func)[1], end - 1
        opening = file.text.index("(", first) + 1
        return [Edit(opening, last, f"wrapper_cls={name}{arguments}")]
    assert module is not None
    opening = file.text.index("(", file.span(call.func)[1]) + 1
    first, last = file.span(module)
    closing = end - 1
    brackets = file.text[last:closing]
    behind = ")" * (len(brackets.split(",")[0]) - len(brackets.split(",")[0].rstrip().rstrip(")")))
    in_front = file.text[opening:first]
    return [
        context.replace(call.func, name),
        Edit(opening, first, "(" * in_front.count("(")),
        Edit(last, closing, (behind.strip() if in_front.count("(") else "") + arguments),
    ]


def by_units(construction: Construction, place: Place) -> list[Edit]:
    """The edits that put a loop over FSDP1's units, by its own arguments, in the place of the constructor."""
    context, call = construction.context, construction.call
    name, options = context.local("module", call), context.local("options", call)
    given = _given(construction, place.model)
    is_long = NEWLINE.search(given) is not None
    if is_long:  # stays in its own layout
        own = indentation(context.file, place.statement)
        rows = [line.removeprefix(own) for line in NEWLINE.split(given)]
        # As deep as the loop's body, the last one would read as a part of that.
        is_alike = re.match(r"(?: {4}|\t)\S", rows[-1])
        given = "\n".join([*rows, ""] if is_alike else rows)
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
    context, call, module = construction.context, construction.call, construction.module
    file = context.file
    assert module is not None
    source = context.source(call)
    items = read(source)
    values: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    for value, item in zip(values, list(items.items), strict=True):
        name = value.arg if isinstance(value, ast.keyword) else None
        if value is module or (isinstance(value, ast.keyword) and value.value is module):
            item.text = model if name is None else f"{name}={model}"
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
    value = keyword.value if isinstance(keyword, ast.keyword) else keyword
    return isinstance(value, ast.Constant) and value.value is None


def function(construction: Construction, name: str, imports: Iterable[Import]) -> str:
    """A function that shards a module with FSDP1's arguments, and returns it; it may be given by its name, too.

    Args:
        imports: what it imports itself.
    """
    loop = [
        "for unit, options in units(module, *args, **kwargs):",
        "    fully_shard(unit, **options)",
    ]
    lines = under(construction, "module", loop)
    doc = '"""Shards a module with FSDP1\'s arguments, in place."""'
    ordered = sorted(imports, key=lambda need: need[:2])
    own = [f"from {need.module} import {need.name}" for need in ordered]
    body = indent("\n".join([doc, *own, *lines, "return module"]), "    ")
    return f"def {name}(module, *args, **kwargs):\n{body}"


def above_of(context: Context, node: ast.AST) -> ast.stmt:
    """The statement at the top of a file that a node is in."""
    statement: ast.AST = node
    while not isinstance(context.file.parents[statement], ast.Module):
        statement = context.file.parents[statement]
    assert isinstance(statement, ast.stmt)
    return statement


def defined_above(context: Context, statement: ast.stmt, code: str) -> Edit:
    """A function above a statement of a file's top, with two blank lines around it."""
    edit, file = context.insert_above(statement, code), context.file
    line = edit.text[len(edit.text.rstrip("\r\n")) :] or "\n"
    first = "\r\n" if file.text[: edit.start].endswith("\r") else line  # "\r" and "\n" would be one
    above = NEWLINE.sub("\n", file.text[: edit.start])
    missing = max(0, 3 - (len(above) - len(above.rstrip("\n")))) if above else 0
    return edit._replace(text=first * missing + edit.text + line * 2)
