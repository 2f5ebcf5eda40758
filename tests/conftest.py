"""How the rank tests are spread over two workers."""

from __future__ import annotations

from pathlib import Path

import pytest

# Their tests share runs of programs, which one worker makes once; others go one by one, wherever there is room.
SHARING = {Path(__file__).parent / name for name in ("equivalence", "verify")}


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keeps the tests of a file that share runs together, for `--dist loadgroup`."""
    for item in items:
        if item.path.parent in SHARING:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
