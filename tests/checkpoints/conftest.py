import pytest

from ..launch import TESTS, Results, launch, results_in

# The root of the repository comes last, as ./fsdp_migrate would hide the installed package.
START = """\
import sys
from pathlib import Path
tests = Path(sys.argv[1])
sys.path += [str(tests), str(tests.parent)]
from tests.checkpoints.ranks import main
main(Path(sys.argv[2]))
"""


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Runs everything once, and gives the results by name and rank."""
    folder = tmp_path_factory.mktemp("ranks")
    failed = launch(folder, "-P", "-c", START, str(TESTS), str(folder))
    if failed:
        pytest.fail(f"the ranks did not come to their end:\n{failed}")
    return results_in(folder)
