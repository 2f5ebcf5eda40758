from __future__ import annotations

from collections.abc import Callable

import pytest

from ..launch import Results, launch, results_in


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Results]:
    """Runs what is for a number of ranks, once, or what that many show again; the results by name and rank."""
    done: dict[tuple[int, bool], tuple[str, Results]] = {}

    def run(ranks: int, again: bool = False) -> Results:
        if (ranks, again) not in done:
            folder = tmp_path_factory.mktemp(f"ranks-{ranks}")
            words = [str(ranks), str(folder), *["again"] * again]
            failed = launch(folder, "-m", "equivalence.ranks", *words)
            done[ranks, again] = failed, results_in(folder)
        failed, found = done[ranks, again]
        if failed:  # once is enough: the other tests need not wait for it again
            pytest.fail(f"{ranks} ranks did not come to their end:\n{failed}")
        return found

    return run
