"""How the rank tests are spread over two workers."""

from __future__ import annotations

from typing import Any

import pytest

# Their tests share runs of programs, which one worker makes once; others go one by one, wherever there is room.
SHARING = ("tests/equivalence/", "tests/verify/", "tests/checkpoints/", "tests/checkpoint_tool/")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadscope``: the tests of a file that share runs stay together."""
    if config.getvalue("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Spread(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file, _, _ = nodeid.partition("::")
            return file if any(folder in file for folder in SHARING) else nodeid

    return Spread(config, log)
