"""What FSDP1's MixedPrecision does beside choosing the dtypes of parameters and reductions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch
from torch import nn


def run_in_full_precision(module: nn.Module) -> None:
    """Casts the inputs of ``module`` to float32, and its outputs back to the inputs' dtype.

    FSDP1 does this to every module of ``MixedPrecision._module_classes_to_ignore``, batch norm by
    default (``_common_utils.py``, ``_override_module_mixed_precision``).
    """
    input_dtype: torch.dtype | None = None

    def upcast(module: nn.Module, args: tuple[Any, ...]) -> Any:
        nonlocal input_dtype
        input_dtype = next(
            (dtype for dtype in _dtypes(args) if dtype != torch.float32), input_dtype
        )
        return _cast(args, torch.float32)

    def downcast(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        return output if input_dtype is None else _cast(output, input_dtype)

    module.register_forward_pre_hook(upcast)
    module.register_forward_hook(downcast)


def _dtypes(value: Any) -> Iterator[torch.dtype]:
    """The floating-point dtypes in nested tuples, lists and dicts."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        yield value.dtype
    elif isinstance(value, dict):
        yield from _dtypes(list(value.values()))
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _dtypes(item)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """``value`` with the floating-point tensors in nested tuples, lists and dicts cast."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.to(dtype)
    if type(value) is dict:
        return {key: _cast(item, dtype) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_cast(item, dtype) for item in value)
    return value


def cast_buffers(
    module: nn.Module,
    dtype: torch.dtype,
    ignored_modules: Collection[nn.Module] = (),
    keep_classes: Iterable[type[nn.Module]] = (),
) -> None:
    """Casts the floating-point buffers of ``module`` in place, but not those in state dicts.

    FSDP2 neither shards nor casts buffers; this is FSDP1's ``MixedPrecision.buffer_dtype``. Buffers
    of ``ignored_modules`` and of modules of ``keep_classes`` stay as they are: FSDP1 keeps those of
    batch norm when it is given a wrap policy.
    """
    keep = tuple(keep_classes)
    for submodule in module.modules():
        if submodule not in ignored_modules and not isinstance(submodule, keep):
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
