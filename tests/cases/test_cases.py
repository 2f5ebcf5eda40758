"""Programs in the styles of real code print the same before and after their migration.

They were not written for this tool: trainer classes and registries, EMA copies, LoRA, names with prefixes.
What shows one construct stands in tests/behaviour, and what shows a whole diff in fixtures/. Of what they print, the
lines that begin with ``R`` are compared, rank by rank. They ask for CUDA and NCCL, which `verify` emulates.
"""

import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fsdp_migrate.engine import analyse
from fsdp_migrate.findings import Action
from fsdp_migrate.settings import Options as Analysis
from fsdp_migrate.verify.errors import ProgramFailed
from fsdp_migrate.verify.folders import copy
from fsdp_migrate.verify.migrated import migrate
from fsdp_migrate.verify.options import Options, Recording
from fsdp_migrate.verify.run import run_program

from ..bundled import program_texts

PROGRAMS = Path(__file__).parent / "programs"
# the model and the data of those that have none of their own
SHARED = Path(__file__).parent / "shared"

# One of a kind each; the others are for `make thorough`.
CHOSEN = {
    "clamped",
    "ema-in-place",
    "guards-of-modules",
    "models-in-a-dataclass",
    "rates-by-names",
    "trainer-alone",
}

# What differs after the migration, and the rule that reports it. FSDP1 showed the program its shards where FSDP2 shows
# parameters whole: one clips by the norm over all ranks and not by each rank's own, one takes the norm of each parameter,
# and one prints whether a parameter is empty on this rank.
DIFFERENT = {
    "clipping-optimizer": "FSDP302",
    "own-optimizers lars": "FSDP507",
    "clamped": "FSDP507",
}

# What differs, or ends with an error, in torch's form, and words of the finding at the line that says so.
ASSUMED = {
    "ema-in-place": "Write `p.data.copy_(x)`",
    "rates-by-names": "ooks for the name of FSDP1's wrapper",
    "models-in-a-dataclass": "but no FSDP2 model is an instance of it",
    "clipping-optimizer": "gradients are clipped more than before",
    "tests-of-classes clsname": "The class of a sharded module has another name",
    "tests-of-classes type": "ompares the exact class",
    "own-optimizers lars": "computes over whole parameters",
    "clamped": "computes over whole parameters",
}

pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("forked")]

Results = Callable[..., list[list[str]]]


def cases() -> Iterator[object]:
    """Every program with every line of its ``ARGS``."""
    for folder in sorted(PROGRAMS.iterdir()):
        marks = [] if folder.name in CHOSEN else [pytest.mark.thorough]
        for line in (_setting(folder, "ARGS") or "\n").splitlines():
            name = f"{folder.name} {line}".strip()
            yield pytest.param(folder.name, shlex.split(line), id=name, marks=marks)


def write_program(case: str, folder: Path) -> Path:
    """A program with all its modules, and its first file."""
    shutil.copytree(SHARED, folder)
    shutil.copytree(PROGRAMS / case, folder, dirs_exist_ok=True)
    return folder / "train.py"


def _setting(folder: Path, name: str, default: str = "") -> str:
    file = folder / name
    return file.read_text("utf-8") if file.exists() else default


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The lines with results that each rank prints, of a case as it is or in one of the forms. The same text runs once."""
    done: dict[tuple[str, ...], list[list[str]]] = {}

    def run(case: str, arguments: list[str], form: str = "") -> list[list[str]]:
        folder = tmp_path_factory.mktemp(case)
        name = "migrated" if form else "original"
        script = write_program(case, folder / "program")
        program = copy(name, script, folder / "copy")
        if form:
            migrate(program.root, form)
        key = (case, *arguments, *program_texts(program.root))
        if key in done:
            return done[key]
        ranks = int(_setting(PROGRAMS / case, "NPROC", "2"))
        recording = Recording(canonical=True, emulate=ranks)
        how = Options(launcher="torchrun", ranks=ranks, arguments=arguments, device="cpu")
        ended = run_program(program, folder, how, recording)
        printed = [rank.output.splitlines() for rank in ended.ranks]
        done[key] = [[line for line in lines if line.startswith("R ")] for lines in printed]
        return done[key]

    return run


@pytest.mark.parametrize("form", [pytest.param("bridge", marks=pytest.mark.thorough), "auto"])
@pytest.mark.parametrize(("case", "arguments"), [*cases()])
def test_a_case_prints_the_same(
    case: str, arguments: list[str], form: str, results: Results
) -> None:
    expected = results(case, arguments)
    assert all(expected), "every rank prints results"
    found = results(case, arguments, form)
    if " ".join([case, *arguments]) in DIFFERENT:
        assert found != expected, "it is the same now: DIFFERENT need not name it"
    else:
        assert found == expected


@pytest.mark.thorough
@pytest.mark.parametrize(("case", "arguments"), [*cases()])
def test_what_differs_in_torchs_form_was_assumed(
    case: str, arguments: list[str], results: Results, tmp_path: Path
) -> None:
    name = " ".join([case, *arguments])
    try:
        found = results(case, arguments, "torch")
    except ProgramFailed:
        found = []
    assert (found != results(case, arguments)) == (name in ASSUMED)
    if name in ASSUMED:
        files = write_program(case, tmp_path / "program").parent.rglob("*.py")
        findings = analyse([*files], Analysis(form="torch")).findings
        assert any(ASSUMED[name] in finding.message for finding in findings)


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_is_reported(name: str, tmp_path: Path) -> None:
    files = [*write_program(name.split()[0], tmp_path / "program").parent.rglob("*.py")]
    found = {finding.code: finding.action for finding in analyse(files).findings}
    assert found.get(DIFFERENT[name]) is Action.MANUAL
