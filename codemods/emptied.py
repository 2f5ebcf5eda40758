"""An `if` whose branches the edits of a file leave empty: it goes, with its tests."""

import ast
from collections.abc import Iterator
from functools import partial

from fsdp_migrate.codemods.after import After, Candidate, Repeat
from fsdp_migrate.codemods.edit.text import remove_statement
from fsdp_migrate.codemods.questions import only_asks
from fsdp_migrate.facts.file import File, parsed
from fsdp_migrate.facts.nodes import all_are
from fsdp_migrate.facts.program import Program

_EMPTY = "Removed: nothing is left in it."


def emptied(file: File, program: Program) -> Iterator[Candidate]:
    """Each `if`, inner ones first."""
    for branches in sorted(file.of(ast.If), key=lambda each: -each.lineno):
        yield partial(_without, program=program, branches=branches)


def _without(after: After, *, program: Program, branches: ast.If) -> Repeat | None:
    """Nothing in the place of an `if`, where its tests only ask and nothing else reads what it imports."""
    file = after.file
    if not after.changes(branches) or not after.is_separate(branches):
        return None
    if file.source(branches).startswith("elif") or not _is_empty(after.code([branches])):
        return None
    if not all(only_asks(program, file, test) for test in _tests(branches)):
        return None
    inside = {*ast.walk(branches)}
    for node in inside:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.asname or alias.name.partition(".")[0] for alias in node.names]
            if any(load not in inside for name in names for load in file.loads.get(name, ())):
                return None
    return Repeat(branches, _EMPTY, remove_statement(file, branches), (branches,))


def _is_empty(code: str | None) -> bool:
    """Whether code is an `if` with nothing but `pass` and imports in its branches."""
    try:
        tree = parsed(code or "")
    except (SyntaxError, ValueError):
        return False
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    return bool(nodes) and all_are(nodes, ast.If | ast.Pass | ast.Import | ast.ImportFrom)


def _tests(branches: ast.If) -> list[ast.expr]:
    return [node.test for node in ast.walk(branches) if isinstance(node, ast.If)]
