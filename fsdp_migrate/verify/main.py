"""`verify`: both programs, one after the other, and the comparison."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
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
    values,
)
from fsdp_migrate.verify.errors import ProgramFailed, Unverifiable
from fsdp_migrate.verify.folders import Program
from fsdp_migrate.verify.judge import check_migrated, check_original, judge
from fsdp_migrate.verify.live import Live
from fsdp_migrate.verify.options import Launcher, Options, Recording
from fsdp_migrate.verify.verdict import Verdict

_PLAIN = Recording()
_PAUSE = 0.1
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
    pair = Pair(original, migrated, Options(**options).usable())
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

    def run(self, folder: Path) -> Verdict:
        """Run both in copies below `folder` and compare them; where they differ, look why."""
        how = self.how
        before, after, notes = self._programs(folder)
        if how.nodes is not None:
            how.nodes.check()
            if launch.choose(how.launcher, before.script) is not Launcher.TORCHRUN:
                raise Unverifiable("a program that starts its own processes runs on one node")
        changed, diff = folders.compared(before, after)
        old, new = outputs.files(before.root), outputs.files(after.root)
        one, other, recording = self._run_both(before, after, folder)
        notes = [*_notes(before, how, one), *notes]
        check_original(one)
        how.progress.stage("comparing")
        if one.stopped or other.stopped:
            steps = min(one.steps, other.steps)
            verdict = judge(one.upto(steps), other.upto(steps), how.tolerance, recording)
            rest = ["what follows the first difference (--quick)"]
            return replace(verdict, uncompared=rest, notes=notes, diff=diff)
        idle = check_migrated(other, changed)
        verdict = judge(one, other, how.tolerance, recording)
        both, odd, unread = outputs.compare(
            outputs.checkpoints(before.root, old),
            outputs.checkpoints(after.root, new),
            one.steps + 1,
            verdict.tolerance,
            verdict.max_abs_param_diff or 0.0,
        )
        verdict = replace(
            verdict.also(odd),
            uncompared=[*idle, *unread, *verdict.uncompared, *_never(both, verdict)],
            notes=notes + verdict.notes,
            quirks=quirks.read(other, after.root),
            environment=launch.describe(how, before),
            diff=diff,
        )
        return self._explained(verdict, recording, folder)

    def _programs(self, folder: Path) -> tuple[Program, Program, list[str]]:
        """Fresh copies of both, and the warnings of the migration."""
        before = self._copy("original", self.original, folder)
        after = self._copy("migrated", self.migrated or self.original, folder)
        before, after = replace(before, twin=after.source), replace(after, twin=before.source)
        if self.migrated is not None:
            return before, after, []
        self.how.progress.stage("migrating a copy")
        return before, after, migration.migrate(after.root, self.how.form)

    def _explained(self, verdict: Verdict, recording: Recording, folder: Path) -> Verdict:
        """The verdict after further runs where they are needed: the original against itself, both from the same values."""
        how = self.how
        odd = not verdict.equal or not all(line.cause for line in verdict.printed)
        if how.repeat or (how.repeat is None and odd):
            how.progress.stage("the original program once more, against itself")
            twin = self._again("control", recording, folder)
            control = judge(verdict.original, twin, how.tolerance, recording)
            verdict = verdict.without(control)
        first = verdict.first
        begun = folder / "start.pt"
        if begun.exists() and verdict.deterministic and first and first.what in _BEGINNINGS:
            how.progress.stage("both from the same first values")
            same = replace(recording, align=True, start=begun)
            other = self._again("aligned", same, folder)
            if judge(verdict.original, other, how.tolerance, same).equal:
                return replace(verdict, causes=[causes.aligned(verdict.causes[0])])
        return verdict

    def _again(self, name: str, recording: Recording, folder: Path) -> records.Run:
        """Run a fresh copy once more: of the original for `control`, of the migrated program for `aligned`."""
        nodes, place = self.how.nodes, folder / name
        # On several nodes its records need a name of their own.
        again = replace(self, how=replace(self.how, nodes=nodes and nodes.again(name)))
        before, after, _ = self._programs(place)
        program = before if name == "control" else after
        return again._run(program, recording, place, Live(place, self.how))

    def _copy(self, name: str, path: Path, folder: Path) -> Program:
        """A copy of one of the programs."""
        how = self.how
        target = folder / name / "copy"
        return folders.copy(name, path, target, entry=how.entry, root=how.root, links=how.links)

    def _run_both(
        self, before: Program, after: Program, folder: Path
    ) -> tuple[records.Run, records.Run, Recording]:
        """Run both, one after the other or side by side; returns also how.

        Side by side the migrated program starts as soon as the original has made a step, if there is memory for as
        much again.
        """
        live, begun, free = Live(folder, self.how), folder / "start.pt", _free_memory()
        asks = self.how.may_emulate and emulation.wants_cuda(before.root)
        may_fail = asks and emulation.asks_first(before.root) and not self.how.recording.emulate
        emulate = self.how.ranks if asks and not may_fail else self.how.recording.emulate
        recording = replace(self.how.recording, emulate=emulate)
        together = self._side_by_side(before) and not may_fail
        with ThreadPoolExecutor(2) as pool:
            try:
                one = pool.submit(self._original, before, recording, folder, live, may_fail)
                while not one.done():
                    time.sleep(_PAUSE)
                    if together and live.steps("original") and free <= 2 * _free_memory():
                        break
                if one.done():
                    run, recording = one.result()
                    recording = replace(recording, start=values.first(run).save(begun))
                other = pool.submit(self._run, after, recording, folder, live)
                wait((one, other), return_when=FIRST_EXCEPTION)  # type: ignore[misc]
                if one.done():
                    one.result()  # its failure goes first
                migrated, (original, recording) = other.result(), one.result()
            except BaseException:
                live.stop.set()
                raise
        if not begun.exists():
            values.first(original).save(begun)
        return original, migrated, recording

    def _original(
        self, program: Program, recording: Recording, folder: Path, live: Live, may_fail: bool
    ) -> tuple[records.Run, Recording]:
        """Run the original, once more with CUDA emulated where it `may_fail` without; returns also how it ran."""
        try:
            return self._run(program, recording, folder, live), recording
        except ProgramFailed as failure:
            if not may_fail or failure.timed_out:
                raise
        self.how.progress.stage("it needs CUDA: once more, with CUDA emulated")
        shutil.rmtree(folder / "original")
        recording = replace(recording, emulate=self.how.ranks)
        again = self._copy("original", self.original, folder)
        return self._run(again, recording, folder, live), recording

    def _side_by_side(self, program: Program) -> bool:
        """Whether both programs may run at once: the second takes nothing over, and they share no port and no folder."""
        how = self.how
        torchrun = launch.choose(how.launcher, program.script) is Launcher.TORCHRUN
        may = torchrun and not self.how.recording.align and how.nodes is None
        if how.side_by_side is not None or not may:
            return bool(how.side_by_side) and may
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        absolute = any(os.path.isabs(text.rpartition("=")[2]) for text in how.arguments)
        return how.device == "cpu" and cores >= 2 * how.ranks and not absolute

    def _run(self, program: Program, recording: Recording, folder: Path, live: Live) -> records.Run:
        emulated = ", CUDA emulated" if recording.emulate else ""
        where = f"{self.how.ranks} ranks ({self.how.device}{emulated})"
        self.how.progress.stage(f"running the {program.name} program on {where}")
        return run_program(program, folder, self.how, recording, live.look)


def _free_memory() -> int:
    """Bytes that are available; 0 if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    free = (line.split()[1] for line in lines if line.startswith("MemAvailable"))
    return 1024 * int(next(free, "0"))


