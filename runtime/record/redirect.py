"""Modules of the user's folders are imported from the copy that is run, however they are found.

`pip install -e .`, a `.pth` file and PYTHONPATH lead into the folder that was copied: without this both
programs would import the original.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType


class Copies:
    """The folders that were copied, and their copies.

    Args:
        pairs: of a folder and its copy; several folders may have one copy.
    """

    def __init__(self, pairs: list[list[str]]) -> None:
        # Of nested folders the inner one counts.
        self._pairs = sorted(pairs, key=lambda pair: -len(pair[0]))

    def of(self, path: str) -> str:
        """Where a path is in the copy; empty if it is not in a folder that was copied."""
        for spelled in (path, os.path.realpath(path)):
            if self.inside(spelled):
                return ""
            for folder, copy in self._pairs:
                if spelled == folder or spelled.startswith(folder + os.sep):
                    return copy + spelled[len(folder) :]
        return ""

    def inside(self, path: str) -> str:
        """A path in a copy, relative to it; empty if it is in none."""
        for _, copy in self._pairs:
            if path.startswith(copy + os.sep):
                return os.path.relpath(path, copy)
        return ""


class Redirect(MetaPathFinder):
    """Finds what the other finders find, and the file in the copy if there is one."""

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._asking = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that Python would use, or its twin in the copy."""
        # A finder of the program may ask the others, too.
        if fullname in vars(self._asking).setdefault("names", []):
            return None
        self._asking.names.append(fullname)
        try:
            return self._ask(fullname, path, target)
        finally:
            self._asking.names.remove(fullname)

    def _ask(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if type(finder).__module__.startswith(__package__ or ""):
                continue
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(fullname, path, target) if find else None
            if spec is not None:
                return self._moved(spec)
        return None

    def _moved(self, spec: ModuleSpec) -> ModuleSpec:
        origin = self._copies.of(spec.origin) if spec.origin and spec.has_location else ""
        if origin and not os.path.exists(origin):
            return spec  # git ignores it, as it does what a build leaves in place
        places = self._places(spec.submodule_search_locations)
        if origin:
            return (
                spec_from_file_location(spec.name, origin, submodule_search_locations=places)
                or spec
            )
        if places and spec.loader is None and places != list(spec.submodule_search_locations or ()):
            moved = ModuleSpec(spec.name, None, is_package=True)  # a namespace
            moved.submodule_search_locations = places
            return moved
        return spec

    def _places(self, places: Sequence[str] | None) -> list[str] | None:
        """The places in the copy, each before the one that has what git ignores."""
        if places is None:
            return None
        moved = [place for old in places for place in (self._copies.of(old), old) if place]
        return [*dict.fromkeys(moved)]


def install(copies: Copies) -> None:
    """Start to redirect imports."""
    sys.meta_path.insert(0, Redirect(copies))
