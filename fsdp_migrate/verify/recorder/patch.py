"""Functions in the place of others, which they are given as their first argument."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Method = Callable[..., Any]


def around(owner: Any, names: str, function: Method) -> None:
    """Have `owner.name(...)` call `function(original, ...)`, for each of the names.

    Nothing is done for a name, or an owner that is None, that this release of torch does not have.
    """
    if owner is None:
        return
    for name in names.split():
        original = getattr(owner, name, None)
        if original is not None:
            setattr(owner, name, _around(original, function))


def _around(original: Method, function: Method) -> Method:
    @functools.wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return function(original, *args, **kwargs)

    return replaced
