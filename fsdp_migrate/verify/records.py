"""What one run of a program left behind: a record a process, put in the order of the ranks."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Rank:
    """One rank's record.

    Attributes:
        losses: what each backward started from, in order.
        loss_steps: for each loss, the optimizer step that it belongs to, counted from 1.
        squares: for each step, this rank's part of the square of the global gradient norm.
        learning_rates: for each step, the rate of each parameter group.
        parameters, start: the files with its parts of the last parameters and of the first values, if it wrote
            them; `start_problem` and `end_problem` say why not.
        problems: what could not be recorded, and why.
        aligned: the first values that it took over from the other program.
        output: what it printed, where the launcher parts it from the others.
        files: the files of the copy that it ran, relative to it.
        fsdp1: where it first built a model of torch's FSDP1, as `file:line`; empty if it did not.
        sharded: whether it built a unit of FSDP1 or FSDP2.
        lost: parameters of optimizers that belong to no module.
        gathered: those of them that are the gathered form of a unit's sharded ones.
        quirks: what each `like_fsdp1` of the program did, as the runtime tells it (`fsdp_migrate/verify/recorder/evidence.py`).
        said: the runtime's warnings: `place`, the rule's `code` and `message`.
        dtype: what the model computes in, as `torch.bfloat16`; so of the last loss and gradient.
        precisions: the dtypes that each trained parameter is computed with, and its gradient reduced in.
        world: how many ranks there are.
        times: when each step began.
        names, gradients, values: for each step, the parameters of which this rank has a part, and this rank's part of
            the squares of their gradients' norms and of their own before the step.
        limits, clipped: for each step, the limits that gradients were clipped with, and whether that changed any.
    """

    rank: int
    losses: list[float]
    loss_steps: list[int]
    squares: list[float]
    learning_rates: list[list[float]]
    backend: str = ""
    collectives: dict[str, int] = field(default_factory=dict)
    peak_memory_bytes: int = 0
    parameters: Path | None = None
    problems: list[str] = field(default_factory=list)
    collective_bytes: dict[str, int] = field(default_factory=dict)
    start: Path | None = None
    start_problem: str = ""
    end_problem: str = ""
    aligned: list[str] = field(default_factory=list)
    output: str = ""
    files: list[str] = field(default_factory=list)
    fsdp1: str = ""
    sharded: bool = True
    lost: int = 0
    gathered: int = 0
    dtype: str = ""
    loss_dtype: str = ""
    gradient_dtype: str = ""
    precisions: dict[str, list[str]] = field(default_factory=dict)
    quirks: list[dict[str, Any]] = field(default_factory=list)
    said: list[dict[str, str]] = field(default_factory=list)
    world: int = 0
    times: list[float] = field(default_factory=list)
    names: list[list[str]] = field(default_factory=list)
    gradients: list[list[float]] = field(default_factory=list)
    values: list[list[float]] = field(default_factory=list)
    limits: list[list[str]] = field(default_factory=list)
    clipped: list[bool] = field(default_factory=list)

    def upto(self, steps: int) -> Rank:
        """The same, ended after so many steps."""
        losses = sum(step <= steps for step in self.loss_steps)
        return replace(
            self,
            losses=self.losses[:losses],
            loss_steps=self.loss_steps[:losses],
            squares=self.squares[:steps],
            learning_rates=self.learning_rates[:steps],
            limits=self.limits[:steps],
            clipped=self.clipped[:steps],
        )


@dataclass(frozen=True)
class Run:
    """One run of a program on all its ranks, in order; `output` is what the launcher printed, and maybe the ranks, too.

    One that was `stopped` did not come to its end.
    """

    ranks: list[Rank]
    seconds: float
    output: str = ""
    stopped: bool = False

    @property
    def peak_memory_bytes(self) -> int:
        """Of the rank that took most."""
        return max((rank.peak_memory_bytes for rank in self.ranks), default=0)

    @property
    def step_seconds(self) -> float | None:
        """The first rank's median."""
        if self.ranks:
            times = self.ranks[0].times
        else:
            times = []
        seconds = [after - before for before, after in itertools.pairwise(times)]
        if seconds:
            return statistics.median(seconds)
        return None

    @property
    def aligned(self) -> list[str]:
        """The first values that were taken over from the other program, on any rank."""
        return [*dict.fromkeys([name for rank in self.ranks for name in rank.aligned])]

    @property
    def said(self) -> list[dict[str, str]]:
        """What the runtime warned of on any rank, once a place and rule."""
        told = [each for rank in self.ranks for each in rank.said]
        return [*{(each["place"], each["code"]): each for each in told}.values()]

    def at(self, place: Callable[[str], str]) -> Run:
        """The same with other places of the runtime's warnings, as `place` returns them."""
        ranks = [
            replace(rank, said=[each | {"place": place(each["place"])} for each in rank.said])
            for rank in self.ranks
        ]
        return replace(self, ranks=ranks)

    @property
    def dtypes(self) -> tuple[str, str]:
        """Of the losses and of the gradients; empty where that is not known."""
        return next(((rank.loss_dtype, rank.gradient_dtype) for rank in self.ranks), ("", ""))

    @property
    def steps(self) -> int:
        """Optimizer steps that every rank took."""
        return min((len(rank.squares) for rank in self.ranks), default=0)

    def upto(self, steps: int) -> Run:
        """The same, ended after so many steps."""
        return replace(self, ranks=[rank.upto(steps) for rank in self.ranks])

    def squares(self, what: str, step: int) -> dict[str, float]:
        """The squares of the norms of all parameters' `gradients` or `values` at a step, in the first rank's order."""
        found: dict[str, float] = {}
        for rank in self.ranks:
            if step > len(rank.names):
                continue
            kept = getattr(rank, what)[step - 1]
            if not kept:
                continue
            for name, square in zip(rank.names[step - 1], kept, strict=True):
                found[name] = found.get(name, 0.0) + square
        return found

    @property
    def complete(self) -> bool:
        """Whether every rank has a record."""
        return bool(self.ranks) and len(self.ranks) == self.ranks[0].world

    @property
    def backwards(self) -> list[list[float]]:
        """For each backward, the losses of all ranks that have one."""
        rows = itertools.zip_longest(*[rank.losses for rank in self.ranks])
        return [[loss for loss in row if loss is not None] for row in rows]

    @property
    def places(self) -> Iterator[tuple[int, int, int]]:
        """For each backward the step, which of the step's backwards it is, from 1, and how many these are."""
        steps = max((rank.loss_steps for rank in self.ranks), key=len, default=[])
        for step, several in Counter(steps).items():
            for nth in range(1, several + 1):
                yield (step, nth, several)

    @property
    def grad_norms(self) -> list[float]:
        """The global gradient norm before each step."""
        parts = zip(*[rank.squares for rank in self.ranks], strict=False)
        return [math.sqrt(math.fsum(squares)) for squares in parts]