def _never(checkpoints: int, verdict: Verdict) -> Iterator[str]:
    """What was not compared, whatever the result."""
    yield "what an evaluation computes, beyond numbers that are printed"
    if verdict.tolerance:
        yield "last parameters and buffers are shown, and judged with --tolerance 0 only"
    if not checkpoints:
        yield "checkpoints: none that both programs wrote below their folder"


def _notes(program: Program, how: Options, run: records.Run) -> Iterator[str]:
    """Arguments that lead a program out of its copy, and another number of ranks than was asked for."""
    for argument in how.arguments:
        path = argument.rpartition("=")[2]
        if os.path.isabs(path) and program.inside(Path(path)):
            yield f"{argument} leads out of the copies: both programs read and write it in place"
    started, asked = len(run.ranks), how.ranks * (how.nodes.count if how.nodes else 1)
    if started != asked and not run.stopped:
        yield f"the program starts its ranks itself: {started}, not the {asked} asked for"


def run_program(
    program: Program,
    folder: Path,
    how: Options,
    recording: Recording = _PLAIN,
    look: Callable[[], bool] = lambda: False,
) -> records.Run:
    """Run one program and read its records; `folder` is for what the run needs and leaves, `look` as in `processes.run`."""
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
        look,
    )
    found = records.read_ranks(place / "records", outcome.stopped)
    expected = how.ranks if launcher is Launcher.TORCHRUN else 0
    scene = failures.Scene(program, outcome, place, expected, found)
    if outcome.stopped:
        return records.Run(found, outcome.seconds, scene.output, stopped=True)
    try:
        failures.check(scene)
    except ProgramFailed as failure:
        if how.nodes is not None:
            how.nodes.share(program.name, place / "records", failure.reason)
        raise emulation.explain(failure, bool(recording.emulate)) from None
    if how.nodes is not None:
        how.nodes.share(program.name, place / "records")
        shared = how.nodes.meet(program.name, how.timeout)
        ranks = (rank for one in shared for rank in records.read_ranks(one))
        found = sorted(ranks, key=lambda rank: rank.rank)
    told = [replace(rank, output=scene.printed(rank.rank)) for rank in found]
    return records.Run(told, outcome.seconds, scene.output)
