"""What an import statement becomes: the names that stay in it, and the statements for other modules."""

import ast
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from fsdp_migrate.codemods.edit.items import Item, Items, read
from fsdp_migrate.codemods.edit.text import Refused, comments, indentation, newline
from fsdp_migrate.facts.file import NEWLINE, File


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


def after(file: File, change: ImportChange, limit: int) -> list[str]:
    """A statement after a change, if anything is left of it, and those for other modules.

    If all names that stay move to the same module, the statement moves. Over several lines it keeps its layout, unless it
    is short enough for one line now, or too long.
    """
    node = change.node
    source = file.source(change.node)
    base = indentation(file, change.node)
    own = ""
    if isinstance(node, ast.ImportFrom):
        own = "." * node.level + (node.module or "")
    homes = {change.move.get(local, (own,))[0] for local in change.locals - change.drop}
    home = own
    if own and len(homes) == 1:
        home = homes.pop()
    was = "import"
    head = "import"
    if own:
        was = f"from {own} import"
        head = f"from {home} import"
    items = Items(was, [Item(_bound_as(alias.name, alias)) for alias in node.names])
    if NEWLINE.search(source):
        with suppress(Refused):
            items = read(source)
    before = ", ".join(items.texts)
    end = newline(file)
    others = statements(_changed(change, items, own, home), base, limit, end)
    now = ", ".join(items.texts)
    if not items.items:
        return others
    if head + now == was + before:
        return [source, *others]
    code = items.code
    if head != was:
        code = _under_another_head(items, head, end + base)
    longest = max(limit, *map(len, NEWLINE.split(base + source)))
    is_short = len(f"{base}{head} {now}") <= limit and now != before and "#" not in code
    was_long = len(f"{base}{was} {before}") > limit or len(items.items) == 1 < len(node.names)
    is_long = max(map(len, NEWLINE.split(base + code))) > longest
    if is_long or (is_short and was_long):
        code = _written(head, items.items, base, longest, end)
    return [code, *others]


def _under_another_head(items: Items, head: str, margin: str) -> str:
    """The names of a statement behind another `from ... import`: those below its bracket are below the new one."""
    _, bracket, remark = items.head.partition("(")
    opened = head
    if bracket:
        opened = f"{head} ({remark}"
    old = margin + " " * len(items.head)
    new = margin + " " * len(opened)
    return opened + items.code.removeprefix(items.head).replace(old, new)


def _changed(
    change: ImportChange, items: Items, own: str, home: str
) -> dict[tuple[str, str], Item]:
    """Changes the names of a statement, and returns those that other modules have."""
    is_sorted = _are_sorted(items)
    others, moved, dropped = _sort_out(change, items, own, home)
    stay = {(change.move.get(local, (own,))[0], local) for local in change.locals - change.drop}
    for module, name in change.add:
        if (module, name.split(" ")[-1]) not in stay:
            others.setdefault((module, name), Item(name))
    added: list[str] = []
    if own and "*" not in change.locals:
        keys = [key for key in others if key[0] == home and key[1]]
        added = [others.pop(key).text for key in keys]
    if own != home or not _replaced(items, dropped, added, is_sorted=is_sorted):
        for name in added:
            _insert(items, name, is_sorted=is_sorted)
        for item in dropped:
            items.drop(item)
    for item in moved:
        items.drop(item)
    return others


def _sort_out(
    change: ImportChange, items: Items, own: str, home: str
) -> tuple[dict[tuple[str, str], Item], list[Item], list[Item]]:
    """Renames the names of a statement; returns those for other modules, and which of its items these were, or are dropped."""
    others: dict[tuple[str, str], Item] = {}
    moved = list[Item]()
    dropped = list[Item]()
    for alias, item in zip(change.node.names, items.items, strict=True):
        local = alias.asname or alias.name
        was = (alias.name, "")
        if own:
            was = (own, alias.name)
        module, new = change.move.get(local, was)
        name = _bound_as(new or module, alias)
        if local in change.drop:
            dropped.append(item)
        elif own and module != home:
            others[module, name] = replace(item, text=name)
            item.tail = ""
            moved.append(item)
        elif name != _bound_as(alias.name, alias):
            item.text = name
    return others, moved, dropped


def _are_sorted(items: Items) -> bool:
    order = [*map(by_kind, items.texts)]
    return order == sorted(order)


def _replaced(items: Items, dropped: list[Item], added: list[str], *, is_sorted: bool) -> bool:
    """Lets one name that replaces another take its place and its comments, if it sorts there; returns whether it did."""
    if len(dropped) != 1 or len(added) != 1:
        return False
    place = _place(items, added[0])
    if is_sorted and place - items.items.index(dropped[0]) not in (0, 1):
        return False
    dropped[0].text = added[0]
    return True


def _insert(items: Items, name: str, *, is_sorted: bool) -> None:
    place = len(items.items)
    if is_sorted:
        place = _place(items, name)
    items.insert(place, name)


def _place(items: Items, name: str) -> int:
    """Where a name sorts among others."""
    return len([each for each in items.texts if by_kind(each) < by_kind(name)])


def _bound_as(new: str, alias: ast.alias) -> str:
    """A name, or another one bound as before; `a as a` says that `a` is meant for others."""
    local = alias.asname or alias.name
    if new == local != alias.asname:
        return new
    # What a path without `as` binds is the package, which other code may use.
    if "." in local:
        return f"torch.distributed, {new}"
    return f"{new} as {local}"


def statements(names: Mapping[tuple[str, str], Item], base: str, limit: int, end: str) -> list[str]:
    """Statements that import names, by module; a star and a module itself, without a name, are alone in theirs."""
    codes: list[str] = []
    together: dict[str, list[Item]] = {}
    for (module, name), item in names.items():
        if name == "*":
            codes.append(f"from {module} import *")
        elif not name:
            codes.append(f"import {module}")
        else:
            together.setdefault(module, []).append(item)
    for module, some in together.items():
        some.sort(key=lambda item: by_kind(item.text))
        codes.append(_written(f"from {module} import", some, base, limit, end))
    return codes


def _written(head: str, names: Sequence[Item], base: str, limit: int, end: str) -> str:
    """A new statement: on one line, or a name a line where it is too long for that, or has comments."""
    texts = [" ".join(name.text.replace("\\", " ").split()) for name in names]
    line = f"{head} {', '.join(texts)}"
    has_comments = any("#" in name.lead + name.text + name.tail for name in names)
    if not has_comments and (len(names) == 1 or len(base + line) <= limit):
        return line
    lines = ""
    for name in names:
        for each in (*comments(name.lead), f"{name.text},{name.tail}"):
            lines += f"{base}    {each}{end}"
    return f"{head} ({end}{lines}{base})"


def by_kind(name: str) -> tuple[object, ...]:
    """isort's and ruff's order: CONSTANTS, Classes, functions; each without regard to case, `a2` before `a10`."""
    kind = 2
    if name.split()[0].isupper() and len(name) > 1:
        kind = 0
    elif name[:1].isupper():
        kind = 1
    natural = []
    for part in re.split(r"(\d+)", name.lower()):
        number = -1
        if part.isdigit():
            number = int(part)
        natural.append((number, part))
    return (kind, tuple(natural), name)
