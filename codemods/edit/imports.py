"""Import statements after their changes: each is edited where it stands, and what comes from elsewhere stands next to it.

Nothing else moves. Names and statements that are sorted as isort and ruff sort them stay so.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

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


_Import = ast.Import | ast.ImportFrom
# Where isort and ruff sort a statement within its section: `import` first, by module.
_Key = tuple[bool, str]


@dataclass(frozen=True)
class _Code:
    """A statement after its change.

    Attributes:
        module: what it imports, or imports from.
        names: its names as they are written; none for `import module`.
        text: its text in the file, but for the module, if its names are the same.
        is_spread: whether each name has a line.
    """

    module: str
    names: tuple[str, ...]
    text: str = ""
    is_spread: bool = False

    @property
    def key(self) -> _Key:
        return bool(self.names), self.module.lower()

    @property
    def on_one_line(self) -> str:
        names = ", ".join(self.names)
        return f"from {self.module} import {names}" if names else f"import {self.module}"

    def laid_out(self, base: str, limit: int, end: str, suffix: str = "") -> str:
        """Its text behind an indentation, with a comment at its end; new lines end in `end`."""
        if self.text:
            return self.text + suffix
        fits = len(base + self.on_one_line) <= limit and not self.is_spread
        if fits or len(self.names) < 2:
            return self.on_one_line + suffix
        lines = "".join(f"{base}    {name},{end}" for name in self.names)
        return f"from {self.module} import ({suffix}{end}{lines}{base})"


def module_of(node: ast.Import | ast.ImportFrom) -> str:
    """The module that a statement imports, or imports from."""
    return (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name


def _key_of(node: _Import) -> _Key:
    return isinstance(node, ast.ImportFrom), module_of(node).lower()


def edit_imports(file: File, changes: Sequence[ImportChange], limit: int) -> list[Edit]:
    """The edits of all import statements of a file, whose formatter allows lines of `limit` characters."""
    asked = {change.node: change for change in changes}
    edits: list[Edit] = []
    done: set[ast.stmt] = set()
    for change in changes:
        if not _has_lines(file, change.node):
            edits += _among_others(file, change)
        elif change.node not in done:
            block, is_sorted = _block(file, change.node)
            done.update(block)
            edits += _in_block(file, block, asked, limit, is_sorted=is_sorted)
    return edits


def insert_first(file: File, names: Sequence[tuple[str, str]], limit: int) -> list[Edit]:
    """New imports in a file that has none with lines of its own: below its docstring or its first comments."""
    end = newline(file)
    codes = sorted(_statements(names), key=lambda code: code.key)
    lines = "".join(f"{code.laid_out('', limit, end)}{end}" for code in codes)
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


def _has_lines(file: File, node: ast.stmt) -> bool:
    """Whether a statement has its lines to itself, and no backslash puts the next one there."""
    behind = file.text[file.span(node)[1] : file.lines(node)[1]].rstrip()
    return is_alone(file, node) and not behind.endswith("\\")


def _block(file: File, node: _Import) -> tuple[list[_Import], bool]:
    """The imports on the lines around one, if they are sorted, else that one; and whether what it becomes is sorted in."""
    body = file.block(node)
    first = last = body.index(node)

    def follow(above: ast.stmt, below: ast.stmt) -> bool:
        imports = all(isinstance(n, _Import) and _has_lines(file, n) for n in (above, below))
        return imports and file.lines(above)[1] == file.lines(below)[0]

    while first and follow(body[first - 1], body[first]):
        first -= 1
    while last + 1 < len(body) and follow(body[last], body[last + 1]):
        last += 1
    block = [each for each in body[first : last + 1] if isinstance(each, _Import)]
    own = [getattr(each, "level", 0) or _is_standard(each) for each in block]
    keys = [_key_of(each) for each in block]
    has_end = file.text.endswith(("\n", "\r"))
    if has_end and len(block) > 1 and not any(own) and keys == sorted(keys):
        return block, True
    above = file.text[: file.lines(node)[0]].rstrip("\r\n").rpartition("\n")[2]
    return [node], not (_is_standard(node) or above.lstrip().startswith("#"))


def _is_standard(node: _Import) -> bool:
    return module_of(node).split(".")[0] in sys.stdlib_module_names


def _in_block(
    file: File,
    block: Sequence[_Import],
    asked: dict[_Import, ImportChange],
    limit: int,
    *,
    is_sorted: bool,
) -> Iterator[Edit]:
    """Statements with lines of their own: what they become stands where it sorts in their block, or in their place."""
    lines = {node: [*_lines(file, asked[node], limit)] for node in block if node in asked}
    if not any(lines.values()):
        for node in lines:
            removed = remove_statement(file, node)
            blank = _BLANK.match(file.text, removed.end) if not removed.start else None
            yield removed._replace(end=blank.end()) if blank else removed
        return
    stay = [
        node
        for node in block
        if node not in lines or any(key == _key_of(node) for key, _ in lines[node])
    ]
    placed: dict[int, list[tuple[_Key, str]]] = {}
    for node, some in lines.items():
        for entry in some:
            place = file.lines(node)[0]
            if len(block) > 1 and entry[0] != _key_of(node):
                behind = (file.lines(each)[0] for each in stay if _key_of(each) > entry[0])
                place = next(behind, file.lines(block[-1])[1])
            placed.setdefault(place, []).append(entry)
    texts = {}
    for place, some in placed.items():
        ordered = sorted(some, key=itemgetter(0)) if is_sorted else some
        texts[place] = "".join(text for _, text in ordered)
    for node in lines:
        first, stop = file.lines(node)
        own = texts.pop(first, None)
        if own is None:
            # Behind the block may be a function of ours: what stands there takes the last line's place.
            yield Edit(first, stop, texts.pop(stop, "") if node is block[-1] else "")
        else:
            yield Edit(first, len(file.text[:stop].rstrip("\r\n")), own.rstrip("\r\n"))
    yield from (Edit(place, place, text) for place, text in texts.items())


def _lines(file: File, change: ImportChange, limit: int) -> Iterator[tuple[_Key, str]]:
    """The lines of what a statement becomes, its comments among them, each with what it is sorted by.

    What is left of the statement keeps its line ends, where a file mixes them.
    """
    node, base, end = change.node, indentation(file, change.node), newline(file)
    (begin, last), (first, stop) = file.span(node), file.lines(node)
    suffix = file.text[last:stop].rstrip("\r\n")
    own_end = file.text[last + len(suffix) : stop] or end
    codes = _after(file, change)
    loose = _lost(file.source(node), codes[0].text if codes else "")
    if not codes:
        comments_left = [*loose, *([suffix.strip()] if "#" in suffix else [])]
        if comments_left:
            yield _key_of(node), "".join(base + comment + end for comment in comments_left)
        return
    if "#" not in suffix and (directives := [*filter(_DIRECTIVE.match, loose)]):
        suffix += f"  {directives[0]}"
        loose.remove(directives[0])
    for place, code in enumerate(codes):
        if place:
            beside = suffix if _NOQA.match(suffix.strip()) else ""
            yield code.key, base + code.laid_out(base, limit, end, beside) + end
        else:
            longest = max(map(len, NEWLINE.split(file.text[begin:last])))
            text = code.laid_out(base, max(limit, longest), end, suffix) + own_end
            above = "".join(base + comment + end for comment in loose)
            yield code.key, above + file.text[first:begin] + text


def _lost(before: str, after: str) -> list[str]:
    """The comments of a statement that its new code does not have."""
    return list((Counter(comments(before)) - Counter(comments(after))).elements())


def _among_others(file: File, change: ImportChange) -> Iterator[Edit]:
    """A statement that shares its line: statements joined by `;` stay joined, comments go above."""
    code = "; ".join(each.text or each.on_one_line for each in _after(file, change)) or "pass"
    at = line_start(file, change.node)
    for comment in _lost(file.source(change.node), code):
        yield Edit(at, at, comment + newline(file))
    yield Edit(*file.span(change.node), code)


def _after(file: File, change: ImportChange) -> list[_Code]:
    """A statement after a change, if anything is left of it, and those for other modules.

    If all names that stay move to the same module, the statement moves with its layout.
    """
    node, source = change.node, file.source(change.node)
    if isinstance(node, ast.Import):
        others = _statements(change.add)
        if change.drop:
            return others
        first = node.names[0]
        module, _ = change.move.get(first.asname or first.name, (first.name, ""))
        text = spliced(file.text, _moved_modules(file, change), *file.span(node))
        return [_Code(module, (), text), *others]
    own = "." * node.level + (node.module or "")
    homes = {change.move.get(local, (own,))[0] for local in change.locals - change.drop}
    home = homes.pop() if len(homes) == 1 else own
    names, elsewhere = _parted(node, change, own, home)
    others = _statements(elsewhere)
    before = [_bound_as(alias.name, alias) for alias in node.names]
    if not names:
        return others
    if names == before:
        text = source if home == own else _HEAD.sub(f"from {home} import", source, count=1)
        return [_Code(home, tuple(names), text), *others]
    if sorted(before, key=by_kind) == before:
        names.sort(key=by_kind)
    is_spread = bool(NEWLINE.search(source)) and source.endswith(")") and home == own
    is_spread = is_spread and len(names) >= len(before)
    return [_Code(home, tuple(names), is_spread=is_spread), *others]


def _parted(
    node: ast.ImportFrom, change: ImportChange, own: str, home: str
) -> tuple[list[str], list[tuple[str, str]]]:
    """The names of a statement that imports from `home`, and those of other modules."""
    names: list[str] = []
    elsewhere: list[tuple[str, str]] = []
    for alias in node.names:
        local = alias.asname or alias.name
        module, new = change.move.get(local, (own, alias.name))
        if local not in change.drop and module == home:
            names.append(_bound_as(new, alias))
        elif local not in change.drop:
            elsewhere.append((module, _bound_as(new, alias)))
    bound = {(module, name.split()[-1]) for module, name in elsewhere}
    bound |= {(home, name.split()[-1]) for name in names}
    has_room = "*" not in names
    for module, name in dict.fromkeys(change.add):
        if (module, name.split(" ")[-1]) in bound:
            continue
        if module == home and name and has_room:
            names.append(name)
        else:
            elsewhere.append((module, name))
    return names, elsewhere


def _bound_as(new: str, alias: ast.alias) -> str:
    """A name, or another one bound as before; `a as a` says that `a` is meant for others."""
    local = alias.asname or alias.name
    reexported = alias.name == alias.asname
    return new if new == local and not reexported else f"{new} as {local}"


def _statements(names: Iterable[tuple[str, str]]) -> list[_Code]:
    """Statements that import names, by module; a star and a module itself, without a name, are alone in theirs."""
    codes: list[_Code] = []
    together: dict[str, list[str]] = {}
    for module, name in dict.fromkeys(names):
        if name in ("", "*"):
            codes.append(_Code(module, (name,) if name else ()))
        else:
            together.setdefault(module, []).append(name)
    return codes + [_Code(m, tuple(sorted(some, key=by_kind))) for m, some in together.items()]


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


def by_kind(name: str) -> tuple[object, ...]:
    """isort's and ruff's order: CONSTANTS, Classes, functions; each without regard to case, `a2` before `a10`."""
    constant = name.split()[0].isupper() and len(name) > 1
    parts = re.split(r"(\d+)", name.lower())
    natural = tuple((int(part) if part.isdigit() else -1, part) for part in parts)
    return (0 if constant else 1 if name[:1].isupper() else 2, natural, name)
