"""`verify`: both programs, one after the other, and the comparison."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from fsdp_migrate.verify import failures, launch, migration, parameters, processes, records
from fsdp_migrate.verify.compare import compare
from fsdp_migrate.verify.errors import Unverifiable
from fsdp_migrate.verify.folders import Program, copy_program
from fsdp_migrate.verify.launch import Launcher
from fsdp_migrate.verify.recording import Recording
from fsdp_migrate.verify.verdict import Verdict

TOLERANCE = 1e-6
TIMEOUT = 600.0

_PLAIN = Recording()


def verify(
    original: Path,
    migrated: Path | None = None,
    *,
    root: Path | None = None,
    ranks: int = 2,
    arguments: Sequence[str] = (),
    launcher: Launcher = Launcher.AUTO,
    device: str = "auto",
    tolerance: float = TOLERANCE,
    timeout: float = TIMEOUT,
    progress: Callable[[str], object] = lambda text: None,
) -> Verdict:
    """Run a program before and after its migration and compare what they trained.

    Both run on temporary copies of their folders, one after the other, and are not edited for it.

    Args:
        original: the script with FSDP1.
        migrated: the script with FSDP2; if None, the tool migrates a copy of the original's folder.
        root: the folder that belongs to the script; its own folder if None.
        ranks: processes that torchrun starts; a program that starts its own decides itself.
        arguments: the script's.
        device: `cpu`, `cuda`, or `auto`: CUDA where there is a device for each rank.
        tolerance: relative, of losses and gradient norms; 0 asks for the same bits.
        timeout: seconds for each of the two runs.
        progress: told what is being done, in a few words.

    Raises:
        Unverifiable: the request cannot be met.
        ProgramFailed: a program did not come to its end.
    """
    for script in (original, migrated):
        if script is not None and not script.is_file():
            raise Unverifiable(f"{script}: no such file")
    launcher = launch.choose(launcher, original)
    device = _device(device, ranks)
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="fsdp-migrate-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        before = copy_program("original", original, root, folder / "original" / "copy")
        after = copy_program("migrated", migrated or original, root, folder / "migrated" / "copy")
        if migrated is None:
            progress("migrating a copy")
            notes += migration.migrate(after.root)
        runs = []
        for program in (before, after):
            progress(f"running the {program.name} program on {ranks} ranks ({device})")
            runs.append(run_program(program, launcher, ranks, arguments, device, timeout, folder))
        progress("comparing")
        apart, problem = parameters.max_difference(*runs)
    notes += [problem] if problem else []
    notes += _problems(runs, ranks)
    return Verdict(
        comparison=compare(runs[0], runs[1], tolerance),
        tolerance=tolerance,
        backend=runs[0].ranks[0].backend,
        max_abs_param_diff=apart,
        original=runs[0],
        migrated=runs[1],
        notes=notes,
    )


def _problems(runs: list[records.Run], ranks: int) -> list[str]:
    """What the recorder could not do, without what the comparison of the parameters says itself."""
    told = {problem: None for run in runs for rank in run.ranks for problem in rank.problems}
    notes = [problem for problem in told if "last parameters" not in problem]
    started = len(runs[0].ranks)
    if started != ranks:
        notes.append(f"the program starts its ranks itself: {started}, not the {ranks} asked for")
    return notes


def run_program(
    program: Program,
    launcher: Launcher,
    ranks: int,
    arguments: Sequence[str],
    device: str,
    timeout: float,
    folder: Path,
    recording: Recording = _PLAIN,
) -> records.Run:
    """Run one program and read its records; `folder` is for what the run needs and leaves."""
    place = folder / program.name
    for name in ("records", "logs", "start"):
        (place / name).mkdir(parents=True)
    outcome = processes.run(
        launch.command(program, launcher, ranks, list(arguments), place / "logs"),
        program.folder,
        launch.environment(program, device, place / "records", place / "start", recording),
        place / "output",
        timeout,
    )
    found = records.read_ranks(place / "records")
    expected = ranks if launcher is Launcher.TORCHRUN else 0
    failures.check(failures.Scene(program, outcome, place, expected, found))
    return records.Run(found, outcome.seconds)


def _device(device: str, ranks: int) -> str:
    if importlib.util.find_spec("torch") is None:
        raise Unverifiable(
            "verify runs programs that need torch: pip install 'fsdp-migrate[runtime]'"
        )
    if device == "cpu":
        return device
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "cuda" and count < ranks:
        raise Unverifiable(f"{ranks} ranks need {ranks} CUDA devices, there are {count}")
    return "cuda" if count >= ranks else "cpu"
