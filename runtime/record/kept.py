"""The models that a program keeps beside what its optimizers train: moving averages, teachers, references.

Their last values are read when the process ends, and by then the program may have left the function that held them.
So the models that are alive at a step are held, until a later step finds another set of models.
"""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

from torch import nn

from . import layouts
from .census import Census
from .patch import around


class Kept:
    """The live models of this process, in the order in which they were made.

    It is the same on every rank and in both programs, and tells apart models that have the same names, such as two
    averages.
    """

    def __init__(self) -> None:
        self._modules: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()
        self._made = self._seen = 0
        self._models: list[nn.Module] = []
        # The second is for a copy, or a module from a file.
        around(nn.Module, "__init__ __setstate__", self._note)

    def look(self) -> None:
        """Hold the models that are alive now, if a module was made since the last look."""
        if self._made == self._seen:
            return
        self._seen = self._made
        before = {id(model) for model in self._models}
        self._models.clear()
        if {id(model) for model in self._alive()} != before:
            gc.collect()  # units are in cycles, so that those that were dropped may still be there
        self._models = self._alive()

    def census(self, trained: Census, rank: int, processes: int) -> Census:
        """What this process holds of these models, without what the optimizers train."""
        found, classes = Census(), Counter[str]()
        for model in self._models:
            parameters = [p for p in layouts.members(model) if not trained.knows(p)]
            if not parameters:
                continue
            name = trained.name(model)
            if name is None:
                name = _class(model)
                classes[name] += 1
                name += f" {classes[name]}" if classes[name] > 1 else ""
            found.add(name, model, parameters, rank, processes)
        return found

    def _alive(self) -> list[nn.Module]:
        modules = {id(module): module for module in self._modules.values()}
        children = {id(child) for m in modules.values() for child in m._modules.values()}
        roots = [module for identity, module in modules.items() if identity not in children]
        return [root for root in roots if any(True for _ in layouts.members(root))]

    def _note(
        self, original: Callable[..., None], module: nn.Module, *args: Any, **kwargs: Any
    ) -> None:
        original(module, *args, **kwargs)
        self._made += 1
        self._modules[self._made] = module


def _class(model: nn.Module) -> str:
    """The name of a model's own class, without wrappers and without the class that FSDP2 makes."""
    while wrapped := [m for name, m in model._modules.items() if name in layouts.WRAPPERS and m]:
        model = wrapped[0]
    classes = type(model).__mro__
    return (classes[2] if classes[1].__name__ == "FSDPModule" else classes[0]).__name__
