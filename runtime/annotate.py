"""``wrap`` annotations: parts of a model that are sharded where the model is built, if at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule

from .shard import shard_model

_wrapper: ContextVar[partial[nn.Module] | None] = ContextVar("wrapper", default=None)


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
    """``module`` wrapped as :func:`enable_wrap` says; outside of it, ``module`` itself.

    A module that is sharded already is returned as it is: a second wrapper of FSDP1's held no
    parameters and changed no number. Arguments of its own, or a policy, are given to
    ``shard_model``, which refuses them there.
    """
    wrapper = _wrapper.get()
    if wrapper is None:
        return module
    has_policy = wrapper.keywords.get("auto_wrap_policy") is not None
    sharded = wrapper.func is shard_model and isinstance(module, FSDPModule)
    if sharded and not wrap_overrides and not has_policy:
        return module
    return wrapper(module, **wrap_overrides)
