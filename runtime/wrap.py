"""Wrap policies, and annotations of modules to wrap: ``torch/distributed/fsdp/wrap.py``.

A policy is either an object with ``_run_policy``, which picks modules by looking at the whole tree, or a function
that is asked twice about a module: ``recurse=True``: look at its children? ``recurse=False``: make it a unit, given
that ``nonwrapped_numel`` parameter elements of it are not in a unit yet?
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from torch import nn

__all__ = [
    "CustomPolicy", "ModuleWrapPolicy", "always_wrap_policy", "enable_wrap",
    "lambda_auto_wrap_policy", "size_based_auto_wrap_policy", "transformer_auto_wrap_policy",
    "wrap",
]  # fmt: skip

UnitKwargs = dict[nn.Module, dict[str, Any]]


class _Policy(ABC):
    """What policies that look at the whole tree derive from."""

    @abstractmethod
    def _run_policy(
        self, root_module: nn.Module, ignored_modules: set[nn.Module], root_kwargs: dict[str, Any]
    ) -> UnitKwargs:
        """The modules to wrap, each with the constructor's arguments for it."""


class ModuleWrapPolicy(_Policy):
    """Every module of the given classes is a unit."""

    def __init__(self, module_classes: Iterable[type[nn.Module]]) -> None:
        self._module_classes = set(module_classes)

    def _run_policy(
        self, root_module: nn.Module, ignored_modules: set[nn.Module], root_kwargs: dict[str, Any]
    ) -> UnitKwargs:
        classes = tuple(self._module_classes)
        return {
            module: copy.copy(root_kwargs)
            for module in root_module.modules()
            if module not in ignored_modules and isinstance(module, classes)
        }

    def __call__(self, module: nn.Module, recurse: bool, *args: Any, **kwargs: Any) -> bool:
        return recurse or isinstance(module, tuple(self._module_classes))

    def __repr__(self) -> str:
        return f"{super().__repr__()}({self._module_classes})"


class CustomPolicy(_Policy):
    """A function decides: False (no unit), True (a unit like the root) or a dict of arguments that differ for it."""

    def __init__(self, lambda_fn: Callable[[nn.Module], bool | dict[str, Any]]) -> None:
        self._lambda_fn = lambda_fn

    def _run_policy(
        self, root_module: nn.Module, ignored_modules: set[nn.Module], root_kwargs: dict[str, Any]
    ) -> UnitKwargs:
        units: UnitKwargs = {}
        for module in root_module.modules():
            if module in ignored_modules:
                continue
            answer = self._lambda_fn(module)
            if not isinstance(answer, (dict, bool)):
                raise ValueError(
                    "The lambda_fn passed to CustomPolicy should return False/True or a kwarg "
                    f"dict, but it returned {answer}"
                )
            if answer:
                units[module] = {**root_kwargs, **(answer if isinstance(answer, dict) else {})}
        return units


def always_wrap_policy(*args: Any, **kwargs: Any) -> bool:
    """Every module is a unit."""
    return True


def transformer_auto_wrap_policy(
    module: nn.Module,
    recurse: bool,
    nonwrapped_numel: int,
    transformer_layer_cls: Iterable[type[nn.Module]],
) -> bool:
    """Every module of the given classes is a unit."""
    return recurse or isinstance(module, tuple(transformer_layer_cls))


def _module_wrap_policy(
    module: nn.Module,
    recurse: bool,
    nonwrapped_numel: int,
    module_classes: Iterable[type[nn.Module]],
) -> bool:
    """:class:`ModuleWrapPolicy` as a function."""
    return recurse or isinstance(module, tuple(module_classes))


def lambda_auto_wrap_policy(
    module: nn.Module, recurse: bool, nonwrapped_numel: int, lambda_fn: Callable[[nn.Module], bool]
) -> bool:
    """Every module for which ``lambda_fn`` is true is a unit."""
    return recurse or lambda_fn(module)


def _or_policy(
    module: nn.Module, recurse: bool, nonwrapped_numel: int, policies: Sequence[Callable[..., bool]]
) -> bool:
    """A module is a unit if any of the policies says so."""
    return any(
        policy(module=module, recurse=recurse, nonwrapped_numel=nonwrapped_numel)
        for policy in policies
    )


def size_based_auto_wrap_policy(
    module: nn.Module,
    recurse: bool,
    nonwrapped_numel: int,
    min_num_params: int = int(1e8),
    force_leaf_modules: set[type[nn.Module]] | None = None,
    exclude_wrap_modules: set[type[nn.Module]] | None = None,
) -> bool:
    """A module is a unit once it holds ``min_num_params`` parameter elements that are in no unit yet.

    The children of ``force_leaf_modules`` are never looked at, ``exclude_wrap_modules`` are never units. Their
    defaults are the attributes of those names of this function, which programs may change.
    """
    attributes = vars(size_based_auto_wrap_policy)
    if force_leaf_modules is None:
        force_leaf_modules = attributes["FORCE_LEAF_MODULES"]
    if exclude_wrap_modules is None:
        exclude_wrap_modules = attributes["EXCLUDE_WRAP_MODULES"]
    refused = force_leaf_modules if recurse else exclude_wrap_modules
    return nonwrapped_numel >= min_num_params and not isinstance(module, tuple(refused))


vars(size_based_auto_wrap_policy).update(
    FORCE_LEAF_MODULES={nn.MultiheadAttention}, EXCLUDE_WRAP_MODULES={nn.ModuleList, nn.ModuleDict}
)


# The name of torch 1.11.
default_auto_wrap_policy = size_based_auto_wrap_policy

_wrapper: ContextVar[partial[nn.Module] | None] = ContextVar("wrapper", default=None)


@contextmanager
def enable_wrap(*, wrapper_cls: Callable[..., nn.Module], **wrapper_kwargs: Any) -> Iterator[None]:
    """Inside, :func:`wrap` calls ``wrapper_cls(module, **wrapper_kwargs)``.

    Raises NotImplementedError inside another ``enable_wrap``, as torch's does.
    """
    if _wrapper.get() is not None:
        raise NotImplementedError(
            "You are already within an autowrap context and we currently do not supported nested "
            "autowrap."
        )
    token = _wrapper.set(partial(wrapper_cls, **wrapper_kwargs))
    try:
        yield
    finally:
        _wrapper.reset(token)


def wrap(module: nn.Module, **wrap_overrides: Any) -> nn.Module:
    """``module`` wrapped as :func:`enable_wrap` says; outside of it, ``module`` itself."""
    wrapper = _wrapper.get()
    return module if wrapper is None else wrapper(module, **wrap_overrides)
