from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..launch import Results, launch, results_in


def asked_for(items: list[pytest.Item]) -> Iterator[str]:
    """What the tests that were selected look at, by the names that `behaviour.ranks` takes."""
    for item in items:
        if item.path.parent == Path(__file__).parent and isinstance(item, pytest.Function):
            given = item.callspec.params if hasattr(item, "callspec") else {}
            if "behaviour" in given:
                yield f"{given['behaviour'].name}:{given['form']}"
            yield from (f"{kind}.{given[kind]}" for kind in ("check", "fault") if kind in given)


@pytest.fixture(scope="session")
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], Results]:
    """Runs what is asked for and takes a number of ranks, once, and gives the results by name and rank."""
    names = [*asked_for(request.session.items)]
    done: dict[int, tuple[str, Results]] = {}

    def run(ranks: int) -> Results:
        if ranks not in done:
            folder = tmp_path_factory.mktemp(f"behaviours-{ranks}")
            failed = launch(folder, "-m", "behaviour.ranks", str(ranks), str(folder), *names)
            done[ranks] = failed, results_in(folder)
        failed, found = done[ranks]
        if failed:  # once is enough: the other tests need not wait for it again
            pytest.fail(f"{ranks} ranks did not come to their end:\n{failed}")
        return found

    return run
