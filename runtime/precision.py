"""What FSDP1's MixedPrecision does beside choosing the dtypes of parameters and reductions."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from .notes import notes_of
from .torch_private import apply_to_tensors


def run_in_full_precision(module: nn.Module) -> None:
    """Casts the inputs of ``module`` to float32, and its outputs back to the inputs' dtype.

    As FSDP1 for ``MixedPrecision._module_classes_to_ignore`` (``_common_utils.py``,
    ``_override_module_mixed_precision``).
    """
    cast_from: torch.dtype | None = None

    def cast(dtype: torch.dtype, tensor: torch.Tensor) -> torch.Tensor:
        nonlocal cast_from
        if not tensor.is_floating_point() or tensor.dtype == dtype:
            return tensor
        cast_from = tensor.dtype
        return tensor.to(dtype)

    def upcast(module: nn.Module, args: tuple[Any, ...]) -> Any:
        return apply_to_tensors(partial(cast, torch.float32), args)

    def downcast(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        if cast_from is None:
            return output
        return apply_to_tensors(partial(cast, cast_from), output)

    module.register_forward_pre_hook(upcast)
    module.register_forward_hook(downcast)
    notes_of(module).is_exempt = True


def runs_in_full_precision(module: nn.Module) -> bool:
    """Whether :func:`run_in_full_precision` was called for ``module``."""
    return notes_of(module).is_exempt


def cast_anew() -> bool:
    """Lets autocast cast parameters that it has cast before, as it did with FSDP1's; whether it has kept casts so far.

    Those were views of a flat parameter in forward, of which autocast keeps no casts. FSDP2's are leaves: a second
    forward in one region would compute with the casts of the first, which may be older, or made under ``no_grad``.
    """
    keeps = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    return keeps


def autocasts() -> bool:
    """Whether autocast is on, and keeps casts."""
    kinds = {"cpu", getattr(torch.accelerator.current_accelerator(), "type", "cpu")}
    return torch.is_autocast_cache_enabled() and any(map(torch.is_autocast_enabled, kinds))


def cast_buffers(module: nn.Module, dtype: torch.dtype) -> None:
    """Casts the floating-point buffers of ``module`` in place, but not those in state dicts.

    FSDP2 neither shards nor casts buffers; this is FSDP1's ``MixedPrecision.buffer_dtype``.
    """
    for submodule in module.modules():
        cast_own_buffers(submodule, dtype)


def cast_own_buffers(module: nn.Module, dtype: torch.dtype) -> None:
    """:func:`cast_buffers` for the buffers that ``module`` holds itself."""
    original: dict[str, torch.dtype] = {}
    for name, buffer in module.named_buffers(recurse=False):
        if buffer.is_floating_point() and buffer.dtype != dtype:
            original[name] = buffer.dtype
            buffer.data = buffer.to(dtype)
    if not original:
        return

    def restore(module: nn.Module, state_dict: dict[str, Any], prefix: str, metadata: Any) -> None:
        for name, own_dtype in original.items():
            if prefix + name in state_dict:
                state_dict[prefix + name] = state_dict[prefix + name].to(own_dtype)

    module.register_state_dict_post_hook(restore)  # type: ignore[no-untyped-call]
