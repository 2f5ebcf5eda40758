"""One import statement: what is to be changed in it, and its code afterwards.

A statement over several lines is edited where it changes, so that its layout and its other comments stay.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fsdp_migrate.codemods.edit.text import comments, spliced
from fsdp_migrate.codemods.rule import Edit
from fsdp_migrate.facts.file import NEWLINE, File

SortKey = tuple[object, ...]
_Order = Callable[[str], SortKey]
_INDENT = "    "
_HEAD = re.compile(r"from\b.*?\bimport\b", re.S)
_BEHIND = re.compile(r"[ \t]*(,?)[ \t]*(?:#[^\r\n]*)?")


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
class Code:
    """A statement.

    Attributes:
        module: the module; the first one of `import a, b`.
        names: as they are written, `a` or `a as b`; none for `import module`.
        text: the statement in its layout.
    """

    module: str
    names: tuple[str, ...]
    text: str = ""

    @property
    def key(self) -> tuple[bool, SortKey, SortKey]:
        """Where isort and ruff put it in its section."""
        return bool(self.names), natural(self.module), by_kind(self.names[0]) if self.names else ()

    @property
    def on_one_line(self) -> str:
        """The code without its layout and its comments."""
        if not self.names:
            return f"import {self.module}"
        return f"from {self.module} import {', '.join(self.names)}"

    def exploded(self, base: str, comment: str = "") -> str:
        """Each name on its line, with a comment behind the bracket."""
        lines = "".join(f"{base}{_INDENT}{name},\n" for name in self.names)
        return f"from {self.module} import ({f'  {comment}' if comment else ''}\n{lines}{base})"


@dataclass(frozen=True)
class Edited:
    """What a statement becomes.

    Attributes:
        kept: the statement itself; None if nothing is left of it.
        others: statements for names of other modules.
        loose: the comments of names that went.
        exact: whether its names are as they were.
    """

    kept: Code | None
    others: Sequence[Code]
    loose: Sequence[str] = ()
    exact: bool = False


def edited(
    file: File, change: ImportChange, base: str, limit: int, *, apart: bool = False
) -> Edited:
    """A statement after a change.

    Args:
        base: the indentation of the statement.
        limit: how long a line may be.
        apart: whether `a as b` has a statement of its own, as isort and ruff have it by default.
    """
    node, source = change.node, file.source(change.node)
    if isinstance(node, ast.Import):
        return _edited_modules(file, change, base, limit)
    before, home = (
        tuple(map(_spelled, node.names)),
        _home(node, change, commented=bool(comments(source))),
    )
    staying, added, made = _parted(node, change, home)
    kept = [name for name in staying if name]
    if "*" in kept or (apart and kept and all(" as " in name for name in kept)):
        made.update({home: added} if added else {})
        added = []
    order = _order_of(before)
    others = new_statements(made, base, limit, order)
    if len(added) == staying.count("") == 1 and not made:
        # One name for another: what was said of the old one is said of the new one.
        exchanged = [name or added[0] for name in staying]
        if order is None or sorted(exchanged, key=order) == exchanged:
            staying, added = exchanged, []
    names, places = _joined(staying, added, order)
    if not names:
        return Edited(None, others, comments(source))
    code = Code(home, tuple(names))
    if code.names == before and not added:
        return Edited(replace(code, text=_from(source, home, base)), others, exact=True)
    if not any(staying) or not NEWLINE.search(source) or not source.endswith(")"):
        return Edited(replace(code, text=code.on_one_line), others, comments(source))
    from fsdp_migrate.codemods.edit.import_names import in_place  # LibCST takes 0.1 s to import

    changed = [None if new == old else new for new, old in zip(staying, before, strict=True)]
    text, loose = in_place(source, changed, places)
    fits = len(base + code.on_one_line) <= limit
    if len(names) < len(before) and fits and not comments(text):
        text = code.on_one_line
    return Edited(replace(code, text=_from(text, home, base)), others, loose)


def _from(text: str, module: str, base: str) -> str:
    """A statement that imports from another module, if it does; names that stand below its bracket go on doing so."""
    same = re.sub(r"[\s\\]", "", _HEAD.match(text)[0]) == f"from{module}import"  # type: ignore[index]
    if same:
        return text
    made = _HEAD.sub(f"from {module} import", text, count=1)
    column, place = (len(base) + each.find("(") + 1 for each in (text, made))
    return re.sub(rf"(?<=[\r\n]) {{{column}}}(?=\S)", " " * place, made) if "(" in text else made


def _parted(
    node: ast.ImportFrom, change: ImportChange, home: str
) -> tuple[list[str], list[str], dict[str, list[str]]]:
    """What each name becomes, "" where it leaves; the names that come; and those of other modules."""
    staying: list[str] = []
    made: dict[str, list[str]] = {}
    for alias in node.names:
        module, new = change.move.get(alias.asname or alias.name, (home, ""))
        name = _bound_as(new, alias) if new else _spelled(alias)
        stays = module == home and (alias.asname or alias.name) not in change.drop
        staying.append(name if stays else "")
        if module != home and (alias.asname or alias.name) not in change.drop:
            made.setdefault(module, []).append(name)
    for module, new in dict.fromkeys(change.add):
        there = made.setdefault("" if new and module == home else module, [])
        bound = {
            name.split()[-1] for name in (*there, *(staying if module == home else ())) if name
        }
        if not new or new.split()[-1] not in bound:
            there.append(new)
    added = sorted(made.pop("", []), key=by_kind)
    return staying, added, {module: names for module, names in made.items() if names}


def _joined(
    staying: Sequence[str], added: Sequence[str], order: _Order | None
) -> tuple[list[str], list[tuple[int, str]]]:
    """The names of a statement: new ones where its order has them; without one, where the old ones were. And the places of
    the new ones, each among those that are there by then."""
    names = [name for name in staying if name]
    gone = staying.index("") if "" in staying else len(staying)
    places = []
    for number, name in enumerate(added):
        place = gone + number
        if order is not None:
            place = sum(order(each) < order(name) for each in names)
        places.append((place, name))
        names.insert(place, name)
    return names, places


def _home(node: ast.ImportFrom, change: ImportChange, *, commented: bool) -> str:
    """The module of what stays: if all names that stay move to the same one, the statement moves with its layout.

    Where another name comes from its own module, it does so only for its comments.
    """
    own = "." * node.level + (node.module or "")
    staying = change.locals - change.drop
    modules = {change.move[local][0] if local in change.move else "" for local in staying}
    moves = len(modules) == 1 and not any(module == own for module, _ in change.add)
    return modules.pop() or own if moves or (len(modules) == 1 and commented) else own


def _spelled(alias: ast.alias) -> str:
    return f"{alias.name} as {alias.asname}" if alias.asname else alias.name


def _bound_as(new: str, alias: ast.alias) -> str:
    """Another name bound as before; `a as a` says that `a` is meant for others."""
    local = alias.asname or alias.name
    reexported = alias.name == alias.asname
    return new if new == local and not reexported else f"{new} as {local}"


def new_statements(
    names: Mapping[str, Sequence[str]], base: str, limit: int, order: _Order | None = None
) -> list[Code]:
    """Statements that import names, by module; a star and a module itself, the empty name, are alone in theirs."""
    statements = []
    for module, given in names.items():
        alone = [[name] for name in given if name in ("", "*")]
        others = sorted((name for name in given if name not in ("", "*")), key=order or by_kind)
        for group in [*alone, others] if others else alone:
            code = Code(module, tuple(filter(None, group)))
            fits = len(group) == 1 or len(base + code.on_one_line) <= limit
            statements.append(replace(code, text=code.on_one_line if fits else code.exploded(base)))
    return statements


def _edited_modules(file: File, change: ImportChange, base: str, limit: int) -> Edited:
    """`import a.b as c, d` after a change."""
    made: dict[str, list[str]] = {}
    for module, name in dict.fromkeys(change.add):
        made.setdefault(module, []).append(name)
    others = new_statements(made, base, limit)
    if change.drop:
        return Edited(None, others, comments(file.source(change.node)))
    text = spliced(file.text, _modules(file, change), *file.span(change.node))
    first = change.node.names[0]
    module, _ = change.move.get(first.asname or first.name, (first.name, ""))
    return Edited(Code(module, (), text), others, exact=True)


def _modules(file: File, change: ImportChange) -> Iterator[Edit]:
    """The edits of the paths that move, however they are spaced."""
    for alias in change.node.names:
        moved = change.move.get(alias.asname or alias.name)
        if moved is not None:
            dotted = r"[\s\\]*\.[\s\\]*".join(map(re.escape, alias.name.split(".")))
            written = re.compile(rf"\b{dotted}\b").search(file.text, file.span(alias)[0])
            assert written is not None
            yield Edit(
                *written.span(), f"{'' if alias.asname else 'torch.distributed, '}{moved[0]}"
            )


def by_kind(name: str) -> SortKey:
    """isort's and ruff's default: CONSTANTS, Classes, functions; each without regard to case, `a2` before `a10`."""
    constant = name.split()[0].isupper() and len(name) > 1
    return (0 if constant else 1 if name[:1].isupper() else 2, natural(name), name)


def _order_of(names: Sequence[str]) -> _Order | None:
    """The order that names are in: one of those that isort knows, or None."""
    keys: tuple[_Order, ...] = (by_kind, lambda name: (natural(name), name), lambda name: (name,))
    return next((key for key in keys if sorted(names, key=key) == [*names]), None)


def natural(name: str) -> SortKey:
    """In any case, `layer2` before `layer10`."""
    return tuple(
        (int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", name.lower())
    )
