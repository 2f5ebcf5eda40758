"""Import statements edited as text: only the statement goes through LibCST, the rest of the file is not parsed again."""

from __future__ import annotations

import ast
import io
from collections.abc import Sequence
from itertools import pairwise

import libcst as cst

from fsdp_migrate.codemods.edit.comments import comments_in, missing
from fsdp_migrate.codemods.edit.import_insertion import insert_imports
from fsdp_migrate.codemods.edit.import_lines import edit_import_line
from fsdp_migrate.codemods.edit.import_statement import ImportEdit, edit_import
from fsdp_migrate.codemods.edit.text import (
    comments,
    comments_between,
    indentation,
    is_alone,
    newline,
)
from fsdp_migrate.codemods.rule import Edit
from fsdp_migrate.facts.file import NEWLINE, File


def edit_import_text(
    file: File, node: ast.Import | ast.ImportFrom, change: ImportEdit, line_length: int
) -> list[Edit]:
    """The edits of one import statement, with its comments and its layout."""
    if not is_alone(file, node):
        return _among_others(file, node, change)
    indent = indentation(file, node)
    start, end = file.span(node)[0] - len(indent), file.lines(node)[1]
    text = NEWLINE.sub("\n", file.text[start:end])
    header = f"if 1:\n{indent}pass\n" if indent else "pass\n"
    module = cst.parse_module(header + text)
    block = cst.ensure_type(module.body[0], cst.If).body if indent else module
    assert isinstance(block, cst.IndentedBlock | cst.Module)
    line = cst.ensure_type(block.body[-1], cst.SimpleStatementLine)
    above = file.line_starts[node.lineno - 2] if node.lineno > 1 else 0
    commented = file.text[above:start].lstrip(" \t").startswith("#")
    lines = edit_import_line(line, change, line_length - len(indent), may_lead=not commented)
    if lines:
        block = block.with_changes(body=[block.body[0], *lines])
        whole = module.body[0].with_changes(body=block) if indent else block
        made = module.code_for_node(whole).removeprefix(header)
    else:
        kept = [f"{indent}{comment}" for comment in comments_in(line)]
        alone = len(file.block(node)) == 1 and not isinstance(file.parents[node], ast.Module)
        kept += [f"{indent}pass"] if alone else []
        made = "".join(f"{each}\n" for each in kept)
    return [Edit(start, end, made.replace("\n", newline(file, start)))]


def _among_others(file: File, node: ast.Import | ast.ImportFrom, change: ImportEdit) -> list[Edit]:
    """A statement that shares its line: statements joined by `;` stay joined, comments of dropped names go above."""
    start, end = file.span(node)
    statement = cst.parse_statement(NEWLINE.sub("\n", file.text[start:end]))
    small = cst.ensure_type(statement, cst.SimpleStatementLine).body[0]
    assert isinstance(small, cst.Import | cst.ImportFrom)
    result = edit_import(small, change)
    parts = [*([result.kept] if result.kept else []), *(new.statement for new in result.new)]
    code = "; ".join(cst.Module([]).code_for_node(part) for part in parts) or "pass"
    end_of_line = newline(file, start)
    edits = [Edit(start, end, code.replace("\n", end_of_line))]
    lost = missing(comments_between(file, start, end), comments(f"{code}\n"))
    if lost:
        above, _ = file.lines(node)
        edits.insert(0, Edit(above, above, "".join(each + end_of_line for each in lost)))
    return edits


def insert_import_text(
    file: File, names: Sequence[tuple[str, str]], line_length: int
) -> list[Edit]:
    """New imports for a file that has no statement to edit: where they sort among its leading imports.

    A module without a name is imported as itself: `import module`.
    """
    edits = []
    modules = [module for module, name in names if not name]
    if modules:
        at, prefix, suffix = _place_of_modules(file)
        end_of_line = newline(file)
        lines = "".join(f"import {module}{end_of_line}" for module in dict.fromkeys(modules))
        edits.append(Edit(at, at, prefix + lines + suffix))
    named = [(module, name) for module, name in names if name]
    if named:
        end = _end_of_head(file)
        head = NEWLINE.sub("\n", file.text[:end])
        module = cst.parse_module(head)
        if module.body:
            made = insert_imports(module, named, line_length).code
        else:  # comments on the file, or nothing at all
            lines = insert_imports(cst.parse_module(""), named, line_length).code
            apart = file.text[end:] and not file.text[end:].startswith(("\n", "\r"))
            made = head + "\n" * bool(head) + lines + "\n" * (2 if apart else 1)
        edits += _difference(file, end, made)
    return edits


def _place_of_modules(file: File) -> tuple[int, str, str]:
    """Behind the last `import name` of the leading imports, else behind all of them."""
    end = _end_of_head(file)
    plain = [
        statement
        for statement in file.tree.body
        if isinstance(statement, ast.Import)
        and is_alone(file, statement)
        and file.lines(statement)[1] <= end
    ]
    if plain:
        at = file.lines(plain[-1])[1]
        return at, "" if file.text[:at].endswith(("\n", "\r")) else newline(file), ""
    gap = newline(file) if end < len(file.text) else ""
    return (
        end,
        "" if not end or file.text[:end].endswith(("\n", "\r")) else newline(file),
        gap if not end else "",
    )


def _difference(file: File, end: int, after: str) -> list[Edit]:
    """Edits of whole lines that make another text of the head of a file, which may mix its line ends."""
    import difflib

    starts = [*(start for start in file.line_starts if start < end), end]
    old = [NEWLINE.sub("\n", file.text[a:b]) for a, b in pairwise(starts)]
    new = [*io.StringIO(after, newline="\n")]  # `str.splitlines` would end lines at form feeds, too
    end_of_line = newline(file)
    return [
        Edit(starts[a], starts[b], "".join(new[c:d]).replace("\n", end_of_line))
        for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        if tag != "equal"
    ]


def _end_of_head(file: File) -> int:
    """Where the docstring and the leading imports of a file end."""
    last: ast.stmt | None = None
    for index, statement in enumerate(file.tree.body):
        docstring = (
            index == 0
            and isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Constant)
        )
        guarded = isinstance(statement, ast.If | ast.Try)
        if not (docstring or guarded or isinstance(statement, ast.Import | ast.ImportFrom)):
            break
        if not guarded:
            last = statement
    if last is None:
        return _end_of_header(file)
    return file.lines(last)[1]


def _end_of_header(file: File) -> int:
    """Where the comments on a file end that begins with no statement: its first lines, set off by an empty one."""
    first = file.tree.body[0].lineno if file.tree.body else len(file.line_starts)
    lines = NEWLINE.split(file.text[: file.line_starts[first - 1]])[:-1]
    blank = [number for number, line in enumerate(lines) if not line.strip()]
    special = [n for n, line in enumerate(lines[:2]) if line.startswith("#!") or "coding" in line]
    count = blank[0] if blank else len(special)
    return file.line_starts[count]
