from pathlib import Path

import pytest

from ..launch import TESTS, Results, launch, results_in

# The root of the repository comes last, as ./fsdp_migrate would hide the installed package.
START = """\
import sys
from pathlib import Path
tests = Path(sys.argv[1])
sys.path += [str(tests), str(tests.parent)]
from tests.checkpoints.ranks import main
main(Path(sys.argv[2]), {*sys.argv[3:]})
"""


@pytest.fixture(scope="session")
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Runs once what the selected tests look at, and gives the results by name and rank."""
    own = [item for item in request.session.items if item.path.parent == Path(__file__).parent]
    given = [item.callspec.params for item in own if isinstance(item, pytest.Function)]
    names = {each[kind] for each in given for kind in ("way", "fault", "check") if kind in each}
    folder = tmp_path_factory.mktemp("ranks")
    failed = launch(folder, "-P", "-c", START, str(TESTS), str(folder), *names)
    if failed:
        pytest.fail(f"the ranks did not come to their end:\n{failed}")
    return results_in(folder)
