"""FSDP1's names where the constructor shards a model in place, as a migrated program does it."""

from contextlib import nullcontext
from typing import Any

from torch import nn
from torch.distributed.fsdp import fully_shard

from fsdp_migrate import runtime
from fsdp_migrate.runtime import like_fsdp1, units

_BRIDGE = runtime.FullyShardedDataParallel


class _Constructor(type(_BRIDGE)):  # type: ignore[misc]
    def __call__(cls, module: nn.Module, *args: Any, **options: Any) -> nn.Module:
        if cls not in (InPlace, FullyShardAlone):
            raise TypeError("in place there is no wrapper to derive from")
        with like_fsdp1(module) if cls is InPlace else nullcontext():
            for unit, unit_options in units(module, *args, **options):
                fully_shard(unit, **unit_options)
        return module

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _BRIDGE)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _BRIDGE)


class InPlace(_BRIDGE, metaclass=_Constructor):
    """Its methods are the runtime's; a call shards a model and returns it."""


class FullyShardAlone(InPlace):
    """As ``--form torch`` has it: FSDP1's partition and options, FSDP2's behaviour."""


class Api:
    """A package with FSDP1's names, and the class that is its FSDP."""

    def __init__(self, package: Any, constructor: Any = None) -> None:
        self.package = package
        self.FSDP = self.FullyShardedDataParallel = constructor or package.FullyShardedDataParallel

    def __getattr__(self, name: str) -> Any:
        return getattr(self.package, name)


BRIDGE = Api(runtime)
IN_PLACE = Api(runtime, InPlace)
ALONE = Api(runtime, FullyShardAlone)
