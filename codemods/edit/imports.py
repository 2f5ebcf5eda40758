"""Import statements after their changes: each is edited where it stands, and what comes from elsewhere stands next to it.

Nothing else moves. Names and statements that are sorted as isort and ruff sort them stay so.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from operator import itemgetter

from fsdp_migrate.codemods.edit.import_statement import ImportChange, after, statements
from fsdp_migrate.codemods.edit.items import Item
from fsdp_migrate.codemods.edit.text import (
    comments,
    indentation,
    is_alone,
    line_start,
    newline,
    remove_statement,
)
from fsdp_migrate.codemods.rule import Edit
from fsdp_migrate.facts.file import NEWLINE, File

_DIRECTIVE = re.compile(
    r"#\s*(noqa|nosec|type:|pyright:|mypy:|pylint:|pyre-|ruff:|isort:|fmt:)", re.I
)


_EMPTY = re.compile(r"(?:[ \t]*(?:\r\n|\r|\n))+")
_Import = ast.Import | ast.ImportFrom


def is_directive(comment: str) -> bool:
    """Whether a comment speaks to a tool, of the code on its line."""
    return _DIRECTIVE.match(comment) is not None


def module_of(node: ast.Import | ast.ImportFrom) -> str:
    """The module that a statement imports, or imports from."""
    if isinstance(node, ast.ImportFrom):
        return node.module or ""
    return node.names[0].name


def _key(code: str) -> tuple[bool, str]:
    """Where isort and ruff sort a statement within its section: `import` first, by module."""
    kind, module = code.split()[:2]
    return kind == "from", module.rstrip(",").lower()


def edit_imports(file: File, changes: Sequence[ImportChange], limit: int) -> list[Edit]:
    """The edits of all import statements of a file, whose formatter allows lines of `limit` characters.

    What one with lines of its own becomes stands where it sorts in its block, or in its place.
    """
    asked = {change.node: change for change in changes}
    edits = list[Edit]()
    done = set[ast.stmt]()
    gone: dict[ast.stmt, Edit] = {}
    for node, change in asked.items():
        if not is_alone(file, node):
            edits += _among_others(file, change, limit)
        elif node not in done:
            block, is_sorted = _block(file, node)
            done.update(block)
            lines = [line for each in block for line in _lines(file, each, asked.get(each), limit)]
            if is_sorted:
                lines.sort(key=itemgetter(0))
            first = file.lines(block[0])[0]
            stop = file.lines(block[-1])[1]
            text = "".join(text for _, text in lines)
            text += _pass_in_empty(file, block, text)
            if not file.text[:stop].endswith(("\n", "\r")):
                text = text.rstrip("\r\n")
            if lines:
                lost = [each for at in block for each in _of_dropped(file, asked.get(at))]
                edits.append(Edit(first, stop, text, tuple(lost)))
            else:
                gone |= {each: remove_statement(file, each) for each in block}
    for statement, edit in _at_head(file, gone).items():
        suite = file.block(statement)
        is_inner = len(suite) > 1 and not isinstance(file.parents[statement], ast.Module)
        if is_inner and statement is suite[-1] and gone.keys() >= {*suite}:
            passed = f"{indentation(file, statement)}pass{newline(file)}"
            edit = edit._replace(text=edit.text + passed)
        edits.append(edit)
    return edits


def _at_head(file: File, gone: dict[ast.stmt, Edit]) -> dict[ast.stmt, Edit]:
    """The edits that remove statements, with the empty lines around those that a file begins with."""
    found = dict(gone)
    head = 0
    for statement, edit in sorted(gone.items(), key=lambda each: each[1].start):
        if edit.text.strip() or file.text[head : edit.start].strip():
            break
        below = _EMPTY.match(file.text, max(edit.end, head))
        end = below.end() if below else edit.end
        found[statement] = edit._replace(start=head, end=end, text="")
        head = end
    return found


def _pass_in_empty(file: File, block: Sequence[ast.stmt], text: str) -> str:
    """`pass`, where comments alone would be left of a suite."""
    is_whole = len(file.block(block[0])) == len(block)
    is_empty = all(line.strip().startswith("#") for line in NEWLINE.split(text) if line.strip())
    if not text or not is_whole or not is_empty or isinstance(file.parents[block[0]], ast.Module):
        return ""
    return f"{indentation(file, block[0])}pass{newline(file)}"


def insert_first(file: File, names: Sequence[tuple[str, str]], limit: int) -> list[Edit]:
    """New imports in a file that has none with lines of its own: below its docstring or its first comments."""
    end = newline(file)
    codes = statements({(module, name): Item(name) for module, name in names}, "", limit, end)
    at = _below_the_head(file)
    lines = "".join(code + end for code in sorted(codes, key=_key))
    if at:
        lines = end + lines
    if not file.text.startswith(("\n", "\r"), at):
        lines += end
    return [Edit(at, at, lines)]


def _below_the_head(file: File) -> int:
    """The place below a file's docstring and imports from `__future__`, or below its first comments."""
    head: list[ast.stmt] = []
    if ast.get_docstring(file.tree, clean=False) is not None:
        head = [each for each in file.tree.body[:1] if is_alone(file, each)]
    for each in file.tree.body:
        if isinstance(each, ast.ImportFrom) and each.module == "__future__":
            head.append(each)
    if head:
        return file.lines(head[-1])[1]
    for line in file.line_starts:
        if not file.text.startswith(("#", "\ufeff#"), line):
            return line
    return 0


