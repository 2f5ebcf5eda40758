"""The name of the wrapped module, which is in the names of parameters and in no state dict."""

from __future__ import annotations

from typing import Any

from torch import nn

from .optimizer_keys import as_saved

WRAPPED = "_fsdp_wrapped_module"
PREFIX = f"{WRAPPED}."


def leave_out_of_state_dicts(unit: nn.Module) -> None:
    """Gives ``state_dict()`` and ``load_state_dict()`` of ``unit`` the names of the wrapped module."""
    unit.register_state_dict_post_hook(_without_prefix)  # type: ignore[no-untyped-call]
    unit.register_load_state_dict_pre_hook(_with_prefix)  # type: ignore[no-untyped-call]
    unit.register_load_state_dict_post_hook(_clean_keys)  # type: ignore[no-untyped-call]


def _without_prefix(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    _rename(state, prefix + PREFIX, prefix)


def _with_prefix(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    _rename(state, prefix, prefix + PREFIX)


def _clean_keys(module: nn.Module, incompatible: Any) -> None:
    for keys in incompatible:
        keys[:] = [as_saved(key) for key in keys]


def _rename(state: dict[str, Any], old: str, new: str) -> None:
    for key in [key for key in state if key.startswith(old)]:
        state[new + key.removeprefix(old)] = state.pop(key)
