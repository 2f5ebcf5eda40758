"""What the runtime's module of this name says of itself, without what it does."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from torch import nn

_RECORDS: list[dict[str, Any]] = []


@contextlib.contextmanager
def like_fsdp1(
    model: nn.Module,
    *,
    zero_gradients: bool = True,
    whole_state_dicts: bool = True,
    class_names: bool = True,
    interface: bool = True,
) -> Iterator[None]:
    given = {name: value for name, value in locals().items() if name != "model"}
    caller = sys._getframe(2)
    _RECORDS.append(
        {
            "place": f"{caller.f_code.co_filename}:{caller.f_lineno}",
            "switched_off": [name for name, on in given.items() if on is False],
            "acted": {},
        }
    )
    yield


def did(place: int, quirk: str, count: int, *examples: str) -> None:
    _RECORDS[place]["acted"][quirk] = {"count": count, "examples": [*examples]}


def records() -> list[dict[str, Any]]:
    return _RECORDS
