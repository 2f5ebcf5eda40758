"""New imports for a file that has no statement to be edited."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from fsdp_migrate.codemods.edit.import_lines import edit_import_line
from fsdp_migrate.codemods.edit.import_statement import ImportEdit, module_of

TopLevel = cst.SimpleStatementLine | cst.BaseCompoundStatement

_BLANK = cst.EmptyLine(indent=False)


def insert_imports(module: cst.Module, names: Sequence[tuple[str, str]]) -> cst.Module:
    """Imports each (module, name) at the top level, outside any guard.

    A name joins an unguarded top-level `from module import ...`; without one it gets a line behind
    the leading block of imports, in a file without imports one behind the docstring. What such a
    statement imports already is left alone.
    """
    body: list[cst.BaseStatement] = [*module.body]
    missing: list[tuple[str, str]] = []
    for pair in dict.fromkeys(names):
        places = _statements_from(body, pair[0])
        if any(_imports(statement, pair[1]) for _, _, statement in places):
            continue
        if not places:
            missing.append(pair)
            continue
        index, position, _ = places[0]
        line = body[index]
        assert isinstance(line, cst.SimpleStatementLine)
        body[index : index + 1] = edit_import_line(line, {position: ImportEdit(add=[pair])})
    changed = module.with_changes(body=body)
    return _insert(changed, missing) if missing else changed


def _statements_from(
    body: Sequence[cst.BaseStatement], module: str
) -> list[tuple[int, int, cst.ImportFrom]]:
    """The top-level statements `from module import ...`, with the indices of line and statement."""
    return [
        (index, position, statement)
        for index, line in enumerate(body)
        if isinstance(line, cst.SimpleStatementLine)
        for position, statement in enumerate(line.body)
        if isinstance(statement, cst.ImportFrom)
        and not isinstance(statement.names, cst.ImportStar)
        and module_of(statement) == module
    ]


def _imports(statement: cst.ImportFrom, name: str) -> bool:
    assert not isinstance(statement.names, cst.ImportStar)
    return any(alias.evaluated_name == name and alias.asname is None for alias in statement.names)


def _insert(module: cst.Module, names: Sequence[tuple[str, str]]) -> cst.Module:
    empty = cst.SimpleStatementLine(
        [cst.ImportFrom(cst.Name("_"), [cst.ImportAlias(cst.Name("_"))])]
    )
    lines = edit_import_line(empty, {0: ImportEdit(drop=frozenset("_"), add=names)})
    body: list[cst.BaseStatement] = [*module.body]
    index, behind_import = _place(body)
    if body and not index:
        module, body[0] = _own_header(module, body[0])
    if not behind_import:
        if index:
            lines[0] = lines[0].with_changes(leading_lines=[_BLANK])
        if index < len(body) and not _starts_blank(body[index]):
            following = body[index]
            blank = 1 if isinstance(following, cst.SimpleStatementLine) else 2
            body[index] = following.with_changes(
                leading_lines=[*[_BLANK] * blank, *_leading_lines(following)]
            )
    return module.with_changes(body=[*body[:index], *lines, *body[index:]])


def _own_header(
    module: cst.Module, first: cst.BaseStatement
) -> tuple[cst.Module, cst.BaseStatement]:
    """Parts the comment on the file from the comment on its first statement, if both are there."""
    header = [*module.header]
    blanks = [index for index, line in enumerate(header) if line.comment is None]
    if not blanks or not any(line.comment for line in header[: blanks[-1]]):
        return module, first
    leading = [*header[blanks[-1] :], *_leading_lines(first)]
    return module.with_changes(header=header[: blanks[-1]]), first.with_changes(
        leading_lines=leading
    )


def _place(body: Sequence[cst.BaseStatement]) -> tuple[int, bool]:
    """The index behind the leading block of imports (True), else behind the docstring (False)."""
    docstring = 1 if body and _is_docstring(body[0]) else 0
    last = None
    for index, statement in enumerate(body[docstring:], docstring):
        if _is_import(statement):
            last = index
        elif not _holds_imports(statement):
            break
    return (docstring, False) if last is None else (last + 1, True)


def _is_docstring(statement: cst.BaseStatement) -> bool:
    if not isinstance(statement, cst.SimpleStatementLine):
        return False
    first = statement.body[0]
    return isinstance(first, cst.Expr) and isinstance(
        first.value, cst.SimpleString | cst.ConcatenatedString
    )


def _is_import(statement: cst.BaseStatement) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and all(
        isinstance(small, cst.Import | cst.ImportFrom) for small in statement.body
    )


def _holds_imports(statement: cst.BaseStatement) -> bool:
    """Whether this is a guarded import, `try:` or `if:`; the block of imports goes on behind it."""
    if not isinstance(statement, cst.If | cst.Try | cst.TryStar):
        return False
    return any(isinstance(node, cst.Import | cst.ImportFrom) for node in _small(statement.body))


def _small(block: cst.BaseSuite) -> list[cst.CSTNode]:
    if isinstance(block, cst.SimpleStatementSuite):
        return [*block.body]
    lines = [line for line in block.body if isinstance(line, cst.SimpleStatementLine)]
    return [small for line in lines for small in line.body]


def _starts_blank(statement: cst.BaseStatement) -> bool:
    leading = _leading_lines(statement)
    return bool(leading) and leading[0].comment is None


def _leading_lines(statement: cst.BaseStatement) -> Sequence[cst.EmptyLine]:
    lines: Sequence[cst.EmptyLine] = getattr(statement, "leading_lines", ())
    return lines
