"""``wrap`` annotations: parts of a model that are sharded where the model is built, if at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from torch import nn

_wrapper: ContextVar[Callable[..., nn.Module] | None] = ContextVar("wrapper", default=None)


@contextmanager
def enable_wrap(*, wrapper_cls: Callable[..., nn.Module], **wrapper_kwargs: Any) -> Iterator[None]:
    """Inside, :func:`wrap` calls ``wrapper_cls(module, **wrapper_kwargs)``, say ``shard_model``.

    Raises NotImplementedError inside another ``enable_wrap``, as torch's does
    (``torch/distributed/fsdp/wrap.py``).
    """
    if _wrapper.get() is not None:
        raise NotImplementedError("enable_wrap does not nest: pass the other arguments to wrap()")
    token = _wrapper.set(partial(wrapper_cls, **wrapper_kwargs))
    try:
        yield
    finally:
        _wrapper.reset(token)


def wrap(module: nn.Module, **wrap_overrides: Any) -> nn.Module:
    """``module`` wrapped as :func:`enable_wrap` says; outside of it, ``module`` itself."""
    wrapper = _wrapper.get()
    return module if wrapper is None else wrapper(module, **wrap_overrides)
