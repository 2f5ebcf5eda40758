"""What is changed in one import statement, and the edits that do it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

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
        add: (module, name) that are needed as well.
    """

    node: ast.Import | ast.ImportFrom
    drop: set[str] = field(default_factory=set)
    move: dict[str, tuple[str, str]] = field(default_factory=dict)
    add: list[tuple[str, str]] = field(default_factory=list)

    @property
    def locals(self) -> set[str]:
        """The names that the statement binds, those of `import a.b` with their dots."""
        return {alias.asname or alias.name for alias in self.node.names}

    def edits(self, file: File, line_length: int) -> Iterator[Edit]:
        """The edits; where a path is all that changes, nothing else is touched."""
        if not (self.drop or self.move or self.add):
            return
        if isinstance(self.node, ast.ImportFrom) and self._new_path:
            yield _path(file, self.node, self.node.module or "", self._new_path)
        elif isinstance(self.node, ast.Import) and not (self.drop or self.add):
            yield from self._modules(file, self.node)
        else:
            from fsdp_migrate.codemods.edit.import_statement import ImportEdit
            from fsdp_migrate.codemods.edit.import_text import edit_import_text

            added = tuple(dict.fromkeys(self.add))
            change = ImportEdit(frozenset(self.drop), self.move, added)
            yield from edit_import_text(file, self.node, change, line_length)

    @property
    def _new_path(self) -> str:
        """The module that all names come from, under the names that they have; empty if there is no such module."""
        names = {alias.asname or alias.name: alias.name for alias in self.node.names}
        modules = {module for module, _ in self.move.values()}
        same = {local: name for local, (_, name) in self.move.items()} == names
        return modules.pop() if same and len(modules) == 1 and not (self.drop or self.add) else ""

    def _modules(self, file: File, node: ast.Import) -> Iterator[Edit]:
        for alias in node.names:
            moved = self.move.get(alias.asname or alias.name)
            if moved is not None:
                new = moved[0]
                if alias.asname is None and not _binds_torch_elsewhere(file, node):
                    new = f"torch.distributed, {new}"
                yield _path(file, alias, alias.name, new)


def _path(file: File, node: ast.AST, old: str, new: str) -> Edit:
    """The edit of a dotted path, however it is spaced."""
    path = re.compile(r"[\s\\]*\.[\s\\]*".join(map(re.escape, old.split("."))))
    written = path.search(file.text, file.span(node)[0])
    assert written is not None
    return Edit(*written.span(), new)


def _binds_torch_elsewhere(file: File, node: ast.Import) -> bool:
    """Whether `torch` is bound without an `import torch.distributed.fsdp` wherever it is used."""
    bindings = file.scope_of(node).bindings.get("torch", ())
    used = min((load.lineno for load in file.loads.get("torch", ())), default=node.lineno)
    return any(
        isinstance(b, Imported) and not is_module(b.alias.name) and b.alias.lineno <= used
        for b in bindings
    )
