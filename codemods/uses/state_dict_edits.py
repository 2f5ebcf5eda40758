"""Edits of state-dict calls, and of the `with` statements around them."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.text import (
    comments_between,
    formatted,
    in_steps,
    indentation,
    newline,
    spliced,
)
from fsdp_migrate.codemods.rule import Edit, Import
from fsdp_migrate.codemods.uses.state_dict_settings import MODULE
from fsdp_migrate.facts.file import NEWLINE


@dataclass(frozen=True, eq=False)
class Replacement:
    """A call of one of torch's functions that replaces one of FSDP1's.

    Attributes:
        call: the call that it replaces.
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

    def imports(self, at: ast.AST) -> list[Import]:
        """What the call needs, imported where `at` was."""
        options = ["StateDictOptions"] if "StateDictOptions(" in self.code else []
        return [Import(MODULE, name, at) for name in [*options, self.function]]


def are_editable(context: Context, calls: Sequence[Replacement]) -> bool:
    """Whether the names that calls need mean nothing else where they are used, and no comment would be lost."""
    for each in calls:
        if comments_between(context.file, *context.file.span(each.call)):
            return False
        scope = context.file.scope_of(each.call)
        for need in each.imports(each.call):
            found = scope.lookup(need.name)
            if found is not None and (
                found.scope is not context.file.scope
                or not context.means(need.name, each.call, f"{MODULE}.{need.name}")
            ):
                return False
    return True


def unwrapped(
    context: Context, statement: ast.With, replacements: Sequence[Replacement]
) -> list[Edit]:
    """The edits that put the body of a statement in its place, with torch's calls in it."""
    file = context.file
    shift = len(indentation(file, statement)) - len(indentation(file, statement.body[0]))
    calls = call_edits(context, replacements, shift)
    dedent = context.dedent(statement)
    # The lines of a call that is written anew have their indentation already.
    return [*calls, *(e for e in dedent if not any(c.start < e.start < c.end for c in calls))]


def call_edits(context: Context, replacements: Sequence[Replacement], shift: int = 0) -> list[Edit]:
    """The edits that put calls in the place of others, laid out as black would.

    Args:
        shift: by how much the indentation of their statements changes.
    """
    together: dict[ast.stmt, list[Replacement]] = {}
    for replacement in replacements:
        statement = context.file.statement(replacement.call)
        together.setdefault(statement, []).append(replacement)
    return [
        edit
        for statement, calls in together.items()
        for edit in _in_statement(context, statement, calls, shift)
    ]


def _in_statement(
    context: Context, statement: ast.stmt, calls: Sequence[Replacement], shift: int
) -> list[Edit]:
    file = context.file
    edits = [Edit(*file.span(each.call), each.code) for each in calls]
    first, last = file.span(statement)
    indent = indentation(file, statement)
    indent = indent[: len(indent) + shift]
    limit = max(context.line_length - len(indent), 40)
    code = spliced(file.text, edits, first, last)
    on_one_line = "\n" not in file.text[first:last] and context.is_alone(statement)
    # Other rules edit FSDP1's names: a statement that has any is not written anew as a whole.
    names_fsdp1 = any(node in context.references for node in ast.walk(statement))
    if not on_one_line or names_fsdp1 or not isinstance(statement, _SIMPLE):
        return [Edit(*file.span(each.call), _laid_out(context, each, shift)) for each in calls]
    if len(code) <= limit:
        return edits
    made = in_steps(file, formatted(code, limit).rstrip("\n"))
    return [Edit(first, last, made.replace("\n", newline(file) + indent))]


_SIMPLE = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr | ast.Return


def _laid_out(context: Context, replacement: Replacement, shift: int) -> str:
    """A call as source, over several lines if its line would be too long."""
    file, call = context.file, replacement.call
    start, stop = file.span(call)
    line = file.text[file.line_starts[call.lineno - 1] : start]
    behind = NEWLINE.split(file.text[stop : file.lines(call)[1]])[0]
    if len(line) + shift + len(replacement.code) + len(behind) <= context.line_length:
        return replacement.code
    margin = line[: len(line) - len(line.lstrip())]
    # The last line of a header, with a body behind it, may begin left of the statement.
    end = newline(file) + (margin[:shift] if shift < 0 else margin + " " * shift)
    inner = end + in_steps(file, "    ")
    return f"{replacement.function}({inner}{', '.join(replacement.arguments)}{end})"
