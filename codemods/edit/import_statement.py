"""One import statement: what is to be changed in it, and its code afterwards.

A statement is read into its names and their comments, and written again in the layout that it had (`import_layout`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fsdp_migrate.codemods.edit.import_layout import Code, Name, Order, by_kind, order_of, read
from fsdp_migrate.codemods.rule import Edit
from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.names import is_module
from fsdp_migrate.facts.scopes import Imported


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
class Edited:
    """What a statement becomes.

    Attributes:
        kept: the statement itself; None if nothing is left of it.
        others: statements for names of other modules.
        loose: the comments of names that went.
    """

    kept: Code | None
    others: Sequence[Code]
    loose: Sequence[str] = ()


def edited(
    code: Code, change: ImportChange, base: str, limit: int, *, apart: bool = False
) -> Edited:
    """`from m import ...` after a change.

    Args:
        base: the indentation of the statement.
        limit: how long a line may be.
        apart: whether `a as b` has a statement of its own, as isort and ruff have it by default.
    """
    home = _home(code, change)
    kept, dropped, made = _parted(code, change, home)
    added = made.pop("", [])
    if len(dropped) == len(added) == 1 and not made:
        # One name for another: what was said of the old one is said of the new one.
        added = [replace(dropped.pop(), text=added[0].text, row=0)]
    star = any(name.text == "*" for name in kept)
    if star or (apart and kept and all(" as " in name.text for name in kept)):
        made.update({home: added} if added else {})
        added = []
    order = order_of([name.text for name in code.names])
    others = new_statements(made, base, limit, order)
    loose = [comment for name in dropped for comment in name.comments]
    names = _joined(code, kept, added, order)
    if not names:
        return Edited(None, others, [*filter(None, [code.head]), *loose, *filter(None, code.tail)])
    left = replace(code, module=home, names=tuple(names))
    if len(names) < len(code.names) and code.block and not left.comments:
        flat = replace(left, block=False)
        left = flat if len(base + str(flat)) <= limit else left
    return Edited(left, others, loose)


def _parted(
    code: Code, change: ImportChange, home: str
) -> tuple[list[Name], list[Name], dict[str, list[Name]]]:
    """The names that stay, those that go, and those of other modules; under "" what is added to the statement."""
    kept: list[Name] = []
    dropped: list[Name] = []
    made: dict[str, list[Name]] = {}
    for name in code.names:
        module, new = change.move.get(name.local, (home, ""))
        moved = replace(name, text=_bound_as(new, name)) if new else name
        if name.local in change.drop:
            dropped.append(name)
        elif module == home:
            kept.append(moved)
        else:
            made.setdefault(module, []).append(replace(moved, row=0))
    for module, new in dict.fromkeys(change.add):
        there = made.setdefault("" if new and module == home else module, [])
        bound = {name.local for name in (*there, *(kept if module == home else ()))}
        if not new or new.split()[-1] not in bound:
            there.append(Name(new))
    return kept, dropped, {module: names for module, names in made.items() if names}


def _joined(
    code: Code, kept: Sequence[Name], added: Sequence[Name], order: Order | None
) -> list[Name]:
    """The names of a statement: new ones where its order has them; without one, where the old ones were."""
    names = [*kept]
    place = next((i for i, name in enumerate(code.names) if name not in kept), len(kept))
    for name in sorted(added, key=lambda each: by_kind(each.text)):
        if order is not None:
            place = sum(order(each.text) < order(name.text) for each in names)
        names.insert(place, name)
        place += 1
    return names


def _home(code: Code, change: ImportChange) -> str:
    """The module of what stays: if all names that stay move to the same one, the statement moves with its layout."""
    staying = [name.local for name in code.names if name.local not in change.drop]
    modules = {change.move[local][0] if local in change.move else "" for local in staying}
    moves = len(modules) == 1 and not any(module == code.module for module, _ in change.add)
    return modules.pop() or code.module if moves else code.module


def _bound_as(new: str, name: Name) -> str:
    """Another name bound as before; `a as a` says that `a` is meant for others."""
    reexported = name.text.split()[0] == name.local and " as " in name.text
    return new if new == name.local and not reexported else f"{new} as {name.local}"


def new_statements(
    names: Mapping[str, Sequence[Name]], base: str, limit: int, order: Order | None = None
) -> list[Code]:
    """Statements that import names, by module; a star and a module itself, the empty name, are alone in theirs."""
    statements = []
    for module, given in names.items():
        alone = [[name] for name in given if name.text in ("", "*")]
        others = [name for name in given if name.text not in ("", "*")]
        groups = [*alone, others] if others else alone
        statements += [_new_statement(module, group, base, limit, order) for group in groups]
    return statements


def _new_statement(
    module: str, names: Sequence[Name], base: str, limit: int, order: Order | None
) -> Code:
    if names[0].text == "":
        return Code("", (Name(module),))
    key = order or by_kind
    code = Code(module, tuple(sorted(names, key=lambda name: key(name.text))))
    fits = len(base + code.on_one_line()) <= limit
    one = len(names) == 1 and not names[0].above
    return code if one or (fits and not code.comments) else code.exploded(base)


def exact_edits(file: File, change: ImportChange, kept: Code | None) -> list[Edit] | None:
    """The edits of a statement in which nothing or a path is all that changes; None if more does."""
    node = change.node
    if isinstance(node, ast.Import):
        return None if change.drop else list(_modules(file, change))
    if kept == read(file, node):
        return []
    if node.level:
        return None
    names = {alias.asname or alias.name: alias.name for alias in node.names}
    modules = {module for module, _ in change.move.values()}
    same = {local: name for local, (_, name) in change.move.items()} == names
    if not same or len(modules) != 1 or change.drop or change.add:
        return None
    return [_path(file, node, node.module or "", modules.pop())]


def _modules(file: File, change: ImportChange) -> Iterator[Edit]:
    for alias in change.node.names:
        moved = change.move.get(alias.asname or alias.name)
        if moved is not None:
            new = moved[0]
            if alias.asname is None and not _binds_torch_elsewhere(file, change.node):
                new = f"torch.distributed, {new}"
            yield _path(file, alias, alias.name, new)


def _path(file: File, node: ast.AST, old: str, new: str) -> Edit:
    """The edit of a dotted path, however it is spaced."""
    dotted = r"[\s\\]*\.[\s\\]*".join(map(re.escape, old.split(".")))
    path = re.compile(rf"\b{dotted}\b")
    written = path.search(file.text, file.span(node)[0])
    assert written is not None
    return Edit(*written.span(), new)


def _binds_torch_elsewhere(file: File, node: ast.stmt) -> bool:
    """Whether `torch` is bound without an `import torch.distributed.fsdp` wherever it is used."""
    bindings = file.scope_of(node).bindings.get("torch", ())
    used = min((load.lineno for load in file.loads.get("torch", ())), default=node.lineno)
    return any(
        isinstance(b, Imported) and not is_module(b.alias.name) and b.alias.lineno <= used
        for b in bindings
    )
