"""The code of a constructor as a function above it, whose name takes the place of FSDP1's class, or as one expression."""

import ast
import re
from collections.abc import Iterable
from textwrap import indent

from fsdp_migrate.codemods.constructor.code import Code, under
from fsdp_migrate.codemods.constructor.construction import (
    ENABLE_WRAP,
    PARTIAL,
    AtRunTime,
    Construction,
)
from fsdp_migrate.codemods.constructor.remarks import remarks
from fsdp_migrate.codemods.constructor.wrap_calls import calls_in, without_block
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.text import Refused, line_start, newline
from fsdp_migrate.codemods.rule import Edit, Import
from fsdp_migrate.facts.file import NEWLINE
from fsdp_migrate.facts.scopes import Binding, Opaque, Parameter

# An empty line, or the head of a block.
_BEGINS_BLOCK = re.compile(r"(?:\A|:[ \t]*|(?:\n|\r)[ \t]*)(?:\r\n|\r|\n)\Z")


def in_function(construction: Construction, code: Code, name: str) -> list[Edit]:
    """The edits that put a function above the statement, and its name in the place of the class."""
    context = construction.context
    call = construction.call
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
        end = newline(context.file)
        gap = ""
        if not _BEGINS_BLOCK.search(context.file.text, 0, above.start):
            gap = end
        above = above._replace(text=gap + above.text + end)
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
    context = construction.context
    call = construction.call
    statement = context.file.statement(call)
    if construction.kind == PARTIAL and isinstance(statement, ast.Assign):
        if _assigns(statement, call):
            return context.source(statement.targets[0])
    # Each constructor of the file has a function of its own.
    taken = context.program.kept.setdefault("functions of constructors", {})
    known: dict[ast.Call, str] = taken.setdefault(str(context.file.path), {})
    if call not in known:
        name = context.free("shard", call)
        number = 2
        while name in known.values():
            name = context.free(f"shard_{number}", call)
            number += 1
        known[call] = name
    return known[call]


def _assigns(statement: ast.stmt, call: ast.Call) -> bool:
    match statement:
        case ast.Assign(targets=[ast.Name()], value=value):
            return value is call
    return False


def _called(construction: Construction, name: str, arguments: str) -> list[Edit]:
    """The edits of the call itself: the function takes the model, and perhaps some arguments."""
    context = construction.context
    call = construction.call
    module = construction.module
    file = context.file
    end = file.span(call)[1]
    if construction.kind == PARTIAL:
        if not arguments:
            return [context.replace(call, name)]
        return [context.replace(call, f"{context.source(call.func)}({name}{arguments})")]
    if construction.kind == ENABLE_WRAP:
        if calls_in(construction):
            return without_block(construction, name, arguments)
        first = file.span(call.func)[1]
        last = end - 1
        opening = file.text.index("(", first) + 1
        return [Edit(opening, last, f"wrapper_cls={name}{arguments}")]
    assert module is not None
    opening = file.text.index("(", file.span(call.func)[1]) + 1
    first, last = file.span(module)
    closing = end - 1
    brackets = file.text[last:closing]
    before_comma = brackets.split(",")[0]
    closed = len(before_comma) - len(before_comma.rstrip().rstrip(")"))
    opened = file.text[opening:first].count("(")
    behind = ""
    if opened:
        behind = ")" * closed
    return [
        context.replace(call.func, name),
        Edit(opening, first, "(" * opened),
        Edit(last, closing, behind + arguments),
    ]


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
    edit = context.insert_above(statement, code)
    file = context.file
    line = edit.text[len(edit.text.rstrip("\r\n")) :] or "\n"
    first = line
    if file.text[: edit.start].endswith("\r"):
        first = "\r\n"  # "\r" and "\n" would be one
    above = NEWLINE.sub("\n", file.text[: edit.start])
    missing = 0
    if above:
        missing = max(0, 3 - (len(above) - len(above.rstrip("\n"))))
    return edit._replace(text=first * missing + edit.text + line * 2)


def check_captures(construction: Construction) -> None:
    """Raises AtRunTime where a function above cannot see what the arguments read."""
    context = construction.context
    call = construction.call
    statement = context.file.statement(call)
    inside = {*ast.walk(statement)}
    for argument in construction.arguments:
        if argument.name == "module":
            continue
        parts = {*ast.walk(argument.value)}
        for name in parts:
            if not isinstance(name, ast.Name):
                continue
            for binding in context.file.bindings(name):
                place = _bound_at(binding)
                is_of_lambda = isinstance(place, ast.Lambda) and place in parts
                if place in inside and not is_of_lambda:
                    raise AtRunTime("its arguments differ from call to call")


def _bound_at(binding: Binding) -> ast.AST | None:
    """The loop, or the function, that gives a name a value each time that it runs."""
    match binding:
        case Opaque(node=node):
            return node
        case Parameter(function=function):
            return function
    return None
