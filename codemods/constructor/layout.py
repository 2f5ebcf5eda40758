"""The plain form of a constructor as code: the statements, or the call, that take its place."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass, replace
from textwrap import indent, wrap
from tokenize import COMMENT

from fsdp_migrate.codemods.constructor.construction import FREE, PARTIAL, Construction
from fsdp_migrate.codemods.constructor.makers import with_of
from fsdp_migrate.codemods.constructor.plain import Plain, Stays, bracketed
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.text import comments, comments_between, newline, tokens
from fsdp_migrate.codemods.rule import Edit

_COMMENT = 88  # columns
_BUILTINS = ("reversed", "list", "isinstance", "dict")
# Arguments that FSDP2 has no place for: a comment at one of them would be taken for the next line's.
_WITHOUT_PLACE = (*FREE, "device_id")


@dataclass(frozen=True, eq=False)
class Shape:
    """How a constructor is written.

    Attributes:
        statement: the statement that becomes several; None if the call alone is replaced.
        target: what the result is assigned to, "return" where it is returned, "" where the model keeps its name.
        model: the model, as source.
        first: a statement that gives the model a name, if it had none.
        function: a function in front of the statement that shards the model, which the call calls.
    """

    statement: ast.stmt | None
    target: str
    model: str
    first: str = ""
    function: str = ""


def shape_of(construction: Construction, parts: Plain) -> Shape:
    """How a constructor is written.

    Raises:
        Stays: if the plain form takes several statements, and there is no place for them.
    """
    context, call = construction.context, construction.call
    model = construction.module
    if model is None:
        raise Stays("the model comes from an unpacked dictionary")
    source = context.source(model)
    if construction.maker is not None:
        return _shape_by(construction, construction.maker, source, parts)
    several = bool(parts.below) or not only_calls(parts)
    if several and isinstance(context.file.scope_of(call).node, ast.ClassDef):
        raise Stays("a loop in a class body would add attributes to the class")
    if several and any(context.file.scope_of(call).lookup(name) for name in _BUILTINS):
        raise Stays("a loop needs Python's own reversed, list, isinstance and dict")
    statement = context.file.parents[call]
    target = _target(context, statement)
    if target is None:
        if only_calls(parts):
            return Shape(None, "", source)
        return Shape(
            _place(context, call), "return", _parameter(construction, parts), function="shard"
        )
    assert isinstance(statement, ast.stmt)
    if isinstance(model, ast.Name | ast.Attribute | ast.Subscript) and not _calls(model):
        dotted = ast.unparse(model)
        return Shape(statement, "" if target == dotted else target, dotted)
    if not several:
        return Shape(statement, target, source)
    name = target if target not in ("", "return") else context.free("model", call)
    returned = "return" if target == "return" else ""
    return Shape(statement, returned, name, f"{name} = {bracketed(source)}")


def _shape_by(construction: Construction, maker: Construction, source: str, parts: Plain) -> Shape:
    """How a call is written that has its arguments from elsewhere.

    Raises:
        Stays: if it takes several statements, or names that may mean something else there, and `enable_wrap` is around it.
    """
    file = maker.context.file
    statement = file.parents[maker.call]
    if isinstance(statement, ast.Assign):
        name = ast.unparse(statement.targets[0])
        return Shape(statement, "return", _parameter(maker, parts), function=name)
    if not only_calls(replace(parts, checks=())):  # those are at its maker
        raise Stays("the call is inside an expression, where a loop cannot go")
    for node in _names(f"f(x{_arguments(parts.shared)})"):
        there, here = (file.variable(node, each.call) for each in (maker, construction))
        if there is not None and (there != here or len(there.bindings) > 1):
            raise Stays(f"{node.id} may mean something else where wrap is called")
    return Shape(None, "", source)


def _parameter(construction: Construction, parts: Plain) -> str:
    """What a function that shards a model calls it: not what its code calls another one."""
    code = "\n".join(_lines(construction, parts, Shape(None, "", ""), skip_root=False))
    taken = re.search(r"(?<!\.)\bmodel\b", code)
    return construction.context.free("model", construction.call) if taken else "model"


def _names(code: str) -> list[ast.Name]:
    return [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)]


def only_calls(parts: Plain) -> bool:
    """Whether the plain form is a call of `fully_shard`, or calls around it: buffers are cast below only beside `each`."""
    several = (parts.units, parts.members, parts.norms, parts.above, parts.checks, parts.each)
    return not any(several)


def _place(context: Context, call: ast.Call) -> ast.stmt:
    """The statement around a call that a function can be defined above.

    Raises:
        Stays: if there is none where the function sees the names that the call sees.
    """
    statement = context.file.statement(call)
    while not context.is_alone(statement) or context.source(statement).startswith("elif"):
        above = context.file.parents[statement]
        if not isinstance(above, ast.If | ast.For | ast.While | ast.With | ast.Try):
            break
        statement = above
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    if isinstance(statement, definitions) or not context.is_alone(statement):
        raise Stays("the call is inside an expression, where a loop cannot go")
    return statement


def _target(context: Context, statement: ast.AST) -> str | None:
    """What a statement does with the result; None if statements cannot take its place."""
    if not isinstance(statement, ast.Assign | ast.Return | ast.Expr):
        return None
    if not context.is_alone(statement):
        return None
    if isinstance(statement, ast.Return):
        return "return"
    if isinstance(statement, ast.Expr):
        return ""
    first = statement.targets[0]
    named = len(statement.targets) == 1 and isinstance(
        first, ast.Name | ast.Attribute | ast.Subscript
    )
    return ast.unparse(first) if named and not _calls(first) else None


def _calls(path: ast.expr) -> bool:
    """Whether an expression calls something, and must not be written twice."""
    return any(isinstance(node, ast.Call) for node in ast.walk(path))


def edits(construction: Construction, parts: Plain, shape: Shape, *, skip_root: bool) -> list[Edit]:
    """The edits that put the plain form in the place of the call."""
    context, maker = construction.context, construction.maker
    made = [edit for more in parts.edits for edit in more()]
    made += [context.remove(statement) for statement in parts.statements]
    if maker is not None and maker.kind == PARTIAL:
        return [*made, *_by_partial(construction, parts, shape, skip_root=skip_root)]
    if maker is not None:
        made += _dedented(maker, parts)
    if shape.statement is None:
        return [*made, *_around_model(construction, *_calls_around(construction, parts))]
    if shape.function:
        code = definition(construction, parts, shape, skip_root=skip_root)
        made.append(_defined_above(context, shape.statement, code))
        return [*made, *_around_model(construction, f"{shape.function}(", ")")]
    functions = [each for each in parts.above if each.startswith("def ")]
    made += [_defined_above(context, shape.statement, each) for each in functions]
    parts = replace(parts, above=tuple(each for each in parts.above if each not in functions))
    code = "\n".join(_lines(construction, parts, shape, skip_root))
    kept = _kept_comments(construction, code)
    return [*made, context.replace_statement(shape.statement, "\n".join([*kept, code]))]


def _by_partial(
    construction: Construction, parts: Plain, shape: Shape, *, skip_root: bool
) -> list[Edit]:
    """The `partial` as one of `fully_shard`, or as a function; the calls of it stay as they are."""
    context, maker = construction.context, construction.maker
    assert maker is not None
    assert shape.statement is not None
    if not only_calls(parts) or parts.below:
        code = definition(construction, parts, shape, skip_root=skip_root)
        edit, file = context.replace_statement(shape.statement, code), context.file
        behind = file.text[edit.end :].replace("\r\n", "\n")
        blank = behind.startswith("\n") and not behind.startswith("\n\n")
        return [edit._replace(text=edit.text + newline(file)) if blank else edit]
    arguments = _arguments({**parts.root, **parts.shared})
    function = f"{context.source(maker.call.func)}(fully_shard{arguments})"
    return [context.replace(maker.call, function if arguments else "fully_shard")]


def definition(construction: Construction, parts: Plain, shape: Shape, *, skip_root: bool) -> str:
    """The function that shards the model.

    Raises:
        Stays: if it reads a name that only the expression around the call has.
    """
    file, lines = (
        construction.context.file,
        "\n".join(_lines(construction, parts, shape, skip_root)),
    )
    assert shape.statement is not None
    for node in _names(lines):
        here, there = (file.variable(node, at) for at in (construction.call, shape.statement))
        if here is None or node.id == shape.model:
            continue
        by = (getattr(binding, "node", None) for binding in here.bindings)
        if here != there or any(isinstance(each, ast.comprehension) for each in by):
            raise Stays("the call is inside an expression, where a loop cannot go")
        if construction.maker is not None and len(here.bindings) > 1:
            raise Stays(f"{node.id} may change before the partial is called")
    return f"def {shape.function}({shape.model}):\n{indent(lines, '    ')}"


def _defined_above(context: Context, statement: ast.stmt, code: str) -> Edit:
    """A function above a statement, with blank lines around it."""
    edit, file = context.insert_above(statement, code), context.file
    wanted = 1 + isinstance(file.parents[statement], ast.Module)
    above = file.text[: edit.start].replace("\r\n", "\n")
    there = len(above) - len(above.rstrip("\n")) - 1
    missing = 0 if file.block(statement)[0] is statement else wanted - there
    text = newline(file) * missing + edit.text + newline(file) * wanted
    return edit._replace(text=text)


def _calls_around(construction: Construction, parts: Plain) -> tuple[str, str]:
    """What is in front of a model and behind it; nothing where it is a unit already: FSDP1 leaves no parameters to a unit
    around it."""
    maker = construction.maker
    if maker is not None and any(construction.module is each.call for each in maker.users):
        return "", ""
    calls = [line.removesuffix("{model})") for line in reversed(parts.below)]
    behind = _arguments({**parts.root, **parts.shared}) + ")" * (len(calls) + 1)
    return "".join([*calls, "fully_shard("]), behind


def _dedented(maker: Construction, parts: Plain) -> list[Edit]:
    """The body of `with enable_wrap(...)` in its place, below the checks of what it gave."""
    context = maker.context
    statement = with_of(context, maker)
    assert statement is not None
    checks = "\n".join(_checks(parts))
    above = [context.insert_above(statement, checks)] if checks else []
    return [*above, *context.dedent(statement)]


def _checks(parts: Plain) -> list[str]:
    fixed = wrap(f"As a run recorded: {parts.fixed}", _COMMENT) if parts.fixed else []
    lines = [*parts.first, *(f"# {line}" for line in fixed)]
    return [*lines, *(f"assert {check}" for check in parts.checks)]


def _around_model(construction: Construction, before: str, behind: str) -> list[Edit]:
    """The edits of a call that leave its model as it is written.

    Raises:
        Stays: if a comment would be lost.
    """
    file = construction.context.file
    assert construction.module is not None
    (start, end), (first, last) = file.span(construction.call), file.span(construction.module)
    if comments_between(file, start, end) != comments_between(file, first, last):
        raise Stays("comments in the call would be lost")
    return [Edit(start, first, before), Edit(last, end, behind)]


def _lines(construction: Construction, parts: Plain, shape: Shape, skip_root: bool) -> list[str]:
    context = construction.context
    lines = _checks(parts)
    lines += [shape.first] if shape.first else []
    lines += [line.replace("{model}", shape.model) for line in parts.above]
    if parts.each:
        lines.append(
            "# Each unit gets its memory just before it is sharded: one at a time is whole"
        )
    shared = _arguments(parts.shared)
    if parts.units or parts.members or parts.norms:
        if len(parts.shared) > 1:
            name = context.free("fsdp_kwargs", construction.call)
            lines.append(f"{name} = dict({shared.removeprefix(', ')})")
            shared = f", **{name}"
        if any("cast_forward_inputs=False" in value for value in parts.child.values()):
            lines.append("# As under FSDP1, the root alone casts its inputs")
        unit = context.free("module", construction.call)
        lines += _loop(parts, shape.model, unit, shared, skip_root)
    lines += _each(parts, shape.model)
    final = f"fully_shard({shape.model}{_arguments(parts.root)}{shared})"
    below = [line.replace("{model}", shape.model) for line in parts.below]
    if below and shape.target == "return":
        return [*lines, final, *below, f"return {shape.model}"]
    if shape.target:
        final = f"return {final}" if shape.target == "return" else f"{shape.target} = {final}"
    return [*lines, final, *below]


def _loop(parts: Plain, model: str, unit: str, shared: str, skip_root: bool) -> list[str]:
    """The loops that shard the units below a model."""
    options = f"{_arguments(parts.child)}{shared})"
    call = "\n".join([*_each(parts, unit), f"fully_shard({unit}{options}"])
    every = f"{model}.modules()" if parts.each else f"reversed(list({model}.modules()))"
    lines = [f"for {unit} in {every}:"] if parts.units or parts.norms else []
    if parts.norms:
        lines.append(f"    if isinstance({unit}, _BatchNorm):")
        lines += [f"        run_in_full_precision({unit})", f"        fully_shard({unit}{shared})"]
    if parts.units:
        condition = parts.units.format(module=unit)
        if skip_root:
            condition = f"{unit} is not {model} and {condition}"
        keyword = "elif" if parts.norms else "if"
        lines += [f"    {keyword} {condition}:", indent(call, " " * 8)]
    members = [_member(model, name) for name in parts.members]
    if not members:
        return lines
    if len(members) > 1:
        every = f"({', '.join(members)})"
    elif members[0].startswith("*"):
        every = members[0][1:]
    elif parts.each:
        every = f"({members[0]},)"
    else:
        return [*lines, f"fully_shard({members[0]}{options}"]
    return [*lines, f"for {unit} in {every}:", indent(call, "    ")]


def _each(parts: Plain, module: str) -> list[str]:
    """The statements in front of the call that shards a module."""
    return [line.replace("{module}", module) for line in parts.each]


def _member(model: str, name: str) -> str:
    """A unit by its name: `model.layers[3].norm` for `layers.3.norm`, `*model.layers` for `layers.*`."""
    parts = name.removesuffix(".*").split(".")
    code = model + "".join(f"[{part}]" if part.isdecimal() else f".{part}" for part in parts)
    return f"*{code}" if name.endswith(".*") else code


def _arguments(given: dict[str, str]) -> str:
    return "".join(f", {name}={value}" for name, value in given.items())


def _kept_comments(construction: Construction, code: str) -> list[str]:
    """The comments of the call that the new code lacks, each with the argument that it was about."""
    placed = Counter(comments(code))
    kept: list[str] = []
    about = ""
    for line, comment in _comments(construction):
        if placed[comment]:
            placed[comment] -= 1
            continue
        argument = _argument_at(construction, line)
        if argument and argument != about:
            kept.append(f"# FSDP1's {argument}:")
        about = argument
        kept.append(comment)
    return kept


def _comments(construction: Construction) -> list[tuple[int, str]]:
    """The comments inside of the call, with their lines."""
    first = construction.call.lineno
    return [
        (first + token.start[0] - 1, token.string)
        for token in tokens(construction.context.source(construction.call))
        if token.type == COMMENT
    ]


def _argument_at(construction: Construction, line: int) -> str:
    """The argument without a counterpart that a comment on a line is about, as source; "" for any other."""
    ending = [a for a in construction.arguments if getattr(a.node, "end_lineno", 0) == line]
    below = [a for a in construction.arguments if getattr(a.node, "lineno", 0) >= line]
    about = ending[-1] if ending else (below[0] if below else None)
    if about is None or about.name not in _WITHOUT_PLACE:
        return ""
    return f"{about.name}={ast.unparse(about.value)}"
