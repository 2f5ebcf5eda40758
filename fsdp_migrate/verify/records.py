"""What one run of a program left behind: a record a process, put in the order of the ranks."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from dataclasses import dataclass, field, fields
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
            them.
        problems: what could not be recorded, and why.
        aligned: the first values that it took over from the other program.
        output: what it printed, where the launcher parts it from the others.
        files: the files of the copy that it ran, relative to it.
        fsdp1: where it first built a model of torch's FSDP1, as `file:line`; empty if it did not.
        sharded: whether it built a unit of FSDP1 or FSDP2.
        options: the options that the optimizer has for each parameter, at its first step.
        lost: parameters of optimizers that belong to no module.
        quirks: what each `like_fsdp1` of the program did, as the runtime tells it (`runtime/record/quirks.py`).
        dtype: what the model computes in, as `torch.bfloat16`; so of the last loss and gradient.
    """

    rank: int
    losses: list[float]
    loss_steps: list[int]
    squares: list[float]
    learning_rates: list[list[float]]
    backend: str = ""
    collectives: dict[str, int] = field(default_factory=dict)
    peak_memory_bytes: int = 0
    step_seconds: list[float] = field(default_factory=list)
    parameters: Path | None = None
    problems: list[str] = field(default_factory=list)
    collective_bytes: dict[str, int] = field(default_factory=dict)
    start: Path | None = None
    start_problem: str = ""
    aligned: list[str] = field(default_factory=list)
    output: str = ""
    files: list[str] = field(default_factory=list)
    fsdp1: str = ""
    sharded: bool = True
    options: dict[str, dict[str, float]] = field(default_factory=dict)
    lost: int = 0
    dtype: str = ""
    loss_dtype: str = ""
    gradient_dtype: str = ""
    quirks: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Run:
    """One run of a program on all its ranks, in order; `output` is what the launcher printed, and maybe the ranks, too."""

    ranks: list[Rank]
    seconds: float
    output: str = ""

    @property
    def peak_memory_bytes(self) -> int:
        """Of the rank that took most."""
        return max((rank.peak_memory_bytes for rank in self.ranks), default=0)

    @property
    def step_seconds(self) -> float | None:
        """The first rank's median."""
        seconds = self.ranks[0].step_seconds if self.ranks else []
        return statistics.median(seconds) if seconds else None

    @property
    def aligned(self) -> list[str]:
        """The first values that were taken over from the other program, on any rank."""
        return list(dict.fromkeys(name for rank in self.ranks for name in rank.aligned))

    @property
    def options(self) -> dict[str, dict[str, float]]:
        """The optimizers' options for each parameter, on any rank."""
        return {name: own for rank in self.ranks for name, own in rank.options.items()}

    @property
    def dtypes(self) -> tuple[str, str]:
        """Of the losses and of the gradients; float32 where that is not known."""
        first = self.ranks[0] if self.ranks else None
        return (first.loss_dtype, first.gradient_dtype) if first else ("", "")

    @property
    def steps(self) -> int:
        """Optimizer steps that every rank took."""
        return min((len(rank.squares) for rank in self.ranks), default=0)

    @property
    def backwards(self) -> list[list[float]]:
        """For each backward, the losses of all ranks that have one."""
        rows = itertools.zip_longest(*(rank.losses for rank in self.ranks))
        return [[loss for loss in row if loss is not None] for row in rows]

    @property
    def grad_norms(self) -> list[float]:
        """The global gradient norm before each step."""
        parts = zip(*(rank.squares for rank in self.ranks), strict=False)
        return [math.sqrt(math.fsum(squares)) for squares in parts]


@dataclass(frozen=True)
class Ending:
    """How one process ended, rank or not: the exit status that it asked for, and the `code` that it surely had."""

    rank: int
    status: int
    code: int | None
    failure: str
    ended: float


def read_endings(folder: Path) -> list[Ending]:
    """How those processes ended that could record it: ranks before others, in order of time."""
    endings = [Ending(**_known(Ending, data)) for _, data in _read(folder)]
    return sorted(endings, key=lambda ending: (ending.rank < 0, ending.ended))


def read_ranks(folder: Path) -> list[Rank]:
    """The records of all ranks; of two with the same rank the one that trained last."""
    ranks: dict[int, tuple[tuple[bool, float], Rank]] = {}
    for path, data in _read(folder):
        order = (bool(data["losses"]), data["ended"])
        number = data["rank"]
        if number >= 0 and (number not in ranks or ranks[number][0] < order):
            ranks[number] = (order, _rank(path, data))
    return [ranks[number][1] for number in sorted(ranks)]


def _rank(path: Path, data: dict[str, Any]) -> Rank:
    parameters, start = path.with_suffix(".pt"), path.with_suffix(".start.pt")
    more: dict[str, Any] = {
        "step_seconds": [
            after - before for before, after in itertools.pairwise(data["step_times"])
        ],
        "parameters": parameters if parameters.exists() else None,
        "start": start if start.exists() else None,
    }
    return Rank(**_known(Rank, data), **more)


def _known(kind: type, data: dict[str, Any]) -> dict[str, Any]:
    """Those entries of a record that are fields of a class."""
    return {field.name: data[field.name] for field in fields(kind) if field.name in data}


def _read(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    paths = sorted(folder.glob("process-*.json"))
    return [(path, json.loads(path.read_text(encoding="utf-8"))) for path in paths]
