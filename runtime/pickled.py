"""The module inside of FSDP1's wrapper, pickled whole: ``torch.save(model.module, path)`` in ``summon_full_params``."""

from __future__ import annotations

import copyreg
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule

from .notes import notes_of

_OURS = (__name__.rpartition(".")[0], "torch.distributed.fsdp")
# What torch's composable functions keep in a module, and `fully_shard` beside it.
_KEPT = ("__composable_api_state_key", "_is_fsdp_managed_module", "_fsdp_use_orig_params")


def as_before_sharding(cls: type[nn.Module]) -> None:
    """Lets modules of ``cls`` that are in a unit, or show one, be pickled and copied without what sharding put into them."""
    if cls not in copyreg.dispatch_table:
        copyreg.pickle(cls, _reduced)


def _reduced(module: nn.Module) -> Any:
    notes = notes_of(module)
    if notes.unit is not None or notes.follows_types:
        module = _clean(module, {})
    return module.__reduce_ex__(2)


def _clean(module: nn.Module, done: dict[nn.Module, nn.Module]) -> nn.Module:
    """``module`` with the same parameters, and without what sharding has put into it. A unit inside stays, and cannot be
    pickled, as FSDP1's could not."""
    if isinstance(module, FSDPModule):
        return module
    if module not in done:
        clean = done[module] = object.__new__(type(module))
        members = {
            name: _own_hooks(value) if name.endswith("_hooks") else value
            for name, value in vars(module).items()
            if not name.startswith(_KEPT)
        }
        object.__setattr__(clean, "__dict__", members)
        children = module._modules.items()
        clean._modules = {n: None if m is None else _clean(m, done) for n, m in children}
    return done[module]


def _own_hooks(hooks: Any) -> Any:
    if not isinstance(hooks, dict):
        return hooks
    kept = {key: hook for key, hook in hooks.items() if not _is_ours(hook)}
    return type(hooks)(kept)


def _is_ours(hook: Any) -> bool:
    function = getattr(hook, "hook", hook)  # torch wraps those that are given the module
    return str(getattr(function, "__module__", "")).startswith(_OURS)
