"""Edits of state-dict calls, and of the `with` statements around them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.text import (
    Refused,
    comments_between,
    formatted,
    indentation,
    newline,
)
from fsdp_migrate.codemods.rule import Edit, Import
from fsdp_migrate.codemods.uses.state_dict_settings import MODULE


@dataclass(frozen=True, eq=False)
class Replacement:
    """A call of torch's in the place of one of FSDP1's.

    Attributes:
        call: what makes way.
        function: `get_model_state_dict` and its like.
        arguments: as source.
    """

    call: ast.Call
    function: str
    arguments: Sequence[str]

    @property
    def code(self) -> str:
        """The call as source."""
        return f"{self.function}({', '.join(self.arguments)})"

    def imports(self, at: ast.expr) -> list[Import]:
        """What the call needs, imported where `at` was."""
        options = ["StateDictOptions"] if "StateDictOptions(" in self.code else []
        return [Import(MODULE, name, at) for name in [*options, self.function]]


def are_nameable(context: Context, imports: Sequence[Import]) -> bool:
    """Whether names can be imported where FSDP1's was, and mean the same at the place of use."""
    for need in imports:
        assert isinstance(need.at, ast.expr)
        scope = context.file.scope_of(need.at)
        found = scope.lookup(need.name)
        if found is None:
            continue
        root = need.at
        while isinstance(root, ast.Attribute):
            root = root.value
        source = scope.lookup(root.id) if isinstance(root, ast.Name) else None
        # A name that a function imports in another branch is that function's, and may have no value in this one.
        if source is None or source[0] is not found[0]:
            return False
        if not context.means(need.name, need.at, f"{need.module}.{need.name}"):
            return False
    return True


def unwrapped(
    context: Context, statement: ast.With, item: ast.withitem, replacements: Sequence[Replacement]
) -> list[Edit]:
    """The edits that take a context off a statement and put torch's calls into its body.

    Raises:
        Refused: if a comment would be lost, or the statement has a form that cannot be edited.
    """
    file, first = context.file, statement.body[0]
    start, (body, _) = file.span(statement)[0], file.span(first)
    if len(statement.items) > 1:
        return [_without_item(context, statement, item), *call_edits(context, replacements)]
    if not file.text[start:body].count("\n"):
        header = Edit(start, body, "")
        return [header, *call_edits(context, replacements)]
    shift = len(indentation(file, statement)) - len(indentation(file, first))
    calls = call_edits(context, replacements, shift)
    return [
        *calls,
        *(
            edit
            for edit in context.dedent(statement)
            if not any(call.start < edit.start < call.end for call in calls)
        ),
    ]


def _without_item(context: Context, statement: ast.With, item: ast.withitem) -> Edit:
    file = context.file
    place = statement.items.index(item)
    start, end = file.span(item.context_expr)
    if place == 0:
        end, _ = file.span(statement.items[1].context_expr)
    else:
        before = statement.items[place - 1]
        _, start = file.span(before.optional_vars or before.context_expr)
    if comments_between(file, start, end):
        raise Refused("a comment is in the header")
    header = file.text[file.span(statement)[0] : file.span(statement.body[0])[0]].rstrip()
    offset = file.span(statement)[0]
    try:
        ast.parse(f"{header[: start - offset]}{header[end - offset :]} pass")
    except SyntaxError:
        raise Refused("the contexts of the statement are in parentheses of their own") from None
    return Edit(start, end, "")


def call_edits(context: Context, replacements: Sequence[Replacement], shift: int = 0) -> list[Edit]:
    """The edits that put calls in the place of others, laid out as black would.

    Args:
        shift: by how much the indentation of their statements changes.

    Raises:
        Refused: if a comment would be lost.
    """
    together: dict[ast.stmt, list[Replacement]] = {}
    for replacement in replacements:
        if comments_between(context.file, *context.file.span(replacement.call)):
            raise Refused("a comment is inside the call")
        statement = context.file.statement(replacement.call)
        together.setdefault(statement, []).append(replacement)
    return [
        edit
        for statement, calls in together.items()
        for edit in _in_statement(context, statement, calls, shift)
    ]


def _in_statement(
    context: Context, statement: ast.stmt, calls: Sequence[Replacement], shift: int
) -> Iterator[Edit]:
    file = context.file
    edits = sorted(Edit(*file.span(each.call), each.code) for each in calls)
    start = file.line_starts[min(each.call.lineno for each in calls) - 1]
    end = file.text.find("\n", edits[-1].end)
    lines = _edited(file.text, start, len(file.text) if end < 0 else end, edits).split("\n")
    if max(map(len, lines)) + shift <= context.line_length:
        yield from edits
        return
    first, last = file.span(statement)
    indent = indentation(file, statement)
    indent = indent[: len(indent) + shift]
    if isinstance(statement, _SIMPLE) and context.is_alone(statement):
        if "\n" not in file.text[first:last]:
            code = _edited(file.text, first, last, edits)
            made = formatted(code, max(context.line_length - len(indent), 40)).rstrip("\n")
            yield Edit(first, last, made.replace("\n", newline(file) + indent))
            return
    for each in calls:
        yield Edit(*file.span(each.call), _exploded(context, each, shift))


_SIMPLE = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr | ast.Return


def _edited(text: str, start: int, end: int, edits: Sequence[Edit]) -> str:
    """A part of a text after edits."""
    for edit in reversed(edits):
        text = text[: edit.start] + edit.text + text[edit.end :]
        end += len(edit.text) - (edit.end - edit.start)
    return text[start:end]


def _exploded(context: Context, replacement: Replacement, shift: int) -> str:
    """A call over several lines: its arguments on one, or on one each."""
    file = context.file
    start = file.line_starts[replacement.call.lineno - 1]
    line = file.text[start : file.span(replacement.call)[0]]
    indent = line[: len(line) - len(line.lstrip())]
    indent = indent[: len(indent) + shift]
    inner, end = f"{indent}    ", newline(file)
    arguments = f"{inner}{', '.join(replacement.arguments)}{end}"
    if len(arguments) > context.line_length:
        arguments = "".join(f"{inner}{argument},{end}" for argument in replacement.arguments)
    return f"{replacement.function}({end}{arguments}{indent})"
