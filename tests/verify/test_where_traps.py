"""Mistakes in programs that are not this small: each is planted in the migrated program, and its line is named."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from fsdp_migrate.verify.folders import Program, copy
from fsdp_migrate.verify.migrated import migrate
from fsdp_migrate.verify.options import Options, Recording
from fsdp_migrate.verify.where.lines import Line
from fsdp_migrate.verify.where.runs import look

from ..bundled import CASES as FIXTURE_CASES
from ..bundled import FIXTURES
from ..test_fixtures_verify import SHORTER
from .test_traps import ACCUMULATING, CLIPPING, FAULTS, PROGRAMS

pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("forked")]


def plant(program: Program, file: str, right: str, wrong: str) -> None:
    """Change what is once in a file."""
    path = program.root / file
    text = path.read_text("utf-8")
    assert text.count(right) == 1, f"{right!r} in\n{text}"
    path.write_text(text.replace(right, wrong), "utf-8")


def lines(before: Program, after: Program, folder: Path, how: Options) -> list[Line]:
    recording = Recording(canonical=True, lines=100)

    def again() -> Program:
        return copy("original", before.source / before.script.name, folder / "again" / "copy")

    return look(before, after, again, folder, how, (recording, recording))


@dataclass(frozen=True)
class Mistake:
    """What is changed in a file of a migrated fixture; the line is that of the original with the same text."""

    case: str
    file: str
    right: str
    wrong: str


MISTAKES = (
    Mistake("transformer", "train.py", "micro == args.accumulate - 1", "micro == 0"),
    Mistake("mnist", "mnist.py", "gamma=args.gamma)", "gamma=args.gamma * 0.5)"),
    Mistake("finetune", "finetuning.py", "lr=train_config.lr,", "lr=train_config.lr * 2,"),
    Mistake("resume", "train.py", "manual_seed(1000 * step + rank)", "manual_seed(1000 * step)"),
    Mistake("precision", "train.py", "momentum=0.9,", "momentum=0.8,"),
)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.case)
@pytest.mark.thorough
def test_a_mistake_in_a_bundled_program_is_named(mistake: Mistake, tmp_path: Path) -> None:
    settings = FIXTURE_CASES[mistake.case]
    settings = {**settings, **settings.get("runs", [{}])[0]}
    script = FIXTURES / mistake.case / "original" / settings["entry"]
    before = copy("original", script, tmp_path / "original" / "copy")
    after = copy("migrated", script, tmp_path / "migrated" / "copy")
    migrate(after.root, "auto")
    plant(after, mistake.file, mistake.right, mistake.wrong)
    arguments = [*settings["arguments"], *SHORTER[mistake.case]]
    how = Options(
        launcher=settings["launcher"],
        ranks=settings["ranks"],
        arguments=arguments,
        device="cpu",
        timeout=120,
    )
    found = lines(before, after, tmp_path, how)
    texts = [str(line) for line in found]
    assert found, "no line"
    statement = (before.root / mistake.file).read_text("utf-8").splitlines()
    (number,) = [n for n, text in enumerate(statement, 1) if mistake.right in text]
    assert found[0].file == mistake.file, texts
    assert abs(found[0].line - number) <= 2, texts  # a statement may have several lines
    assert found[0].pairs[0].original != found[0].pairs[0].migrated


# Where what is missing or wrong in the migrated program has its counterpart in the original, or where it first shows.
TRAPS = {
    "weights not synchronised": "model = FSDP(",
    "not averaged": "loss.backward()",
    "optimizer before sharding": "optimizer = torch.optim.SGD(",
    "synchronised too early": "last = micro == args.accumulate - 1",
    "synchronisation not switched on again": "loss.backward()",
    "clipped by a local norm": "model.clip_grad_norm_(args.clip)",
    "buffers in single precision": "model = FSDP(",
    "BatchNorm in bfloat16": "model = FSDP(",
    "reduced in bfloat16": "model = FSDP(",
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.thorough
def test_a_trap_is_named(name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]
    before = copy("original", PROGRAMS / "trap.py", tmp_path / "original" / "copy")
    after = copy("migrated", PROGRAMS / "trap_migrated.py", tmp_path / "migrated" / "copy")
    for right, wrong in fault.edits.items():
        plant(after, "trap_migrated.py", right, wrong)
    how = Options(launcher="python", arguments=fault.arguments, device="cpu", timeout=120)
    found = lines(before, after, tmp_path, how)
    texts = [str(line) for line in found]
    assert found, "no line"
    assert any(TRAPS[name] in line.source for line in found[:2]), texts


@pytest.mark.parametrize("arguments", [ACCUMULATING, CLIPPING], ids=" ".join)
@pytest.mark.thorough
def test_without_a_trap_there_is_no_line(arguments: tuple[str, ...], tmp_path: Path) -> None:
    before = copy("original", PROGRAMS / "trap.py", tmp_path / "original" / "copy")
    after = copy("migrated", PROGRAMS / "trap_migrated.py", tmp_path / "migrated" / "copy")
    how = Options(launcher="python", arguments=arguments, device="cpu", timeout=120)
    found = lines(before, after, tmp_path, how)
    assert found == [], [str(line) for line in found]
