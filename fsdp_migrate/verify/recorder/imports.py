"""The imports of a program: user's modules come from the copy that is run, and a function can run after an import.

`pip install -e .`, a `.pth` file and PYTHONPATH lead into the folder that was copied: without this both programs would
import the original.
"""

import os
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType
from typing import Any

Callback = Callable[[Any], None]

_waiting: dict[str, list[Callback]] = {}


class Copies:
    """The folders that were copied, and their copies, as pairs; several folders may have one copy."""

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

    def hidden(self, text: str) -> str:
        """A text in which a copy's path is a dot: the two programs have copies of their own."""
        for _, copy in self._pairs:
            text = text.replace(copy, ".")
        return text


class Finder(MetaPathFinder):
    """Finds what the other finders find, or the file in the copy if there is one; its loader calls back when it is done."""

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
            spec = self._ask(fullname, path, target)
        finally:
            self._asking.names.remove(fullname)
        if spec is not None and spec.loader is not None and _callbacks(fullname):
            _call_back(spec.loader, fullname)
        return spec

    def _ask(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            find = None
            if finder is not self:
                find = getattr(finder, "find_spec", None)
            if find is not None and (spec := find(fullname, path, target)) is not None:
                return self._moved(spec)
        return None

    def _moved(self, spec: ModuleSpec) -> ModuleSpec:
        if spec.origin and spec.has_location:
            origin = self._copies.of(spec.origin)
        else:
            origin = ""
        if origin and not os.path.exists(origin):
            return spec  # git ignores it, as it does what a build leaves in place
        places = self._places(spec.submodule_search_locations)
        if origin:
            moved = spec_from_file_location(spec.name, origin, submodule_search_locations=places)
            return moved or spec
        if places and spec.loader is None and places != list(spec.submodule_search_locations or ()):
            namespace = ModuleSpec(spec.name, None, is_package=True)
            namespace.submodule_search_locations = places
            return namespace
        return spec

    def _places(self, places: Sequence[str] | None) -> list[str] | None:
        """The search path of a package: for each folder its copy, then the folder itself, which also has what git ignores."""
        if places is None:
            return None
        moved = [place for old in places for place in (self._copies.of(old), old) if place]
        return [*dict.fromkeys(moved)]


def _call_back(loader: Any, name: str) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        # The loader stays what it was for all who look at it later (inspect, pickle,
        # importlib.resources).
        del loader.exec_module
        execute(module)
        callbacks = _callbacks(name)
        _waiting.pop(name, None)
        for callback in callbacks:
            callback(module)

    loader.exec_module = exec_module


def _callbacks(name: str) -> list[Callback]:
    """What waits for a module, by its name or by that of its kind in any package."""
    return [*_waiting.get(name, ()), *_waiting.get(f"*.{name.rpartition('.')[2]}", ())]


def install(copies: Copies) -> None:
    """Start to lead imports into the copies, and to watch them."""
    sys.meta_path.insert(0, Finder(copies))


def after(name: str, callback: Callback) -> None:
    """Call `callback` with the module `name` once it is imported, at once if it is already.

    A name as `*.clip` means every module of that name that will be imported, in any package.
    """
    module = sys.modules.get(name)
    if module is not None:
        callback(module)
    else:
        _waiting.setdefault(name, []).append(callback)
