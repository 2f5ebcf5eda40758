"""Import statements after their changes: each is edited where it stands, and what comes from elsewhere stands next to it.

Nothing else moves. Names and statements that are sorted as isort and ruff sort them stay so.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import itemgetter

from fsdp_migrate.codemods.edit.text import (
    Item,
    Items,
    Refused,
    comments,
    indentation,
    is_alone,
    line_start,
    newline,
    read,
    remove_statement,
)
from fsdp_migrate.codemods.rule import Edit
from fsdp_migrate.facts.file import NEWLINE, File

_DIRECTIVE = re.compile(
    r"#\s*(noqa|nosec|type:|pyright:|mypy:|pylint:|pyre-|ruff:|isort:|fmt:)", re.I
)


@dataclass(eq=False)
class ImportChange:
    """An import statement, and what is to be changed in it.

    Attributes:
        drop: local names that go.
        move: local name to (module, name): imported from elsewhere, bound as before. `import a.b` has no name.
        add: (module, name) that are needed as well; without a name, `import module`.
    """

    node: ast.Import | ast.ImportFrom
    drop: set[str] = field(default_factory=set)
    move: dict[str, tuple[str, str]] = field(default_factory=dict)
    add: list[tuple[str, str]] = field(default_factory=list)

    @property
    def locals(self) -> set[str]:
        """The names that the statement binds, those of `import a.b` with their dots."""
        return {alias.asname or alias.name for alias in self.node.names}


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
                edits.append(Edit(first, stop, text))
            else:
                gone |= {each: remove_statement(file, each) for each in block}
    for statement, edit in gone.items():
        suite = file.block(statement)
        is_inner = len(suite) > 1 and not isinstance(file.parents[statement], ast.Module)
        if is_inner and statement is suite[-1] and gone.keys() >= {*suite}:
            passed = f"{indentation(file, statement)}pass{newline(file)}"
            edit = edit._replace(text=edit.text + passed)
        edits.append(edit)
    return edits


def _pass_in_empty(file: File, block: Sequence[ast.stmt], text: str) -> str:
    """`pass`, where comments alone would be left of a suite."""
    is_whole = len(file.block(block[0])) == len(block)
    is_empty = all(line.strip().startswith("#") for line in NEWLINE.split(text) if line.strip())
    if not text or not is_whole or not is_empty or isinstance(file.parents[block[0]], ast.Module):
        return ""
    return f"{indentation(file, block[0])}pass{newline(file)}"


def insert_first(file: File, names: Sequence[tuple[str, str]], limit: int) -> list[Edit]:
    """New imports in a file that has none with lines of its own: below its docstring or its first comments."""
    text = file.text
    end = newline(file)
    body = file.tree.body
    codes = _statements({(module, name): Item(name) for module, name in names}, "", limit, end)
    if ast.get_docstring(file.tree, clean=False) is not None:
        above = body[:1]
    else:
        above = []
    above = [each for each in above if is_alone(file, each)]
    above += [each for each in body if getattr(each, "module", "") == "__future__"]
    comment = (line for line in file.line_starts if not text.startswith(("#", "\ufeff#"), line))
    if above:
        at = file.lines(above[-1])[1]
    else:
        at = next(comment, 0)
    last = "" if text.startswith(("\n", "\r"), at) else end
    lines = "".join(code + end for code in sorted(codes, key=_key))
    return [Edit(at, at, (end if at else "") + lines + last)]


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
    own = [getattr(each, "level", 0) or _is_standard(each) for each in block]
    keys = [_key(file.source(each)) for each in block]
    has_end = file.text.endswith(("\n", "\r"))
    if has_end and len(block) > 1 and not any(own) and keys == sorted(keys):
        return block, True
    above = file.text[: file.lines(node)[0]].rstrip("\r\n").rpartition("\n")[2]
    return [node], not (_is_standard(node) or above.lstrip().startswith("#"))


def _is_standard(node: _Import) -> bool:
    return module_of(node).split(".")[0] in sys.stdlib_module_names


def _lines(
    file: File, node: _Import, change: ImportChange | None, limit: int
) -> Iterator[tuple[tuple[bool, str], str]]:
    """The lines of what a statement becomes, its comments among them, each with what it is sorted by.

    What is left of the statement keeps its line ends, where a file mixes them.
    """
    base = indentation(file, node)
    end = newline(file)
    (begin, last), (first, stop) = file.span(node), file.lines(node)
    source = file.text[begin:last]
    suffix = file.text[last:stop].rstrip("\r\n")
    lead = file.text[first:begin]
    own_end = file.text[last + len(suffix) : stop] or end
    if change:
        codes = _after(file, change, limit)
    else:
        codes = [source]
    loose = _lost(source if codes else source + suffix, end.join(codes))
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


def _lost(before: str, after: str) -> list[str]:
    """The comments of a statement that its new code does not have."""
    return list((Counter(comments(before)) - Counter(comments(after))).elements())


def _among_others(file: File, change: ImportChange, limit: int) -> Iterator[Edit]:
    """A statement that shares its line: statements joined by `;` stay joined, comments go above."""
    code = "; ".join(_after(file, change, limit)) or "pass"
    at = line_start(file, change.node)
    for comment in _lost(file.source(change.node), code):
        yield Edit(at, at, comment + newline(file))
    yield Edit(*file.span(change.node), code)


def _after(file: File, change: ImportChange, limit: int) -> list[str]:
    """A statement after a change, if anything is left of it, and those for other modules.

    If all names that stay move to the same module, the statement moves. Over several lines it keeps its layout, unless it
    is short enough for one line now, or too long.
    """
    node, source, base = change.node, file.source(change.node), indentation(file, change.node)
    own = ""
    if isinstance(node, ast.ImportFrom):
        own = "." * node.level + (node.module or "")
    homes = {change.move.get(local, (own,))[0] for local in change.locals - change.drop}
    home = own
    if own and len(homes) == 1:
        home = homes.pop()
    was, head = (f"from {module} import" if own else "import" for module in (own, home))
    items = Items(was, [Item(_bound_as(alias.name, alias)) for alias in node.names])
    if NEWLINE.search(source):
        with suppress(Refused):
            items = read(source)
    before = ", ".join(items.texts)
    end = newline(file)
    others = _statements(_changed(change, items, own, home), base, limit, end)
    after = ", ".join(items.texts)
    if not items.items:
        return others
    if head + after == was + before:
        return [source, *others]
    code = items.code
    longest = max(limit, *map(len, NEWLINE.split(base + source)))
    if head != was:  # names that stand below the bracket go on doing so
        _, bracket, remark = items.head.partition("(")
        opened = head
        if bracket:
            opened = f"{head} ({remark}"
        old, new = (end + base + " " * len(each) for each in (items.head, opened))
        code = opened + code.removeprefix(items.head).replace(old, new)
    is_short = len(f"{base}{head} {after}") <= limit and after != before and "#" not in code
    was_long = len(f"{base}{was} {before}") > limit or len(items.items) == 1 < len(node.names)
    is_long = max(map(len, NEWLINE.split(base + code))) > longest
    if is_long or (is_short and was_long):
        code = _written(head, items.items, base, longest, end)
    return [code, *others]


def _changed(
    change: ImportChange, items: Items, own: str, home: str
) -> dict[tuple[str, str], Item]:
    """Changes the names of a statement, and returns those that other modules have."""
    is_sorted = (order := [*map(by_kind, items.texts)]) == sorted(order)
    others: dict[tuple[str, str], Item] = {}
    moved, dropped = list[Item](), list[Item]()
    for alias, item in zip(change.node.names, items.items, strict=True):
        local = alias.asname or alias.name
        module, new = change.move.get(local, (own, alias.name) if own else (alias.name, ""))
        name = _bound_as(new or module, alias)
        if local in change.drop:
            dropped.append(item)
        elif own and module != home:
            others[module, name], item.tail = replace(item, text=name), ""
            moved.append(item)
        elif name != _bound_as(alias.name, alias):
            item.text = name
    stay = {(change.move.get(local, (own,))[0], local) for local in change.locals - change.drop}
    for module, name in change.add:
        if (module, name.split(" ")[-1]) not in stay:
            others.setdefault((module, name), Item(name))
    has_room = own and "*" not in change.locals
    added = [key for key in others if has_room and key[0] == home and key[1]]
    one = dropped[0] if own == home and len(dropped) == len(added) == 1 else None
    for key in added:
        name = others.pop(key).text
        place = sum(by_kind(each) < by_kind(name) for each in items.texts)
        # One name that replaces another takes its place and its comments, if it sorts there.
        if one and (not is_sorted or place - items.items.index(one) in (0, 1)):
            one.text = name
            dropped.clear()
        else:
            items.insert(place if is_sorted else len(items.items), name)
    for item in (*dropped, *moved):
        items.drop(item)
    return others


def _bound_as(new: str, alias: ast.alias) -> str:
    """A name, or another one bound as before; `a as a` says that `a` is meant for others."""
    local = alias.asname or alias.name
    if new == local != alias.asname:
        return new
    # What a path without `as` binds is the package, which other code may use.
    if "." in local:
        return f"torch.distributed, {new}"
    return f"{new} as {local}"


def _statements(
    names: Mapping[tuple[str, str], Item], base: str, limit: int, end: str
) -> list[str]:
    """Statements that import names, by module; a star and a module itself, without a name, are alone in theirs."""
    codes: list[str] = []
    together: dict[str, list[Item]] = {}
    for (module, name), item in names.items():
        if name in ("", "*"):
            codes.append(f"from {module} import *" if name else f"import {module}")
        else:
            together.setdefault(module, []).append(item)
    for module, some in together.items():
        some.sort(key=lambda item: by_kind(item.text))
        codes.append(_written(f"from {module} import", some, base, limit, end))
    return codes


def _written(head: str, names: Sequence[Item], base: str, limit: int, end: str) -> str:
    """A new statement: on one line, or a name a line where it is too long for that, or has comments."""
    texts = (" ".join(name.text.replace("\\", " ").split()) for name in names)
    line = f"{head} {', '.join(texts)}"
    has_comments = any("#" in name.lead + name.text + name.tail for name in names)
    if not has_comments and (len(names) == 1 or len(base + line) <= limit):
        return line
    lines = (each for name in names for each in (*comments(name.lead), f"{name.text},{name.tail}"))
    return f"{head} ({end}{''.join(f'{base}    {each}{end}' for each in lines)}{base})"


def by_kind(name: str) -> tuple[object, ...]:
    """isort's and ruff's order: CONSTANTS, Classes, functions; each without regard to case, `a2` before `a10`."""
    constant = name.split()[0].isupper() and len(name) > 1
    parts = re.split(r"(\d+)", name.lower())
    natural = tuple((int(part) if part.isdigit() else -1, part) for part in parts)
    return (0 if constant else 1 if name[:1].isupper() else 2, natural, name)
