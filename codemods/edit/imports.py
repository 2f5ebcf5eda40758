"""Import statements after their changes: each is edited where it stands, and what comes from elsewhere stands next to it.

Nothing else moves. Names that are sorted as isort and ruff sort them stay so.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

from fsdp_migrate.codemods.edit.import_order import (
    Placed,
    Places,
    by_kind,
    edit_names,
    key_of,
    module_of,
    sorted_places,
)
from fsdp_migrate.codemods.edit.text import (
    comments,
    indentation,
    is_alone,
    line_start,
    newline,
    remove_statement,
    spliced,
)
from fsdp_migrate.codemods.rule import Edit
from fsdp_migrate.facts.file import NEWLINE, File

_INDENT = "    "
_HEAD = re.compile(r"from\b.*?\bimport\b", re.S)
_DIRECTIVE = re.compile(
    r"#\s*(noqa|nosec|type:|pyright:|mypy:|pylint:|pyre-|ruff:|isort:|fmt:)", re.I
)
_BLANK = re.compile(r"(?:[ \t]*(?:\r\n|\r|\n))*")
_NOQA = re.compile(r"#\s*noqa", re.I)


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


@dataclass(frozen=True)
class _Code:
    """A statement: its module, its names as they are written (none for `import module`), and its text."""

    module: str
    names: tuple[str, ...] = ()
    text: str = ""

    @property
    def on_one_line(self) -> str:
        names = ", ".join(self.names)
        return f"from {self.module} import {names}" if names else f"import {self.module}"

    def exploded(self, base: str, comment: str = "") -> str:
        """Each name on its line, with a comment behind the bracket."""
        lines = "".join(f"{base}{_INDENT}{name},\n" for name in self.names)
        return f"from {self.module} import ({f'  {comment}' if comment else ''}\n{lines}{base})"


@dataclass(frozen=True)
class _Edited:
    """What a statement becomes: itself, if anything is left of it, and statements for other modules."""

    kept: _Code | None
    others: Sequence[_Code] = ()
    is_as_it_was: bool = False


def edit_imports(file: File, changes: Sequence[ImportChange], limit: int) -> list[Edit]:
    """The edits of all import statements of a file, whose formatter allows lines of `limit` characters."""
    results = {
        each.node: _after(file, each, indentation(file, each.node), limit) for each in changes
    }
    moved = {
        node
        for node, result in results.items()
        if result.kept is None or result.kept.module != module_of(node)
    }
    edits: list[Edit] = []
    placed: Placed = {}
    for change in changes:
        result = results[change.node]
        if is_alone(file, change.node) and not _continues(file, change.node):
            edits += _in_lines(file, change, result, limit, moved, placed)
        else:
            edits += _among_others(file, change, result)
    end = newline(file)
    for place, codes in placed.items():
        lines = (text + end for _, text in sorted(codes, key=itemgetter(0)))
        edits.append(Edit(place, place, "".join(lines)))
    return edits


def insert_first(file: File, names: Sequence[tuple[str, str]], limit: int) -> list[Edit]:
    """New imports in a file that has none with lines of its own: below its docstring or its first comments."""
    end = newline(file)
    codes = sorted(_statements(names, "", limit), key=lambda code: (bool(code.names), code.module))
    lines = "".join(f"{code.text}\n" for code in codes).replace("\n", end)
    body = file.tree.body
    above_all = body[:1] if ast.get_docstring(file.tree, clean=False) is not None else []
    above_all = [each for each in above_all if is_alone(file, each)]
    above_all += [each for each in body if getattr(each, "module", "") == "__future__"]
    if above_all:
        at = file.lines(above_all[-1])[1]
        above = "" if file.text[:at].endswith(("\n", "\r")) else end
        return [Edit(at, at, above + end + lines + _blank_before(file, at))]
    head = re.match(r"(?:\ufeff?#[^\r\n]*(?:\r\n|\r|\n))*", file.text)
    at = head.end() if head else 0
    return [Edit(at, at, (end if at else "") + lines + _blank_before(file, at))]


def _blank_before(file: File, at: int) -> str:
    return "" if file.text.startswith(("\n", "\r"), at) or at == len(file.text) else newline(file)


def _continues(file: File, statement: ast.stmt) -> bool:
    """Whether a backslash puts the next statement on its line."""
    return file.text[file.span(statement)[1] : file.lines(statement)[1]].rstrip().endswith("\\")


def _in_lines(
    file: File,
    change: ImportChange,
    result: _Edited,
    limit: int,
    moved: Collection[ast.stmt],
    placed: Placed,
) -> Iterator[Edit]:
    """A statement with lines of its own, and those of other modules: where they sort in a block of imports that is sorted,
    else beside it.

    Args:
        moved: the statements that go, or import from elsewhere.
        placed: takes those that go elsewhere in the block, by the offset of their line.
    """
    node, end, base = change.node, newline(file), indentation(file, change.node)
    (begin, last), (first, stop) = file.span(node), file.lines(node)
    suffix = file.text[last:stop].rstrip("\r\n")
    kept, others = result.kept, list(result.others)
    loose = _lost(file.source(node), kept.text if kept else "")
    if "#" not in suffix and (directives := [*filter(_DIRECTIVE.match, loose)]):
        suffix = f"  {directives[0]}"
        loose.remove(directives[0])
    beside = f"  {suffix.strip()}" if _NOQA.match(suffix.strip()) else ""
    places = [] if loose or suffix.strip() else sorted_places(file, node, moved)
    if places:
        kept, others = _put_elsewhere(file, node, result, places, placed)
    if kept is None and not others:
        removed = remove_statement(file, node)
        blank = _BLANK.match(file.text, removed.end) if not removed.start else None
        yield removed._replace(end=blank.end()) if blank and not placed else removed
        return
    if kept is None:
        kept, *others = others
    else:
        longest = max(map(len, NEWLINE.split(file.text[begin:last])))
        is_long = len(base + kept.text) > max(limit, longest)
        if is_long and not result.is_as_it_was and not NEWLINE.search(kept.text):
            kept, suffix = replace(kept, text=kept.exploded(base, suffix.lstrip())), ""
    above = [other for other in others if _sorts_above(other, kept)]
    if loose or _has_comment_above(file, first):
        above = []
    below = [other for other in others if other not in above]
    remarks = [base + comment for comment in loose]
    its_own = [] if below and not change.drop and result.kept is not None else remarks
    lines = [
        *(base + other.text + beside for other in above),
        *its_own,
        file.text[first:begin] + kept.text + suffix,
        *(remarks if not its_own else ()),
        *(base + other.text + beside for other in below),
    ]
    text = end.join(NEWLINE.sub(end, line) if "\n" in line else line for line in lines)
    if text != file.text[first:stop].rstrip("\r\n"):
        yield Edit(first, len(file.text[:stop].rstrip("\r\n")), text)


def _put_elsewhere(
    file: File, node: ast.Import | ast.ImportFrom, result: _Edited, places: Places, placed: Placed
) -> tuple[_Code | None, list[_Code]]:
    """What is left of a statement where it stands, in a block of imports that is sorted; the rest goes to its places."""
    own, base = file.lines(node)[0], indentation(file, node)
    moves = result.kept is not None and result.kept.module != module_of(node)
    kept = result.kept
    for code in [*result.others, *([result.kept] if moves and result.kept else ())]:
        key = key_of(bool(code.names), code.module)
        sorts_here = all((its < key) == (at < own) for its, at in places)
        if sorts_here and code is result.kept:
            continue
        place = own if sorts_here else next(at for its, at in places if its > key)
        placed.setdefault(place, []).append((key, base + code.text))
        kept = None if code is result.kept else kept
    return kept, []


def _sorts_above(new: _Code, kept: _Code) -> bool:
    """Whether a statement stands above the one that it comes from: of two packages', as ruff sorts them."""
    is_standard = kept.module.split(".")[0] in sys.stdlib_module_names
    return bool(kept.names) and not is_standard and new.module < kept.module


