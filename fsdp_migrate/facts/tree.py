"""All Python files of a run: what is in them, and which of them an import means. Most are never parsed."""

from __future__ import annotations

import os
from collections.abc import Iterable

from fsdp_migrate.search import Search


class Tree:
    """The files of a run by their paths.

    Args:
        data: what is in them, as far as it was read.

    Attributes:
        paths: the paths of all files, each once.
    """

    def __init__(self, paths: Iterable[str], data: dict[str, bytes] | None = None) -> None:
        self.paths = list(paths)
        self._data = {} if data is None else data
        self._found: dict[bytes, frozenset[str]] = {}
        self._located: dict[tuple[str, str], str | None] = {}
        # The paths by the last part of their module's name, and all names that are in them.
        self._by_last: dict[str, list[str]] = {}
        self._names: set[str] = set()
        for path in self.paths:
            parts = path.removesuffix(".py").removesuffix(f"{os.sep}__init__").split(os.sep)
            self._by_last.setdefault(parts[-1], []).append(path)
            self._names.update(parts)

    def data(self, path: str) -> bytes:
        """The bytes of a file; none if it cannot be read."""
        if path not in self._data:
            try:
                with open(path, "rb") as stream:
                    self._data[path] = stream.read()
            except OSError:
                self._data[path] = b""
        return self._data[path]

    def having(self, pattern: bytes) -> frozenset[str]:
        """The files in which a pattern is found; each is looked for once."""
        if pattern not in self._found:
            has = Search(pattern)
            self._found[pattern] = frozenset(path for path in self.paths if has(self.data(path)))
        return self._found[pattern]

    def locate(self, dotted: str, folder: str) -> str | None:
        """The path of the file that `import dotted` means in a file of a folder.

        Several files may claim one name (`utils.py` in two example folders): the one nearest to the importer is meant.
        """
        first, last = dotted.partition(".")[0], dotted.rpartition(".")[2]
        if last not in self._by_last or first not in self._names:
            return None
        key = dotted, folder
        if key not in self._located:
            tail = dotted.replace(".", os.sep)
            suffixes = (f"{os.sep}{tail}.py", f"{os.sep}{tail}{os.sep}__init__.py")
            candidates = [
                path
                for path in self._by_last[last]
                if path.endswith(suffixes) and _importable(path, tail, folder)
            ]
            self._located[key] = _nearest(candidates, folder)
        return self._located[key]

    def is_outside(self, dotted: str) -> bool:
        """Whether a module is none of these files, by the first part of its name."""
        return dotted.partition(".")[0] not in self._names


def _importable(path: str, tail: str, folder: str) -> bool:
    """Whether a file is beside the importer or above it: a name of one part, or a copy of torch, is meant nowhere else."""
    if os.sep in tail and not tail.startswith(f"torch{os.sep}"):
        return True
    root = path.removesuffix(f"{os.sep}__init__.py").removesuffix(".py").removesuffix(tail)
    return f"{folder.rstrip(os.sep)}{os.sep}".startswith(root)


def _nearest(paths: list[str], folder: str) -> str | None:
    """The first path that shares most folders with one."""
    if len(paths) < 2:
        return paths[0] if paths else None
    while True:
        inside, above = os.path.join(folder, ""), os.path.dirname(folder)
        near = next((path for path in paths if path.startswith(inside)), None)
        if near is not None or above == folder:
            return near
        folder = above
