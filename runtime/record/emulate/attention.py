"""`scaled_dot_product_attention`: a choice of CUDA's kernels leaves the one that every device has."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from .. import imports


def install() -> None:
    """Add the plain implementation to every choice."""
    imports.after("torch.nn.attention", _backends)
    cuda: Any = torch.backends.cuda
    if hasattr(cuda, "sdp_kernel"):
        cuda.sdp_kernel = _with_math(cuda.sdp_kernel)


def _backends(attention: Any) -> None:
    original = attention.sdpa_kernel

    @functools.wraps(original)
    def sdpa_kernel(backends: Any, *args: Any, **kwargs: Any) -> Any:
        chosen = list(backends) if isinstance(backends, (list, tuple)) else [backends]
        return original([*chosen, attention.SDPBackend.MATH], *args, **kwargs)

    attention.sdpa_kernel = sdpa_kernel


def _with_math(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def sdp_kernel(*args: Any, **kwargs: Any) -> Any:
        return original(*args[:1], **{**kwargs, "enable_math": True})

    return sdp_kernel
