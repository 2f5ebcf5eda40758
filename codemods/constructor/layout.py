"""The plain form of a constructor as code: the statements, or the call, that take its place."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from tokenize import COMMENT

from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.constructor.plain import Plain, Stays
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.text import comments, comments_between, tokens
from fsdp_migrate.codemods.rule import Edit
from fsdp_migrate.syntax import parsed

_BUILTINS = ("reversed", "list", "isinstance", "dict")
# Arguments that FSDP2 has no place for: a comment at one of them would be taken for the next line's.
_WITHOUT_PLACE = (
    "use_orig_params",
    "limit_all_gathers",
    "forward_prefetch",
    "backward_prefetch",
    "device_id",
)


@dataclass(frozen=True, eq=False)
class Shape:
    """How a constructor is written.

    Attributes:
        statement: the statement that becomes several; None if the call alone is replaced.
        target: what the result is assigned to, "return" where it is returned, "" where the model keeps its name.
        model: the model, as source.
        first: a statement that gives the model a name, if it had none.
    """

    statement: ast.stmt | None
    target: str
    model: str
    first: str = ""


def shape_of(construction: Construction, parts: Plain) -> Shape:
    """How a constructor is written.

    Raises:
        Stays: if the plain form takes several statements, and the call is inside an expression.
    """
    context, call = construction.context, construction.call
    model = construction.module
    if model is None:
        raise Stays("the model comes from an unpacked dictionary")
    source = _enclosed(context.source(model))
    several = bool(parts.units or parts.members or parts.above or parts.below or parts.checks)
    if several and isinstance(context.file.scope_of(call).node, ast.ClassDef):
        raise Stays("a loop in a class body would add attributes to the class")
    if parts.units and any(context.file.scope_of(call).lookup(name) for name in _BUILTINS):
        raise Stays("a loop needs Python's own reversed, list, isinstance and dict")
    statement = context.file.parents[call]
    target = _target(context, statement)
    if target is None:
        if several:
            raise Stays("the call is inside an expression, where a loop cannot go")
        return Shape(None, "", source)
    assert isinstance(statement, ast.stmt)
    if isinstance(model, ast.Name | ast.Attribute | ast.Subscript) and not _calls(model):
        dotted = ast.unparse(model)
        return Shape(statement, "" if target == dotted else target, dotted)
    if not several:
        return Shape(statement, target, source)
    name = target if target not in ("", "return") else context.free("model", call)
    returned = "return" if target == "return" else ""
    return Shape(statement, returned, name, f"{name} = {source}")


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
    context, call = construction.context, construction.call
    made = [edit for more in parts.edits for edit in more()]
    made += [context.remove(statement) for statement in parts.statements]
    if shape.statement is None:
        arguments = _arguments({**parts.shared, **parts.root})
        code = f"fully_shard({shape.model}{arguments})"
        lost = comments_between(context.file, *context.file.span(call))
        if lost:
            raise Stays("comments in the call would be lost")
        return [*made, context.replace(call, code)]
    code = "\n".join(_lines(construction, parts, shape, skip_root))
    kept = _kept_comments(construction, code)
    return [*made, context.replace_statement(shape.statement, "\n".join([*kept, code]))]


def _lines(construction: Construction, parts: Plain, shape: Shape, skip_root: bool) -> list[str]:
    context = construction.context
    lines = [f"# As a run recorded: {parts.fixed}"] if parts.fixed else []
    lines += [f"assert {check}" for check in parts.checks]
    lines += [shape.first] if shape.first else []
    lines += [line.replace("{model}", shape.model) for line in parts.above]
    shared = _arguments(parts.shared)
    if parts.units or parts.members:
        if len(parts.shared) > 1:
            name = context.free("fsdp_kwargs", construction.call)
            lines.append(f"{name} = dict({shared.removeprefix(', ')})")
            shared = f", **{name}"
        lines += _loop(construction, parts, shape, shared, skip_root)
    final = f"fully_shard({shape.model}{_arguments(parts.root)}{shared})"
    below = [line.replace("{model}", shape.model) for line in parts.below]
    if below and shape.target == "return":
        return [*lines, final, *below, f"return {shape.model}"]
    if shape.target:
        final = f"return {final}" if shape.target == "return" else f"{shape.target} = {final}"
    return [*lines, final, *below]


def _loop(
    construction: Construction, parts: Plain, shape: Shape, shared: str, skip_root: bool
) -> Sequence[str]:
    unit = construction.context.free("module", construction.call)
    call = f"fully_shard({{}}{_arguments(parts.child)}{shared})"
    if parts.members:
        return _of_members([_member(shape.model, name) for name in parts.members], unit, call)
    condition = parts.units.format(module=unit)
    if skip_root:
        condition = f"{unit} is not {shape.model} and {condition}"
    return (
        f"for {unit} in reversed(list({shape.model}.modules())):",
        f"    if {condition}:",
        f"        {call.format(unit)}",
    )


def _of_members(members: list[str], unit: str, call: str) -> Sequence[str]:
    """The units that are named, children before parents."""
    if members[0][0] != "*" and len(members) == 1:
        return (call.format(members[0]),)
    every = members[0][1:] if len(members) == 1 else f"({', '.join(members)})"
    return f"for {unit} in {every}:", f"    {call.format(unit)}"


def _member(model: str, name: str) -> str:
    """A unit by its name: `model.layers[3].norm` for `layers.3.norm`, `*model.layers` for `layers.*`."""
    parts = name.removesuffix(".*").split(".")
    code = model + "".join(f"[{part}]" if part.isdecimal() else f".{part}" for part in parts)
    return f"*{code}" if name.endswith(".*") else code


def _arguments(given: dict[str, str]) -> str:
    return "".join(f", {name}={_enclosed(value)}" for name, value in given.items())


def _enclosed(source: str) -> str:
    """An expression in parentheses if it is written over several lines and needs them."""
    if "\n" not in source:
        return source
    try:
        parsed(source)
    except SyntaxError:
        return f"({source})"
    return source


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
    below = [a for a in construction.arguments if getattr(a.node, "lineno", 0) > line]
    about = ending[-1] if ending else (below[0] if below else None)
    if about is None or about.name not in _WITHOUT_PLACE:
        return ""
    return f"{about.name}={ast.unparse(about.value)}"
