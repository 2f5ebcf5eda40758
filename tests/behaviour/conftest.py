from collections.abc import Callable

import pytest

from ..launch import Results, launch, results_in


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Results]:
    """Runs every behaviour that takes a number of ranks, once, and gives the results by name and rank."""
    done: dict[int, tuple[str, Results]] = {}

    def run(ranks: int) -> Results:
        if ranks not in done:
            folder = tmp_path_factory.mktemp(f"behaviours-{ranks}")
            failed = launch(folder, "-m", "behaviour.ranks", str(ranks), str(folder))
            done[ranks] = failed, results_in(folder)
        failed, found = done[ranks]
        if failed:  # once is enough: the other tests need not wait for it again
            pytest.fail(f"{ranks} ranks did not come to their end:\n{failed}")
        return found

    return run