def _block(file: File, node: _Import) -> tuple[list[_Import], bool]:
    """The imports on the lines around one, if they are sorted, else that one; and whether what it becomes is sorted in."""
    block: list[_Import] = []
    for each in file.block(node):
        if isinstance(each, _Import) and is_alone(file, each):
            if block and file.lines(block[-1])[1] != file.lines(each)[0]:
                if node in block:
                    break
                block = []
            block.append(each)
    keys = [_key(file.source(each)) for each in block]
    has_end = file.text.endswith(("\n", "\r"))
    is_sorted = len(block) > 1 and keys == sorted(keys)
    if has_end and is_sorted and not any(map(_is_of_own_section, block)):
        return block, True
    above = file.text[: file.lines(node)[0]].rstrip("\r\n").rpartition("\n")[2]
    return [node], not (_is_standard(node) or above.lstrip().startswith("#"))


def _is_standard(node: _Import) -> bool:
    return module_of(node).split(".")[0] in sys.stdlib_module_names


def _is_of_own_section(node: _Import) -> bool:
    """Whether an import is relative, or of the standard library."""
    if isinstance(node, ast.ImportFrom) and node.level:
        return True
    return _is_standard(node)


def _lines(
    file: File, node: _Import, change: ImportChange | None, limit: int
) -> Iterator[tuple[tuple[bool, str], str]]:
    """The lines of what a statement becomes, its comments among them, each with what it is sorted by.

    What is left of the statement keeps its line ends, where a file mixes them.
    """
    base = indentation(file, node)
    end = newline(file)
    begin, last = file.span(node)
    first, stop = file.lines(node)
    source = file.text[begin:last]
    suffix = file.text[last:stop].rstrip("\r\n")
    lead = file.text[first:begin]
    own_end = file.text[last + len(suffix) : stop] or end
    codes = [source]
    if change:
        codes = after(file, change, limit)
    before = source
    if not codes:
        before = source + suffix
    loose = _lost(before, end.join(codes))
    for each in _of_dropped(file, change):
        if each in loose:
            loose.remove(each)
    if codes and "#" not in suffix and (found := [*filter(_DIRECTIVE.match, loose)]):
        suffix += f"  {found[0]}"
        loose.remove(found[0])
    above = "".join(base + comment + end for comment in loose)
    if above and not codes:
        yield _key(source), above
    for code in codes:
        is_wider = NEWLINE.search(code) and not NEWLINE.search(source)
        if is_wider:
            text = code.replace("(", f"({suffix}", 1)
        else:
            text = code + suffix
        yield _key(code), above + lead + text + own_end
        if not _DIRECTIVE.match(suffix.strip()):
            suffix = ""
        above = ""
        lead = base
        own_end = end


def _of_dropped(file: File, change: ImportChange | None) -> list[str]:
    """The comments behind names that go, each on a line without another name: they are about those alone."""
    if change is None:
        return []
    node = change.node
    stays = {node.lineno, node.end_lineno}
    goes: list[int] = []
    for alias in node.names:
        end = alias.end_lineno or alias.lineno
        if (alias.asname or alias.name) in change.drop:
            goes.append(end)
        else:
            stays |= {alias.lineno, end}
    found: list[str] = []
    for number in dict.fromkeys(goes):
        if number not in stays:
            start = file.line_starts[number - 1]
            line = NEWLINE.split(file.text[start:], maxsplit=1)[0]
            found += [each for each in comments(line) if not is_directive(each)]
    return found


def _lost(before: str, after: str) -> list[str]:
    """The comments of a statement that its new code does not have."""
    return list((Counter(comments(before)) - Counter(comments(after))).elements())


def _among_others(file: File, change: ImportChange, limit: int) -> Iterator[Edit]:
    """A statement that shares its line: statements joined by `;` stay joined, comments go above."""
    code = "; ".join(after(file, change, limit)) or "pass"
    at = line_start(file, change.node)
    for comment in _lost(file.source(change.node), code):
        yield Edit(at, at, comment + newline(file))
    yield Edit(*file.span(change.node), code)
