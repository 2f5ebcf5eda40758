"""The proof for the bundled programs: original and migrated train the same, in both forms, with and without CUDA."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.verify import run as running
from fsdp_migrate.verify import values
from fsdp_migrate.verify.folders import Program, copy
from fsdp_migrate.verify.judge import judge
from fsdp_migrate.verify.migrated import migrate
from fsdp_migrate.verify.options import Options, Recording
from fsdp_migrate.verify.records import Run
from fsdp_migrate.verify.verdict import Verdict

from .bundled import FIXTURES, RUNS, program_texts

pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("forked")]

Settings = dict[str, Any]
Trained = Callable[[str, Settings, bool, str], Verdict]

# The bridge has behaviours, checkpoints and compiled programs of its own in every run.
FORMS = (pytest.param("bridge", marks=pytest.mark.thorough), "auto")
# Cut short: what the optimizer and the second half do shows in few steps. The runs of `make thorough` go on to their end.
STEPS = ("hybrid", "indirect", "meta_init", "order", "rank0_loading", "strategies", "transformer")
SHORTER = {
    **{case: ["--steps", "5"] for case in STEPS},
    "resume": ["--steps", "6"],
    "precision": ["--epochs", "1"],
    "finetune": ["--num_epochs", "1", "--train_samples", "48", "--eval_samples", "16"],
    "mnist": ["--epochs", "1", "--train-size", "256"],
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Train an original, once for both forms, and a form of it, and compare them. Forms with the same text train once."""
    originals: dict[str, tuple[Run, Path | None]] = {}
    forms: dict[tuple[str, ...], Run] = {}

    def prepared(case: str, settings: Settings, cuda: bool, form: str, folder: Path) -> Program:
        name = "migrated" if form else "original"
        script = FIXTURES / case / "original" / settings["entry"]
        program = copy(name, script, folder / "copy")
        if cuda:
            take_cuda_for_granted(program)
        if form:
            migrate(program.root, form)
        return program

    def run(program: Program, case: str, settings: Settings, cuda: bool, begun: Path | None) -> Run:
        folder = tmp_path_factory.mktemp(case)
        ranks, launcher = settings["ranks"], settings["launcher"]
        how = Recording(canonical=True, emulate=ranks if cuda else 0, start=begun)
        whole = settings.get("thorough", False)
        arguments = [*settings["arguments"], *([] if whole else SHORTER[case])]
        options = Options(
            launcher=launcher, ranks=ranks, arguments=arguments, device="cpu", timeout=120
        )
        return running.run_program(program, folder, options, how)

    def do(case: str, settings: Settings, cuda: bool, form: str) -> Verdict:
        key = f"{case} {settings['arguments']} {cuda}"
        if key not in originals:
            folder = tmp_path_factory.mktemp(case)
            one = run(prepared(case, settings, cuda, "", folder), case, settings, cuda, None)
            originals[key] = one, values.first(one).save(folder / "start.pt")
        one, begun = originals[key]
        program = prepared(case, settings, cuda, form, tmp_path_factory.mktemp(case))
        texts = (key, *program_texts(program.root))
        if texts not in forms:
            forms[texts] = run(program, case, settings, cuda, begun)
        return judge(one, forms[texts], settings["tolerance"], Recording(canonical=True))

    return do


def take_cuda_for_granted(program: Program) -> None:
    """Make a program its own twin for CUDA: one that does not ask whether there is any."""
    asked = 0
    for path in program.root.rglob("*.py"):
        text = path.read_text("utf-8")
        asked += text.count("torch.cuda.is_available()")
        path.write_text(text.replace("torch.cuda.is_available()", "True"), "utf-8")
    assert asked


# tests/behaviour and tests/verify show the same of these strategies, types, models and calls.
ELSEWHERE = {
    "hybrid",
    "indirect",
    "mnist",
    "precision --precision bf16",
    "rank0_loading --load rank0",
    "strategies --strategy none",
}

# FSDP1 itself fails under dynamo on a CPU (2.13); where CUDA is emulated, nothing is compiled.
COMPILED = [run for run in RUNS if "--compile" in run.values[1]["arguments"]]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("case", "settings"),
    [
        pytest.param(
            *run.values, id=run.id, marks=pytest.mark.thorough if run.id in ELSEWHERE else run.marks
        )
        for run in RUNS
        if run not in COMPILED
    ],
)
def test_original_and_migrated_train_the_same(
    case: str, settings: Settings, form: str, trained: Trained
) -> None:
    assert_the_same(trained(case, settings, False, form), settings)


# What CUDA, which is emulated, does to a program is shown in each run by tests/verify/test_emulate.py.
@pytest.mark.thorough
@pytest.mark.parametrize("form", ["bridge", "auto"])
@pytest.mark.parametrize(("case", "settings"), RUNS)
def test_twins_for_cuda_train_the_same(
    case: str, settings: Settings, form: str, trained: Trained
) -> None:
    assert_the_same(trained(case, settings, True, form), settings)


def assert_the_same(verdict: Verdict, settings: Settings) -> None:
    assert verdict.equal, verdict.line()
    assert len(verdict.original.ranks) == settings["ranks"]
    assert len(verdict.original.ranks[0].losses) >= 4
    assert all(len(set(rank.losses)) > 1 for rank in verdict.original.ranks), "the loss moves"
    if settings["tolerance"] == 0:
        assert verdict.bitwise, verdict.line()
        compared = settings.get("parameters_compared", True)
        assert verdict.max_abs_param_diff == (0 if compared else None)
