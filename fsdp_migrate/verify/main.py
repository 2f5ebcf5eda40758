"""`verify`: both programs, one after the other, and the comparison."""

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fsdp_migrate.verify import (
    advice,
    causes,
    failures,
    files,
    folders,
    launch,
    processes,
    quirks,
    records,
    syntax,
)
from fsdp_migrate.verify.errors import ProgramFailed, Unverifiable
from fsdp_migrate.verify.folders import Program
from fsdp_migrate.verify.judge import check_migrated, check_original, check_proof, judge
from fsdp_migrate.verify.left import Left
from fsdp_migrate.verify.live import Live
from fsdp_migrate.verify.migrated import left_in_torch, left_to_user, migrate
from fsdp_migrate.verify.options import Options, Recording
from fsdp_migrate.verify.run import run_program
from fsdp_migrate.verify.sources import Sources
from fsdp_migrate.verify.values import first as first_values
from fsdp_migrate.verify.verdict import Verdict
from fsdp_migrate.verify.where.lines import Line
from fsdp_migrate.verify.where.runs import look

_PAUSE = 0.1
_ALL = 1_000_000
"""More optimizer steps than a program makes."""


def verify(original: Path, migrated: Path | None = None, **options: Any) -> Verdict:
    """Run a program before and after its migration, on temporary copies, and compare what they trained.

    Args:
        migrated: if None, the tool migrates a copy of the original's folder.
        options: the fields of `Options`.

    Raises:
        Unverifiable: the request cannot be met.
        ProgramFailed: a program failed or did not end.
    """
    with _temporary_folder() as folder:
        return Pair(original, migrated, Options(**options).usable()).run(folder)


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
class Programs:
    """Copies of both programs.

    Attributes:
        left: what the migration left to people.
        warnings: what a reader should know of it.
    """

    before: Program
    after: Program
    left: Left
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class Pair:
    """A program before and after its migration, and how to run both."""

    original: Path
    migrated: Path | None
    how: Options

    def run(self, folder: Path) -> Verdict:
        """Run both in copies below `folder` and compare them; where they differ, look why, and at which line."""
        if self.migrated is None:
            self.how.progress.stage("migrating a copy")
        programs = self._programs(folder)
        named = self._named(programs)
        try:
            verdict = self._verdict(folder, programs)
        except ProgramFailed as failure:
            failure.next = named.after_failure(failure)
            if failure.which == "migrated":
                failure.where = self._lines(folder, None)
                failure.next = named.after_failure(failure)
            raise
        lines = self._lines(folder, verdict)
        if verdict.cause is not None and verdict.cause.name == "clipping":
            lines = [line for line in lines if not line.is_of_gradients]
        verdict = replace(
            verdict,
            where=lines,
            cause=causes.at_line(self._clipped_at(verdict, programs), lines),
            printed=causes.of_printed(verdict.printed, is_equal=verdict.equal),
        )
        return replace(verdict, next=named.after(verdict))

    def _clipped_at(self, verdict: Verdict, programs: Programs) -> causes.Cause | None:
        """The cause, with the places where a program clips or has to."""
        place = programs.left.place
        return syntax.clipped_at(verdict, programs.before.root, programs.after.root, place)

    def _named(self, programs: Programs) -> advice.Programs:
        """The programs by the user's names."""
        left = programs.left
        findings: list[str] = []
        if self.migrated is None:
            findings = [f"{each.code} at {each.path}:{each.line}" for each in left.findings]
        return advice.Programs(
            self.original,
            self.migrated,
            self.how.form,
            self.how.entry,
            left.changed,
            findings,
            self.how.typed,
        )

    def _lines(self, folder: Path, verdict: Verdict | None) -> list[Line]:
        """The lines that differ, if they are asked for; `verdict` is None where the migrated program failed."""
        how = self.how
        place = folder / "where"
        differ = verdict is None or (not verdict.equal and verdict.deterministic)
        wanted = how.where
        if wanted is None:
            wanted = differ
        if how.nodes is not None or not wanted:
            return []
        again = self._programs(place)
        before = again.before
        after = again.after
        why = "looking for the lines that differ"
        if verdict is None:
            why = "the migrated program failed"
        how.progress.stage(f"{why}: both programs once more, line by line")
        first = None
        if verdict is not None:
            first = verdict.first
        last_step = _ALL
        if first:
            last_step = first.step + 1
        recording = replace(self._recording(before), lines=last_step)
        from_start = replace(recording, start=None)
        if (folder / "start.pt").exists():
            from_start = replace(recording, start=folder / "start.pt")
        starts = recording, from_start

        def twin() -> Program:
            return replace(self._copy("original", self.original, place / "again"), twin=before.twin)

        return look(before, after, twin, place, how, starts)

    def _recording(self, program: Program) -> Recording:
        how = self.how
        emulates = how.may_emulate and launch.needs_cuda(program.root)
        if emulates:
            return replace(how.recording, emulate=how.ranks)
        return how.recording

    def _verdict(self, folder: Path, programs: Programs) -> Verdict:
        how = self.how
        before = programs.before
        after = programs.after
        left = programs.left
        if how.nodes is not None:
            how.nodes.check()
            if launch.choose(how.launcher, before.script) != "torchrun":
                raise Unverifiable("a program that starts its own processes runs on one node")
        changed, diff = folders.compared(before, after)
        old = files.state(before.root)
        new = files.state(after.root)
        recording = self._recording(before)
        try:
            one, other = self._run_both(before, after, recording, folder)
        except ProgramFailed as failure:
            if failure.which == after.name:
                failures.explain(failure, after, left)
            else:
                failures.explain(failure, before, None)
            raise
        notes = [*_notes(before, how, one), *programs.warnings]
        check_original(one)
        how.progress.stage("comparing")
        if one.stopped or other.stopped:
            steps = min(one.steps, other.steps)
            verdict = judge(one.upto(steps), other.upto(steps), how.tolerance, recording)
            rest = ["what follows the first difference (--quick)"]
            return replace(verdict, uncompared=rest, notes=notes, diff=diff)
        idle = check_migrated(other, changed, is_own=self.migrated is not None)
        other = other.at(left.place)
        sources = Sources([before.root / name for name in _ran(one)], left)
        verdict = judge(one, other, how.tolerance, recording, sources)
        saved = files.written(before.root, old)
        found = files.compare(
            saved,
            files.written(after.root, new),
            one.steps + 1,
            verdict.tolerance,
            verdict.max_abs_param_diff or 0.0,
            sources,
        )
        verdict = verdict.also(found.differences)
        saving = [left.text(finding) for finding in left.about(r"state_dict|save|load")]
        verdict = replace(
            verdict,
            cause=causes.behind_findings(verdict.cause, notes, saving),
            files=found.files,
            printed=[*verdict.printed, *found.printed],
            uncompared=[*idle, *found.unread, *verdict.uncompared],
            routine=[*_never(found.files, verdict)],
            notes=notes + verdict.notes,
            quirks=self._quirks(other, left, after),
            environment=launch.describe(how, before),
            diff=diff,
        )
        unclear = not verdict.equal or not all(line.cause for line in verdict.printed)
        if how.repeat or (how.repeat is None and unclear):
            how.progress.stage("the original program once more, against itself")
            twin, again = self._again(before, recording, folder)
            control = judge(one, twin, how.tolerance, recording)
            noise = files.compare(saved, again, one.steps + 1, verdict.tolerance, 0.0)
            control = replace(control, printed=[*control.printed, *noise.printed])
            verdict = verdict.without(control, noise.differences)
        check_proof(verdict)
        return verdict

    def _quirks(self, run: records.Run, left: Left, after: Program) -> list[quirks.Line]:
        """What each `like_fsdp1` did; of those that did nothing, also what the form torch leaves to the user."""
        lines = quirks.read(run, after.root)
        if self.migrated is None:
            lines = [replace(line, place=left.place(line.place), is_written=True) for line in lines]
        if all(line.acted for line in lines):
            return lines
        if self.migrated:
            user = after.root
        else:
            user = left.root
        findings = left_in_torch(user, _ran(run))
        for place, line in enumerate(lines):
            if not line.acted:
                lines[place] = replace(line, findings=findings)
        return lines

    def _programs(self, folder: Path) -> Programs:
        """Fresh copies of both."""
        one = self._copy("original", self.original, folder)
        other = self._copy("migrated", self.migrated or self.original, folder)
        before = replace(one, twin=other.source)
        after = replace(other, twin=one.source)
        if self.migrated is not None:
            left = Left(before.root, lambda: left_to_user(before.root, self.how.form))
            return Programs(before, after, left)
        done = migrate(after.root, self.how.form)
        left = Left(before.root, lambda: done.findings, done.origins)
        return Programs(before, after, left, done.warnings)

    def _again(
        self, program: Program, recording: Recording, folder: Path
    ) -> tuple[records.Run, dict[str, Path]]:
        """Run a fresh copy of the original once more; returns also the files that it writes."""
        place = folder / "control"
        fresh = replace(self._copy("original", self.original, place), twin=program.twin)
        # On several nodes its records need a name of their own.
        again = replace(self.how, nodes=self.how.nodes and self.how.nodes.again(place.name))
        before = files.state(fresh.root)
        run = replace(self, how=again)._run(fresh, recording, place, Live(place, again))
        return run, files.written(fresh.root, before)

    def _copy(self, name: str, path: Path, folder: Path) -> Program:
        """A copy of one of the programs."""
        how = self.how
        target = folder / name / "copy"
        return folders.copy(name, path, target, entry=how.entry, links=how.links)

    def _run_both(
        self, before: Program, after: Program, recording: Recording, folder: Path
    ) -> tuple[records.Run, records.Run]:
        """Run both, one after the other or side by side.

        Side by side the migrated program starts as soon as the original has made a step, if there is memory for as
        much again.
        """
        live = Live(folder, self.how)
        free = _free_memory()
        together = self._side_by_side(before)
        with ThreadPoolExecutor(2) as pool:
            try:
                one = pool.submit(self._run, before, recording, folder, live)
                while not one.done():
                    time.sleep(_PAUSE)
                    if together and live.steps("original") and free <= 2 * _free_memory():
                        break
                if one.done():
                    run = one.result()
                    if self.how.align_init:
                        start = first_values(run).save(folder / "start.pt")
                        recording = replace(recording, start=start)
                other = pool.submit(self._run, after, recording, folder, live)
                wait((one, other), return_when=FIRST_EXCEPTION)
                if one.done():
                    one.result()  # its failure goes first
                migrated = other.result()
                return one.result(), migrated
            except BaseException:
                live.stop.set()
                raise

    def _side_by_side(self, program: Program) -> bool:
        """Whether both programs may run at once: the second takes nothing over, and they share no port and no folder."""
        how = self.how
        torchrun = launch.choose(how.launcher, program.script) == "torchrun"
        may = torchrun and not how.align_init and how.nodes is None
        if how.side_by_side is not None or not may:
            return bool(how.side_by_side) and may
        cores = 1
        if hasattr(os, "sched_getaffinity"):
            cores = len(os.sched_getaffinity(0))
        absolute = any(os.path.isabs(text.rpartition("=")[2]) for text in how.arguments)
        return how.device == "cpu" and cores >= 2 * how.ranks and not absolute

    def _run(self, program: Program, recording: Recording, folder: Path, live: Live) -> records.Run:
        emulated = ""
        if recording.emulate:
            emulated = ", CUDA emulated"
        where = f"{self.how.ranks} ranks ({self.how.device}{emulated})"
        self.how.progress.stage(f"running the {program.name} program on {where}")
        return run_program(program, folder, self.how, recording, live.look)


