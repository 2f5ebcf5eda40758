from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ..launch import Results, launch, results_in
from .programs import migrate


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the programs as the codemod leaves them."""
    folder = tmp_path_factory.mktemp("migrated")
    for name, source in migrate(tmp_path_factory.mktemp("programs")).items():
        (folder / f"{name}.py").write_text(source)
    return folder


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> Callable[[int], Results]:
    """Runs everything under a number of ranks, once, and gives the results by name and rank."""
    done: dict[int, tuple[str, Results]] = {}

    def run(ranks: int) -> Results:
        if ranks not in done:
            folder = tmp_path_factory.mktemp(f"ranks-{ranks}")
            arguments = (str(ranks), str(folder), str(migrated))
            failed = launch(folder, "-m", "equivalence.ranks", *arguments)
            done[ranks] = failed, results_in(folder)
        failed, found = done[ranks]
        if failed:  # once is enough: the other tests need not wait for it again
            pytest.fail(f"{ranks} ranks did not come to their end:\n{failed}")
        return found

    return run
