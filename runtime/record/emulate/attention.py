"""`scaled_dot_product_attention`: to a choice of CUDA's kernels the one for every device is added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .. import imports
from ..patch import around


def install() -> None:
    """Add the plain implementation to every choice."""
    imports.after("torch.nn.attention", _backends)
    around(
        torch.backends.cuda,
        "sdp_kernel",
        lambda original, *args, **kwargs: original(*args[:1], **{**kwargs, "enable_math": True}),
    )


def _backends(attention: Any) -> None:
    def sdpa_kernel(original: Callable[..., Any], backends: Any, *args: Any, **kwargs: Any) -> Any:
        chosen = list(backends) if isinstance(backends, (list, tuple)) else [backends]
        return original([*chosen, attention.SDPBackend.MATH], *args, **kwargs)

    around(attention, "sdpa_kernel", sdpa_kernel)
