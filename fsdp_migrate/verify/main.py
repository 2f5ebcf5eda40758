"""`verify`: both programs, one after the other, and the comparison."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fsdp_migrate.verify import (
    causes,
    emulation,
    failures,
    folders,
    launch,
    migration,
    outputs,
    processes,
    quirks,
    records,
    sources,
    start,
)
from fsdp_migrate.verify.errors import ProgramFailed
from fsdp_migrate.verify.folders import Program
from fsdp_migrate.verify.judge import check_migrated, check_original, judge
from fsdp_migrate.verify.options import Launcher, Options, Recording
from fsdp_migrate.verify.verdict import Verdict

_PLAIN = Recording()
_BEGINNINGS = ("first parameters", "first parameters of the ranks", "first buffers")


def verify(original: Path, migrated: Path | None = None, **options: Any) -> Verdict:
    """Run a program before and after its migration, on temporary copies, and compare what they trained.

    Args:
        migrated: if None, the tool migrates a copy of the original's folder.
        options: the fields of `Options`.

    Raises:
        Unverifiable: the request cannot be met.
        ProgramFailed: a program failed or did not end.
    """
    how = Options(**options).usable()
    pair = Pair(original, migrated, how, how.recording)
    with _temporary_folder() as folder:
        return pair.run(folder)


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    """A folder that is removed at the end, even when a signal ends the run."""
    folder = tempfile.TemporaryDirectory(prefix="fsdp-migrate-", ignore_cleanup_errors=True)
    try:
        yield Path(folder.name).resolve()
    finally:
        with processes.held_back():
            folder.cleanup()


@dataclass(frozen=True)
class Pair:
    """A program before and after its migration, and how to run both."""

    original: Path
    migrated: Path | None
    how: Options
    recording: Recording

    def run(self, folder: Path) -> Verdict:
        """Run both in copies below `folder` and compare them; where they differ, look why."""
        how = self.how
        before, after, notes = self._programs(folder)
        notes = _stray_arguments(before, how) + notes
        changed = sources.changed(before, after)
        old, new = outputs.files(before.root), outputs.files(after.root)
        one, recording = self._run_original(before, folder)
        check_original(one)
        saved = start.read(one).save(folder / "start.pt")
        other = self._run(after, replace(recording, start=saved), folder)
        how.progress("comparing")
        idle = check_migrated(other, changed)
        verdict = judge(one, other, how.tolerance, recording)
        found = outputs.compare(
            outputs.checkpoints(before.root, old),
            outputs.checkpoints(after.root, new),
            one.steps + 1,
            verdict.tolerance,
            verdict.max_abs_param_diff or 0.0,
        )
        verdict = verdict.also(found.differences)
        verdict = replace(
            verdict,
            uncompared=[*idle, *found.notes, *verdict.uncompared, *_never(found.compared, verdict)],
            notes=notes + verdict.notes + _ranks_started(one, how),
            quirks=quirks.read(other, after.root),
            environment=launch.describe(how, before),
        )
        return self._explained(verdict, recording, folder)

    def _programs(self, folder: Path) -> tuple[Program, Program, list[str]]:
        """Fresh copies of both, and the warnings of the migration."""
        before = self._copy("original", self.original, folder)
        after = self._copy("migrated", self.migrated or self.original, folder)
        before, after = replace(before, twin=after.source), replace(after, twin=before.source)
        if self.migrated is not None:
            return before, after, []
        self.how.progress("migrating a copy")
        return before, after, migration.migrate(after.root, self.how.form)

    def _explained(self, verdict: Verdict, recording: Recording, folder: Path) -> Verdict:
        """The verdict after further runs where they are needed: the original against itself, both from the same values."""
        how = self.how
        odd = not verdict.equal or not all(line.cause for line in verdict.printed)
        if how.repeat or (how.repeat is None and odd):
            how.progress("the original program once more, against itself")
            before, _, _ = self._programs(folder / "control")
            twin = self._run(before, recording, folder / "control")
            control = judge(verdict.original, twin, how.tolerance, recording)
            verdict = verdict.without(control)
        first = verdict.first
        begun = folder / "start.pt"
        if begun.exists() and verdict.deterministic and first and first.what in _BEGINNINGS:
            how.progress("both from the same first values")
            _, after, _ = self._programs(folder / "aligned")
            same = replace(recording, align=True, start=begun)
            other = self._run(after, same, folder / "aligned")
            if judge(verdict.original, other, how.tolerance, same).equal:
                return replace(verdict, causes=[causes.aligned(verdict.causes[0])])
        return verdict

    def _copy(self, name: str, path: Path, folder: Path) -> Program:
        """A copy of one of the programs."""
        how = self.how
        target = folder / name / "copy"
        return folders.copy(name, path, target, entry=how.entry, root=how.root, links=how.links)

    def _run_original(self, program: Program, folder: Path) -> tuple[records.Run, Recording]:
        """Run it, with CUDA emulated if it cannot do without; returns also how it was run."""
        may = self.how.may_emulate and not self.recording.emulate
        wants = may and emulation.wants_cuda(program.root)
        emulated = replace(self.recording, emulate=self.how.ranks)
        if wants and not emulation.asks_first(program.root):
            return self._run(program, emulated, folder), emulated
        try:
            return self._run(program, self.recording, folder), self.recording
        except ProgramFailed as failure:
            if not wants or failure.timed_out:
                raise
        self.how.progress("it needs CUDA: once more, with CUDA emulated")
        shutil.rmtree(folder / "original")
        again = self._copy("original", self.original, folder)
        return self._run(again, emulated, folder), emulated

    def _run(self, program: Program, recording: Recording, folder: Path) -> records.Run:
        emulated = ", CUDA emulated" if recording.emulate else ""
        where = f"{self.how.ranks} ranks ({self.how.device}{emulated})"
        self.how.progress(f"running the {program.name} program on {where}")
        return run_program(program, folder, self.how, recording)


def _never(checkpoints: int, verdict: Verdict) -> list[str]:
    """What was not compared, whatever the result."""
    told = ["what an evaluation computes, beyond numbers that are printed"]
    if verdict.tolerance:
        told.append("last parameters and buffers are shown, and judged with --tolerance 0 only")
    if not checkpoints:
        told.append("checkpoints: none that both programs wrote below their folder")
    return told


def _stray_arguments(program: Program, how: Options) -> list[str]:
    """Notes on arguments that lead a program out of its copy."""
    return [
        f"{argument} leads out of the copies: both programs read and write it in place"
        for argument in how.arguments
        if os.path.isabs(path := argument.rpartition("=")[2]) and program.inside(Path(path))
    ]


def _ranks_started(run: records.Run, how: Options) -> list[str]:
    """A note where a program starts another number of ranks than was asked for."""
    started = len(run.ranks)
    if started == how.ranks:
        return []
    return [f"the program starts its ranks itself: {started}, not the {how.ranks} asked for"]


def run_program(
    program: Program, folder: Path, how: Options, recording: Recording = _PLAIN
) -> records.Run:
    """Run one program and read its records; `folder` is for what the run needs and leaves."""
    place = folder / program.name
    for name in ("records", "logs", "start"):
        (place / name).mkdir(parents=True)
    launcher = launch.choose(how.launcher, program.script)
    outcome = processes.run(
        launch.command(program, how, launcher, place / "logs"),
        program.folder,
        launch.environment(program, how.device, place / "records", place / "start", recording),
        place / "output",
        how.timeout,
    )
    found = records.read_ranks(place / "records")
    expected = how.ranks if launcher is Launcher.TORCHRUN else 0
    scene = failures.Scene(program, outcome, place, expected, found)
    try:
        failures.check(scene)
    except ProgramFailed as failure:
        raise emulation.explain(failure, bool(recording.emulate)) from None
    told = [replace(rank, output=scene.printed(rank.rank)) for rank in found]
    return records.Run(told, outcome.seconds, scene.output)
