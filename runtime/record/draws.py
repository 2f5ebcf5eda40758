"""Which tensors a program filled with random numbers, up to the moment that its model is called.

Numbers drawn for a sharded tensor are not those that a whole one would have got: each rank draws
for its shard. A program that initialises its model after `fully_shard` cannot start where FSDP1
started, and that is no fault.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from .patch import around

_METHODS = "normal_ uniform_ random_ bernoulli_ exponential_ cauchy_ geometric_ log_normal_"


class Draws:
    """Watches the methods that fill a tensor; of those that return a new one, the use is not known."""

    def __init__(self) -> None:
        # Held, so that no other tensor gets the same memory: a model has its shards anyway.
        self._shards: dict[int, torch.Tensor] = {}
        # Known by identity, and not held: these may be whole models.
        self._whole: dict[int, weakref.ref[torch.Tensor]] = {}
        self._originals = {name: getattr(torch.Tensor, name) for name in _METHODS.split()}
        around(torch.Tensor, _METHODS, self._fill)

    def close(self) -> None:
        """Watch no longer."""
        for name, original in self._originals.items():
            setattr(torch.Tensor, name, original)
        self._shards.clear()
        self._whole.clear()

    @property
    def any_shard(self) -> bool:
        """Whether a distributed tensor was filled."""
        return bool(self._shards)

    def shard(self, local: torch.Tensor) -> bool:
        """Whether this part of a distributed tensor was filled."""
        return local.data_ptr() in self._shards

    def whole(self, tensor: torch.Tensor) -> bool:
        """Whether this tensor was filled."""
        known = self._whole.get(id(tensor))
        return known is not None and known() is tensor

    def _fill(self, original: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        local = getattr(tensor, "_local_tensor", None)
        if local is None:
            self._whole[id(tensor)] = weakref.ref(tensor)
        elif not local.is_meta and local.numel():
            self._shards[local.data_ptr()] = local
        return original(tensor, *args, **kwargs)
