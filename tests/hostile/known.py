"""What is known to go wrong, by the test's id. A test that begins to pass fails here: take its line away then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

KNOWN: dict[str, str] = {
    "form feed at the line's start": "refused: LibCST drops a form feed in front of code",
    "comment inside a chain of attributes": "refused: the comments of an attribute that goes away",
    "comment inside a method that is not called": "refused: the comments of an attribute that goes away",
    "context in parentheses with comments": "refused: the comments of the parentheses",
}


def params(table: Mapping[str, object]) -> list[Any]:
    """The rows of a table; those that are known to go wrong are expected to."""
    return [
        pytest.param(
            value,
            id=name,
            marks=[pytest.mark.xfail(strict=True, reason=KNOWN[name])] if name in KNOWN else [],
        )
        for name, value in table.items()
    ]
