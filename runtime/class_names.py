"""Names of classes, which ``fully_shard`` replaces."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

from .torch_private import units_of

Model = TypeVar("Model", bound=nn.Module)


def keep_class_names(model: Model) -> Model:
    """Has the classes of sharded modules printed as they were, ``str(type(unit))``. Returns ``model``.

    transformers finds by it what a model can record (``utils/output_capturing.py``): after ``fully_shard`` alone,
    ``output_hidden_states=True`` gives None. ``type(unit).__name__`` stays FSDP2's.
    """
    for unit in units_of(model):
        cls = type(unit)
        before = cls.__mro__[2]  # the class itself, FSDPModule, the class that was sharded
        cls.__module__, cls.__qualname__ = before.__module__, before.__qualname__
    return model
