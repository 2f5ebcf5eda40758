"""Run a function right after a module has been imported, without importing it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Callback = Callable[[Any], None]

_waiting: dict[str, list[Callback]] = {}


class _Watcher(MetaPathFinder):
    """Finds nothing itself: asks the other finders, and has the loader call back when it is done."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not _waited_for(fullname):
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(fullname, path, target)
            if spec is not None and spec.loader is not None:
                _call_back(spec.loader, fullname)
                return spec
        return None


def _call_back(loader: Any, name: str) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        # The loader stays what it was for all who look at it later (inspect, pickle,
        # importlib.resources).
        del loader.exec_module
        execute(module)
        for callback in [*_waiting.pop(name, []), *_waiting.get(_any_package(name), [])]:
            callback(module)

    loader.exec_module = exec_module


def _waited_for(name: str) -> bool:
    return name in _waiting or _any_package(name) in _waiting


def _any_package(name: str) -> str:
    return f"*.{name.rpartition('.')[2]}"


def install() -> None:
    """Start to watch imports."""
    sys.meta_path.insert(0, _Watcher())


def after(name: str, callback: Callback) -> None:
    """Call `callback` with the module `name` once it is imported, at once if it is already.

    A name as `*.clip` means every module of that name that will be imported, in any package.
    """
    module = sys.modules.get(name)
    if module is not None:
        callback(module)
    else:
        _waiting.setdefault(name, []).append(callback)