def _ran(run: records.Run) -> list[str]:
    """The files of the program that ran on any rank, relative to its folder."""
    return [*dict.fromkeys([file for rank in run.ranks for file in rank.files])]


def _free_memory() -> int:
    """Bytes that are available; 0 if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    for line in lines:
        if line.startswith("MemAvailable"):
            return 1024 * int(line.split()[1])
    return 0


def _never(compared: Sequence[str], verdict: Verdict) -> Iterator[str]:
    """What was not compared, whatever the result."""
    yield "results of evaluations and of models that no optimizer trains, except what the program prints or saves"
    if verdict.tolerance and not verdict.bitwise:
        yield "the last buffers, because the losses are not bitwise equal"
    if not compared:
        yield "saved files: both programs wrote none in their folder"


def _notes(program: Program, how: Options, run: records.Run) -> Iterator[str]:
    """Arguments that lead a program out of its copy, and another number of ranks than was asked for."""
    for argument in how.arguments:
        path = argument.rpartition("=")[2]
        if os.path.isabs(path) and program.inside(Path(path)):
            yield f"{argument} is outside the copies: both programs read and write the same place"
    started = len(run.ranks)
    asked = how.ranks
    if how.nodes:
        asked *= how.nodes.count
    if started != asked and not run.stopped:
        yield f"the program starts its own ranks: {started} instead of {asked}"