def _has_comment_above(file: File, start: int) -> bool:
    return file.text[:start].rstrip("\r\n").rpartition("\n")[2].lstrip().startswith("#")


def _lost(before: str, after: str) -> list[str]:
    """The comments of a statement that its new code does not have."""
    return list((Counter(comments(before)) - Counter(comments(after))).elements())


def _among_others(file: File, change: ImportChange, result: _Edited) -> Iterator[Edit]:
    """A statement that shares its line: statements joined by `;` stay joined, comments go above."""
    kept = [] if result.kept is None else [result.kept.on_one_line]
    if result.kept is not None and result.is_as_it_was:
        kept = [result.kept.text]
    code = "; ".join([*kept, *(other.on_one_line for other in result.others)]) or "pass"
    at = line_start(file, change.node)
    for comment in _lost(file.source(change.node), code):
        yield Edit(at, at, comment + newline(file))
    yield Edit(*file.span(change.node), code)


def _after(file: File, change: ImportChange, base: str, limit: int) -> _Edited:
    """A statement after a change; `base` is its indentation."""
    node, source = change.node, file.source(change.node)
    if isinstance(node, ast.Import):
        others = _statements(change.add, base, limit)
        if change.drop:
            return _Edited(None, others)
        first = node.names[0]
        module, _ = change.move.get(first.asname or first.name, (first.name, ""))
        text = spliced(file.text, _moved_modules(file, change), *file.span(node))
        return _Edited(_Code(module, (), text), others, is_as_it_was=True)
    home = _home(node, change, commented=bool(comments(source)))
    staying, added, elsewhere = _parted(node, change, home)
    others = _statements(elsewhere, base, limit)
    before = [_spelled(alias) for alias in node.names]
    spans = [
        (a - file.span(node)[0], b - file.span(node)[0]) for a, b in map(file.span, node.names)
    ]
    edits, names = edit_names(source, spans, before, staying, added)
    if not names:
        return _Edited(None, others)
    code = _Code(home, tuple(names))
    if names == before:
        return _Edited(replace(code, text=_from(source, home, base)), others, is_as_it_was=True)
    bracket = source.endswith(")") and NEWLINE.search(source)
    if not bracket or not any(staying):
        return _Edited(replace(code, text=code.on_one_line), others)
    text = spliced(source, edits)
    fits = len(base + code.on_one_line) <= limit
    if len(names) < len(before) and fits and not comments(text):
        text = code.on_one_line
    return _Edited(replace(code, text=_from(text, home, base)), others)


