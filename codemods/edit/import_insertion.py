"""New imports for a file that has no statement to be edited."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import libcst as cst

from fsdp_migrate.codemods.edit.import_lines import LINE_LENGTH, edit_import_line
from fsdp_migrate.codemods.edit.import_statement import ImportEdit, module_of, name_and_local

_BLANK = cst.EmptyLine(indent=False)

_FUTURE, _STANDARD, _OTHER, _LOCAL = range(4)  # isort's sections, in order

# Where a new import goes: alone, behind another import, or in front of one.
_NONE, _LAST, _NEXT = "alone", "behind", "in front"


def insert_imports(
    module: cst.Module, names: Sequence[tuple[str, str]], line_length: int = LINE_LENGTH
) -> cst.Module:
    """Imports each (module, name) at the top level, outside any guard.

    A name joins an unguarded top-level `from module import ...` on a line of its own; without one it gets a line where
    it sorts among the leading block of imports, the standard library's in front, in a file without
    imports one behind the docstring. What such a statement imports already is left alone.
    """
    body: list[cst.BaseStatement] = [*module.body]
    missing: list[tuple[str, str]] = []
    for pair in dict.fromkeys(names):
        places = _statements_from(body, pair[0])
        if any(_imports(statement, pair[1]) for _, statement in places):
            continue
        alone = [index for index, _ in places if len(_line(body[index]).body) == 1]
        if not alone:
            missing.append(pair)
            continue
        made = edit_import_line(_line(body[alone[0]]), ImportEdit(add=[pair]), line_length)
        body[alone[0] : alone[0] + 1] = made
    changed = module.with_changes(body=body)
    for source in dict.fromkeys(source for source, _ in missing):
        changed = _insert(changed, [pair for pair in missing if pair[0] == source], line_length)
    return changed


def _line(statement: cst.BaseStatement) -> cst.SimpleStatementLine:
    return cst.ensure_type(statement, cst.SimpleStatementLine)


def _statements_from(
    body: Sequence[cst.BaseStatement], module: str
) -> list[tuple[int, cst.ImportFrom]]:
    """The top-level statements `from module import ...`, with the indices of their lines."""
    return [
        (index, statement)
        for index, line in enumerate(body)
        if isinstance(line, cst.SimpleStatementLine)
        for statement in line.body
        if isinstance(statement, cst.ImportFrom)
        and not isinstance(statement.names, cst.ImportStar)
        and module_of(statement) == module
    ]


def _imports(statement: cst.ImportFrom, name: str) -> bool:
    assert not isinstance(statement.names, cst.ImportStar)
    wanted = name_and_local(name)
    return any(
        (alias.evaluated_name, alias.evaluated_alias or alias.evaluated_name) == wanted
        for alias in statement.names
    )


def _insert(module: cst.Module, names: Sequence[tuple[str, str]], line_length: int) -> cst.Module:
    empty = cst.SimpleStatementLine(
        [cst.ImportFrom(cst.Name("_"), [cst.ImportAlias(cst.Name("_"))])]
    )
    edit = ImportEdit(drop=frozenset("_"), add=names)
    lines = edit_import_line(empty, edit, line_length)
    body: list[cst.BaseStatement] = [*module.body]
    index, beside_import = _place(body, names[0][0])
    if body and not index:
        module, body[0] = _own_header(module, body[0])
    following = body[index] if index < len(body) else None
    if beside_import is _NONE:
        if index:
            lines[0] = lines[0].with_changes(leading_lines=[_BLANK])
        if following is not None and not _starts_blank(following):
            blank = 1 if isinstance(following, cst.SimpleStatementLine) else 2
            body[index] = following.with_changes(
                leading_lines=[*[_BLANK] * blank, *_leading_lines(following)]
            )
    elif beside_import is _NEXT and following is not None:
        # The new line opens the section or the block: the blank lines above are now above it.
        above = _leading_lines(following)
        blanks = next((i for i, line in enumerate(above) if line.comment), len(above))
        lines[0] = lines[0].with_changes(leading_lines=above[:blanks])
        apart = [] if _is_same_section(following, names[0][0]) else [_BLANK]
        body[index] = following.with_changes(leading_lines=[*apart, *above[blanks:]])
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


def _place(body: Sequence[cst.BaseStatement], source: str) -> tuple[int, str]:
    """The index for a new import of `source`, and whether it comes behind an import, before one, or alone."""
    docstring = 1 if body and _is_docstring(body[0]) else 0
    imports: list[int] = []
    for index, statement in enumerate(body[docstring:], docstring):
        if _is_import(statement):
            imports.append(index)
        elif not _holds_imports(statement):
            break
    if not imports:
        return docstring, _NONE
    section = _section(source)
    before = [index for index in imports if _key(body[index]) <= (section, True, source)]
    if section == _STANDARD or not before:
        # An unsorted block: behind the last of its own section, lest the new line stand among others.
        own = [index for index in before if _key(body[index])[0] == section]
        earlier = [index for index in before if _key(body[index])[0] < section]
        if own:
            return own[-1] + 1, _LAST
        after = earlier[-1] + 1 if earlier else imports[0]  # behind `from __future__`
        return (after, _NEXT) if after in imports else (after, _LAST)
    return before[-1] + 1, _LAST


def _section(source: str) -> int:
    top = source.split(".")[0]
    if top == "__future__":
        return _FUTURE
    return _STANDARD if top in sys.stdlib_module_names else _OTHER


def _key(statement: cst.BaseStatement) -> tuple[int, bool, str]:
    """Where isort puts an import: its section, `import` in front of `from`, its module."""
    assert isinstance(statement, cst.SimpleStatementLine)
    small = statement.body[0]
    if isinstance(small, cst.ImportFrom):
        source = module_of(small)
        return (_LOCAL if source.startswith(".") else _section(source)), True, source
    assert isinstance(small, cst.Import)
    source = small.names[0].evaluated_name
    return _section(source), False, source


def _is_same_section(statement: cst.BaseStatement, source: str) -> bool:
    return _is_import(statement) and _key(statement)[0] == _section(source)


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
