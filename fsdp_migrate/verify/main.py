"""`verify`: both programs, one after the other, and the comparison."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fsdp_migrate.verify import (
    causes,
    emulation,
    environment,
    evidence,
    failures,
    folders,
    interrupts,
    launch,
    migration,
    processes,
    records,
    sources,
    start,
    written,
)
from fsdp_migrate.verify.errors import ProgramFailed, Unverifiable
from fsdp_migrate.verify.folders import Program
from fsdp_migrate.verify.judge import judge
from fsdp_migrate.verify.launch import Launcher
from fsdp_migrate.verify.nodes import Nodes
from fsdp_migrate.verify.recording import Recording
from fsdp_migrate.verify.verdict import Verdict

TIMEOUT = 600.0

_PLAIN = Recording()
_BEGINNINGS = ("first parameters", "first parameters of the ranks", "first buffers")


def verify(
    original: Path,
    migrated: Path | None = None,
    *,
    entry: Path | None = None,
    root: Path | None = None,
    links: Sequence[Path] = (),
    ranks: int = 2,
    arguments: Sequence[str] = (),
    launcher: Launcher = Launcher.AUTO,
    device: str = "auto",
    tolerance: float | None = None,
    timeout: float = TIMEOUT,
    nodes: Nodes | None = None,
    canonical: bool | None = None,
    plain: bool = False,
    align_init: bool | None = None,
    emulate: bool | None = None,
    workers: int | None = None,
    repeat: bool | None = None,
    form: str = "auto",
    progress: Callable[[str], object] = lambda text: None,
) -> Verdict:
    """Run a program before and after its migration and compare what they trained.

    Both run on temporary copies of their folders, one after the other, and are not edited for it.

    Args:
        original: the script with FSDP1, or its repository.
        migrated: the same with FSDP2; if None, the tool migrates a copy of the original's folder.
        entry: the script to run, where `original` and `migrated` are folders.
        root: the folder that belongs to the program; the script's own, or the repository, if None.
        links: in a repository, what git ignores and the program reads: linked, not copied.
        ranks: processes that torchrun starts on a node; a program that starts its own decides itself.
        arguments: the script's.
        device: `cpu`, `cuda`, or `auto`: CUDA where there is a device for each rank.
        tolerance: relative, of losses and gradient norms; 0 asks for the same bits, None for what
            their dtypes can tell.
        timeout: seconds for each of the runs.
        nodes: where every one of several nodes calls this function.
        canonical: whether sums over ranks and norms are done in one order and in fp64 in both
            programs; if None, on the CPU.
        plain: after a canonical comparison run both once more with the backend's own arithmetic.
        align_init: whether the migrated program takes over the original's first values; if None,
            those that differ because it draws random numbers for sharded tensors.
        emulate: whether CUDA is emulated on the CPU; if None, where a program asks for it in vain.
        workers: of each DataLoader; None for the program's own number.
        repeat: whether the original runs twice, to see whether it is deterministic at all; if None,
            where the two programs differ.
        form: what the tool makes of a copy: `bridge` changes imports only, `auto` more where it can.
        progress: told what is being done, in a few words.

    Raises:
        Unverifiable: the request cannot be met.
        ProgramFailed: a program did not come to its end.
    """
    device = _device(device, ranks)
    if emulate and device != "cpu":
        raise Unverifiable("CUDA is emulated on the CPU: --emulate needs --device cpu")
    canonical = device == "cpu" if canonical is None else canonical
    align = {None: "drawn", True: "all", False: ""}[align_init]
    pair = _Pair(
        original,
        migrated,
        entry,
        root,
        links,
        ranks,
        arguments,
        launcher,
        device,
        tolerance,
        timeout,
        nodes,
        progress,
        Recording(canonical, ranks if emulate else 0, workers, align),
        may_emulate=emulate is None and device == "cpu" and nodes is None,
        form=form,
        repeat=repeat,
    )
    with _temporary() as name:
        folder = Path(name).resolve()
        verdict = pair.run(folder / "first")
        if plain and canonical and verdict.equal:
            progress("once more, with the backend's own arithmetic")
            emulated = ranks if verdict.emulated else 0
            recording = replace(pair.recording, canonical=False, emulate=emulated)
            again = replace(
                pair,
                recording=recording,
                may_emulate=False,
                repeat=False,
                nodes=_again(nodes, "plain"),
            )
            try:
                verdict = replace(verdict, plain=again.run(folder / "plain"))
            except ProgramFailed as failure:
                verdict.notes.append(f"no plain figures: {failure}")
    return verdict


@contextlib.contextmanager
def _temporary() -> Iterator[str]:
    """A folder that is gone in the end, whatever interrupts."""
    folder = tempfile.TemporaryDirectory(prefix="fsdp-migrate-", ignore_cleanup_errors=True)
    try:
        yield folder.name
    finally:
        with interrupts.held_back():
            folder.cleanup()


@dataclass(frozen=True)
class _Pair:
    """A program before and after its migration, and how to run both."""

    original: Path
    migrated: Path | None
    entry: Path | None
    root: Path | None
    links: Sequence[Path]
    ranks: int
    arguments: Sequence[str]
    launcher: Launcher
    device: str
    tolerance: float | None
    timeout: float
    nodes: Nodes | None
    progress: Callable[[str], object]
    recording: Recording
    may_emulate: bool
    form: str
    repeat: bool | None

    def run(self, folder: Path) -> Verdict:
        """Run both in copies below `folder` and compare them; where they differ, look why."""
        before, after, notes = self._programs(folder)
        if self.nodes is not None:
            self.nodes.check()
            if launch.choose(self.launcher, before.script) is not Launcher.TORCHRUN:
                raise Unverifiable("a program that starts its own processes runs on one node")
        notes = _stray_arguments(before, self.arguments) + notes
        texts = sources.read(before, after)
        old, new = written.files(before.root), written.files(after.root)
        one, recording = self._run_original(before, folder)
        evidence.original(one)
        saved = start.read(one).save(folder / "start.pt")
        other = self._run(after, replace(recording, start=saved), folder)
        self.progress("comparing")
        idle = evidence.migrated(other, texts)
        verdict = judge(one, other, self.tolerance, recording)
        found = written.compare(
            written.checkpoints(before.root, old),
            written.checkpoints(after.root, new),
            verdict,
        )
        verdict = verdict.also(found.differences)
        notes += verdict.notes
        notes += _ranks_started(one, self.ranks * (self.nodes.count if self.nodes else 1))
        launcher = launch.choose(self.launcher, before.script).value
        verdict = replace(
            verdict,
            uncompared=[*idle, *found.notes, *verdict.uncompared, *_never(found.compared, verdict)],
            notes=notes,
            sources=texts,
            environment=environment.describe(
                self.device, launcher, self.ranks, self.arguments, before.source
            ),
        )
        return self._explained(verdict, recording, folder)

    def _programs(self, folder: Path) -> tuple[Program, Program, list[str]]:
        """Fresh copies of both, with what the migration of the second has to say."""
        before = self._copy("original", self.original, folder)
        after = self._copy("migrated", self.migrated or self.original, folder)
        before, after = replace(before, twin=after.source), replace(after, twin=before.source)
        if self.migrated is not None:
            return before, after, []
        self.progress("migrating a copy")
        return before, after, migration.migrate(after.root, self.form)

    def _explained(self, verdict: Verdict, recording: Recording, folder: Path) -> Verdict:
        """With what further runs say: the original against itself, and both from the same values."""
        if self.repeat or (self.repeat is None and not verdict.equal):
            self.progress("the original program once more, against itself")
            before, _, _ = self._programs(folder / "control")
            again = replace(self, nodes=_again(self.nodes, "control"))
            twin = again._run(before, recording, folder / "control")
            control = judge(verdict.original, twin, self.tolerance, recording)
            verdict = replace(verdict.without(control), control=control)
        first = verdict.first
        begun = folder / "start.pt"
        if begun.exists() and verdict.deterministic and first and first.what in _BEGINNINGS:
            self.progress("both from the same first values")
            _, after, _ = self._programs(folder / "aligned")
            same = replace(recording, align="all", start=begun)
            again = replace(self, nodes=_again(self.nodes, "aligned"))
            other = again._run(after, same, folder / "aligned")
            if judge(verdict.original, other, self.tolerance, same).equal:
                return replace(verdict, causes=[causes.aligned(verdict.causes[0])])
        return verdict

    def _copy(self, name: str, path: Path, folder: Path) -> Program:
        target = folder / name / "copy"
        return folders.copy(name, path, target, entry=self.entry, root=self.root, links=self.links)

    def _run_original(self, program: Program, folder: Path) -> tuple[records.Run, Recording]:
        """Run it as it is, unless it asks for CUDA in vain; returns also how it was run."""
        wants = emulation.wants_cuda(program.root) if self.may_emulate else False
        emulated = replace(self.recording, emulate=self.ranks)
        if wants and not emulation.asks_first(program.root):
            return self._run(program, emulated, folder), emulated
        try:
            return self._run(program, self.recording, folder), self.recording
        except ProgramFailed as failure:
            if not wants or failure.timed_out:
                raise
        self.progress("it needs CUDA: once more, with CUDA emulated")
        shutil.rmtree(folder / "original")
        again = self._copy("original", self.original, folder)
        return self._run(again, emulated, folder), emulated

    def _run(self, program: Program, recording: Recording, folder: Path) -> records.Run:
        emulated = ", CUDA emulated" if recording.emulate else ""
        where = f"{self.ranks} ranks ({self.device}{emulated})"
        self.progress(f"running the {program.name} program on {where}")
        return run_program(
            program,
            self.launcher,
            self.ranks,
            self.arguments,
            self.device,
            self.timeout,
            folder,
            recording,
            self.nodes,
        )


def _again(nodes: Nodes | None, name: str) -> Nodes | None:
    """The same nodes for further runs, whose records are others."""
    return nodes and replace(nodes, run=f"{nodes.run}-{name}")


def _never(checkpoints: int, verdict: Verdict) -> list[str]:
    """What no run of this kind compares."""
    told = ["what an evaluation computes, beyond numbers that are printed"]
    if verdict.tolerance:
        told.append("last parameters and buffers are shown, and judged with --tolerance 0 only")
    if not checkpoints:
        told.append("checkpoints: none that both programs wrote below their folder")
    return told


def _stray_arguments(program: Program, arguments: Sequence[str]) -> list[str]:
    """Arguments by which a program leaves its copy."""
    return [
        f"{argument} leads out of the copies: both programs read and write it in place"
        for argument in arguments
        if os.path.isabs(path := argument.rpartition("=")[2]) and program.inside(Path(path))
    ]


def _ranks_started(run: records.Run, ranks: int) -> list[str]:
    """That a program starts another number of ranks than was asked for."""
    started = len(run.ranks)
    if started == ranks:
        return []
    return [f"the program starts its ranks itself: {started}, not the {ranks} asked for"]


def run_program(
    program: Program,
    launcher: Launcher,
    ranks: int,
    arguments: Sequence[str],
    device: str,
    timeout: float,
    folder: Path,
    recording: Recording = _PLAIN,
    nodes: Nodes | None = None,
) -> records.Run:
    """Run one program and read its records; `folder` is for what the run needs and leaves."""
    place = folder / program.name
    for name in ("records", "logs", "start"):
        (place / name).mkdir(parents=True)
    launcher = launch.choose(launcher, program.script)
    meeting = nodes.options(program.name) if nodes else ["--standalone"]
    outcome = processes.run(
        launch.command(program, launcher, ranks, list(arguments), place / "logs", meeting),
        program.folder,
        launch.environment(program, device, place / "records", place / "start", recording),
        place / "output",
        timeout,
    )
    found = records.read_ranks(place / "records")
    expected = ranks if launcher is Launcher.TORCHRUN else 0
    scene = failures.Scene(program, outcome, place, expected, found)
    try:
        failures.check(scene)
    except ProgramFailed as failure:
        if nodes is not None:
            nodes.share(program.name, place / "records", failure.reason)
        raise emulation.explain(failure, bool(recording.emulate)) from None
    if nodes is not None:
        found = _ranks_of_all(nodes, program.name, place / "records", timeout)
    ranks_of = [replace(rank, output=scene.printed(rank.rank)) for rank in found]
    return records.Run(ranks_of, outcome.seconds, scene.output)


def _ranks_of_all(nodes: Nodes, program: str, place: Path, timeout: float) -> list[records.Rank]:
    """The ranks of all nodes, as soon as each of them has put its records in the shared folder."""
    nodes.share(program, place)
    shared = nodes.meet(program, timeout)
    ranks = [rank for folder in shared for rank in records.read_ranks(folder)]
    return sorted(ranks, key=lambda rank: rank.rank)


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
        raise Unverifiable(
            f"{ranks} ranks need {ranks} CUDA devices, there are {count} (NCCL takes one rank a device): "
            f"{f'--nproc {count} fits, and ' if count else ''}--device cpu runs on any number"
        )
    return "cuda" if count >= ranks else "cpu"