@dataclass(frozen=True)
class Ending:
    """How one process ended, rank or not: the exit status that it asked for, and the `code` that it surely had.

    `process` is its name in multiprocessing, or its script; `variable` is RANK, which children take over.
    """

    rank: int
    status: int
    code: int | None
    failure: str
    ended: float
    process: str = ""
    variable: int = -1

    @property
    def sure(self) -> bool:
        """Whether it surely ended badly, whatever the launcher's status: also a rank that left with 0 after an exception."""
        return bool(self.code or (self.failure and self.rank >= 0))


def read_endings(folder: Path) -> list[Ending]:
    """How those processes ended that could record it: ranks before others, in order of time."""
    endings = [Ending(**_known(Ending, data)) for _, data in _read(folder)]
    return sorted(endings, key=lambda ending: (ending.rank < 0, ending.ended))


class Following:
    """The steps that the ranks of a program have written so far: what is new is read each time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[Path, int] = {}
        self._ranks: dict[Path, Rank] = {}

    def ranks(self) -> dict[Path, Rank]:
        """What each process has trained by now, by the file that it writes."""
        for path in self._folder.glob("process-*.steps"):
            with path.open("rb") as file:
                file.seek(self._places.get(path, 0))
                for line in file:
                    if not line.endswith(b"\n"):  # it is just being written
                        break
                    self._places[path] = self._places.get(path, 0) + len(line)
                    rank = self._ranks.get(path) or Rank(-1, [], [], [], [])
                    self._ranks[path] = _with_step(rank, json.loads(line))
        return self._ranks

    def run(self) -> Run:
        """The run so far, with all ranks up to a step that each of them has finished."""
        ranks = {rank.rank: rank for rank in self.ranks().values()}
        return Run([ranks[number] for number in sorted(ranks)], 0.0)


def _with_step(rank: Rank, line: dict[str, Any]) -> Rank:
    rank.loss_steps.extend([len(rank.squares) + 1] * len(line["losses"]))
    rank.losses.extend(line["losses"])
    if "square" in line:
        rank.squares.append(line["square"])
        rank.learning_rates.append(line["rates"])
        rank.times.append(line["time"])
        names = line.get("names") or []
        if not names and rank.names:
            names = rank.names[-1]
        rank.names.append(names)
        rank.gradients.append(line.get("gradients", []))
        rank.values.append(line.get("values", []))
        rank.limits.append(line.get("limits", []))
        rank.clipped.append(line.get("clipped", False))
    loss, gradient = line["dtypes"]
    return replace(
        rank, rank=line["rank"], world=line["world"], loss_dtype=loss, gradient_dtype=gradient
    )


def read_ranks(folder: Path, stopped: bool = False) -> list[Rank]:
    """The records of all ranks that came to their end; of two with the same rank the one that trained last.

    A program that was `stopped` has left its steps only.
    """
    trained = Following(folder).ranks()
    ended = {path.with_suffix(".steps"): data for path, data in _read(folder)}
    ranks: dict[int, tuple[bool, float, Rank]] = {}
    paths = set(ended)
    if stopped:
        paths |= trained.keys()
    for path in sorted(paths):
        data = ended.get(path, {})
        files = {"parameters": path.with_suffix(".pt"), "start": path.with_suffix(".start.pt")}
        there: dict[str, Any] = {name: file for name, file in files.items() if file.exists()}
        rank = replace(trained.get(path) or Rank(-1, [], [], [], []), **_known(Rank, data), **there)
        found = bool(rank.losses), data.get("ended", 0.0), rank
        if rank.rank >= 0 and ranks.get(rank.rank, (False, -1.0, rank))[:2] < found[:2]:
            ranks[rank.rank] = found
    return [ranks[number][-1] for number in sorted(ranks)]


def _known(kind: type, data: dict[str, Any]) -> dict[str, Any]:
    """Those entries of a record that are fields of a class."""
    return {field.name: data[field.name] for field in fields(kind) if field.name in data}


def _read(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    paths = sorted(folder.glob("process-*.json"))
    return [(path, json.loads(path.read_text(encoding="utf-8"))) for path in paths]