def _home(node: ast.ImportFrom, change: ImportChange, *, commented: bool) -> str:
    """The module of what stays: if all names that stay move to the same one, the statement moves with its layout.

    Where another name comes from its own module, it does so only for its comments.
    """
    own = "." * node.level + (node.module or "")
    modules = {change.move.get(local, ("",))[0] for local in change.locals - change.drop}
    moves = len(modules) == 1 and (commented or not any(module == own for module, _ in change.add))
    return modules.pop() or own if moves else own


def _parted(
    node: ast.ImportFrom, change: ImportChange, home: str
) -> tuple[list[str], list[str], list[tuple[str, str]]]:
    """What each name becomes, "" where it leaves; the names that come; and those of other modules."""
    staying: list[str] = []
    elsewhere: list[tuple[str, str]] = []
    for alias in node.names:
        local = alias.asname or alias.name
        module, new = change.move.get(local, (home, ""))
        name = _bound_as(new, alias) if new else _spelled(alias)
        stays = module == home and local not in change.drop
        staying.append(name if stays else "")
        if module != home and local not in change.drop:
            elsewhere.append((module, name))
    bound = {(home, name.split()[-1]) for name in staying if name}
    bound |= {(module, name.split()[-1]) for module, name in elsewhere}
    new_names = [
        each for each in dict.fromkeys(change.add) if (each[0], each[1].split(" ")[-1]) not in bound
    ]
    stars = "*" in staying
    added = sorted(
        (name for module, name in new_names if module == home and name and not stars), key=by_kind
    )
    elsewhere += [each for each in new_names if each[0] != home or not each[1] or stars]
    return staying, added, elsewhere


def _spelled(alias: ast.alias) -> str:
    return f"{alias.name} as {alias.asname}" if alias.asname else alias.name


def _bound_as(new: str, alias: ast.alias) -> str:
    """Another name bound as before; `a as a` says that `a` is meant for others."""
    local = alias.asname or alias.name
    reexported = alias.name == alias.asname
    return new if new == local and not reexported else f"{new} as {local}"


def _statements(names: Iterable[tuple[str, str]], base: str, limit: int) -> list[_Code]:
    """Statements that import names, by module; a star and a module itself, without a name, are alone in theirs."""
    codes: list[_Code] = []
    together: dict[str, list[str]] = {}
    for module, name in dict.fromkeys(names):
        if name in ("", "*"):
            codes.append(_Code(module, (name,) if name else ()))
        else:
            together.setdefault(module, []).append(name)
    codes += [_Code(module, tuple(sorted(some, key=by_kind))) for module, some in together.items()]
    fits = [len(code.names) < 2 or len(base + code.on_one_line) <= limit for code in codes]
    return [
        replace(code, text=code.on_one_line if short else code.exploded(base))
        for code, short in zip(codes, fits, strict=True)
    ]


def _from(text: str, module: str, base: str) -> str:
    """A statement that imports from another module, if it does; names that stand below its bracket go on doing so."""
    same = re.sub(r"[\s\\]", "", _HEAD.match(text)[0]) == f"from{module}import"  # type: ignore[index]
    if same:
        return text
    made = _HEAD.sub(f"from {module} import", text, count=1)
    column, place = (len(base) + each.find("(") + 1 for each in (text, made))
    return re.sub(rf"(?<=[\r\n]) {{{column}}}(?=\S)", " " * place, made) if "(" in text else made


def _moved_modules(file: File, change: ImportChange) -> Iterator[Edit]:
    """The edits of the paths that move in `import a.b as c, d`, however they are spaced."""
    for alias in change.node.names:
        moved = change.move.get(alias.asname or alias.name)
        if moved is not None:
            dotted = r"[\s\\]*\.[\s\\]*".join(map(re.escape, alias.name.split(".")))
            written = re.compile(rf"\b{dotted}\b").search(file.text, file.span(alias)[0])
            assert written is not None
            path = f"{'' if alias.asname else 'torch.distributed, '}{moved[0]}"
            yield Edit(*written.span(), path)
