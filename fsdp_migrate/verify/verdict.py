"""The result of `verify`, and its JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fsdp_migrate.verify import causes, clipping
from fsdp_migrate.verify.causes import Cause, find
from fsdp_migrate.verify.compare import Comparison, Difference, largest
from fsdp_migrate.verify.next_steps import NextSteps
from fsdp_migrate.verify.outputs import Printed, count_of_lines
from fsdp_migrate.verify.quirks import Line as Quirks
from fsdp_migrate.verify.records import Run
from fsdp_migrate.verify.where.lines import Line
from fsdp_migrate.views.text import counted

_PARAMETERS = 50
"""At most so many parameters in the JSON."""

_UNSTEADY = (
    "the original trains differently each time, so a difference says nothing about the migration",
    "Look in it for a seed from the time or the process number, for loops over sets, and for os.listdir or glob without "
    "sorted: give each a fixed seed or order.",
)
_LISTED = 12
"""At most so many files that were compared are named in a text."""


@dataclass(frozen=True)
class Verdict(Comparison):
    """Whether two programs train the same.

    Attributes:
        backend: of the original's process group, as in `gloo`.
        parameters: the largest difference of two elements of each last parameter, in the model's order; None if
            not known.
        uncompared: what is no part of this verdict.
        routine: what is a part of none, whatever the programs do.
        notes: what else a reader should know.
        environment: where they ran, as names and values for a reader.
        buffer: where `max_abs_buffer_diff` is: a name, and the rank.
        cause: why they differ, as far as that is known.
        control: the original against itself, if it ran twice.
        quirks: what each `like_fsdp1` of the migrated program did.
        printed: lines with other words or numbers, which are no difference of the training.
        files: those that were compared, each with what is in it.
        diff: of the programs' Python files.
        where: lines of the original that do something else after the migration, the first one first.
        next: what to do now.
    """

    tolerance: float
    backend: str
    parameters: dict[str, float] | None
    original: Run
    migrated: Run
    cause: Cause | None = None
    uncompared: list[str] = field(default_factory=list)
    routine: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    max_abs_buffer_diff: float = 0.0
    buffer: str = ""
    canonical: bool = False
    emulated: bool = False
    control: Verdict | None = None
    quirks: list[Quirks] = field(default_factory=list)
    printed: list[Printed] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    diff: str = ""
    where: list[Line] = field(default_factory=list)
    next: NextSteps = field(default_factory=NextSteps)

    @property
    def equal(self) -> bool:
        """Whether every loss, step, learning rate, gradient norm and last parameter agrees within the tolerance."""
        return not self.differences

    @property
    def first(self) -> Difference | None:
        """The first difference; None if there is none."""
        return min(self.differences, default=None)

    @property
    def max_abs_param_diff(self) -> float | None:
        """The largest difference of two elements of the last parameters; None if not known."""
        if self.parameters is None:
            return None
        return largest(self.parameters.values())

    @property
    def odd_parameters(self) -> dict[str, float]:
        """The last parameters that are not the same to the last bit, in the model's order."""
        return {name: apart for name, apart in (self.parameters or {}).items() if apart != 0}

    def also(self, differences: list[Difference]) -> Verdict:
        """The same with further differences; the first of all has the cause."""
        both = sorted([*self.differences, *differences])
        cause = self.cause or find(min(both, default=None), self.original, self.migrated, "")
        return replace(self, differences=both, cause=cause)

    def without(self, control: Verdict, noise: Sequence[Difference] = ()) -> Verdict:
        """The same with the original against itself, and without what the original itself does otherwise the second time.

        `noise` are the files that it then writes otherwise.
        """
        lines = {(line.place, line.words) for line in control.printed}
        kept = [line for line in self.printed if (line.place, line.words) not in lines]
        files = {found.what for found in noise}
        differences = [found for found in self.differences if found.what not in files]
        cause = None
        if differences and control.equal:
            cause = self.cause
        elif differences:
            cause = Cause("original", *_UNSTEADY)
        return replace(self, printed=kept, control=control, differences=differences, cause=cause)

    @property
    def deterministic(self) -> bool:
        """Whether the original is not known to train otherwise the second time."""
        return self.control is None or self.control.equal

    @property
    def _is_judged(self) -> bool:
        """Whether times of steps can be compared."""
        steps = self.original.step_seconds and self.migrated.step_seconds is not None
        return bool(steps) and not self.emulated and not self.canonical

    @property
    def cost(self) -> str:
        """Time and memory, a verdict of their own."""
        before = self.original.step_seconds
        after = self.migrated.step_seconds
        if self._is_judged and before and after is not None:
            peaks = [run.peak_memory_bytes for run in (self.original, self.migrated)]
            memory = ""
            if peaks[0]:
                memory = f", peak memory {peaks[1] / peaks[0]:.2f} times"
            return f"time and memory: a step takes {after / before:.2f} times as long{memory}"
        why = "because there are too few steps"
        if self.canonical:
            why = "because sums are made in a fixed order"
        if self.emulated:
            why = "because CUDA was emulated"
        return f"time and memory: not judged, {why}"

    @property
    def compared(self) -> Iterator[str]:
        """What was compared, equal or not."""
        ranks = self.original.ranks
        steps = counted(self.original.steps, "step")
        losses = max((len(rank.losses) for rank in ranks), default=0)
        yield f"{counted(losses, 'loss')} on each of {counted(len(ranks), 'rank')}"
        yield f"the gradient norm and the learning rates of {steps}"
        if self.parameters is not None:
            buffers = ", and the buffers"
            if self.tolerance and not self.bitwise:
                buffers = ""
            yield f"{counted(len(self.parameters), 'parameter')} after the last step{buffers}"
        if lines := count_of_lines(self.original):
            yield f"{counted(lines, 'printed line')}"
        yield from self.files

    @property
    def remarks(self) -> Iterator[str]:
        """What every report says beside the verdict, a line each."""
        return self.notable(verbose=True)

    def notable(self, *, verbose: bool) -> Iterator[str]:
        """The same without what tells nothing about this verdict, unless that is asked for."""
        yield from self._scope()
        if verbose:
            yield from (f"not compared: {text}" for text in self.routine)
        if told := clipping.told(self.original, self.migrated):
            yield told
        yield from self._numbers(verbose=verbose)
        if self.control is not None and self.deterministic:
            yield "control: the original trains the same when it runs twice"
        elif self.control is not None:
            yield "control: the original does not train the same when it runs twice"
        known = [line.cause for line in self.printed if line.cause]
        if self.cause is not None:
            known.append(self.cause.title)
        notes = [causes.untold(note, known) for note in self.notes]
        yield from (f"note: {note}" for note in notes if note)
        others = {found.what: found for found in reversed(self.differences)}
        yield from (f"also: {found}" for found in [*others.values()][::-1] if found != self.first)

    def _numbers(self, *, verbose: bool) -> Iterator[str]:
        """How far the programs are apart, and how that is judged."""
        if verbose or (self.equal and not self.bitwise):
            yield from self._largest()
        if verbose:
            yield self._arithmetic()
        if verbose or not self.bitwise:
            yield self._tolerance()
        if verbose or self._is_judged:
            yield self.cost

    def _scope(self) -> Iterator[str]:
        """What was compared, and what was not."""
        trained = [*self.compared][: -len(self.files) or None]
        yield f"compared: {'; '.join(trained)}"
        if self.files:
            listed = self.files[:_LISTED]
            rest = len(self.files) - _LISTED
            if rest > 0:
                listed = [*listed, counted(rest, "more file")]
            yield f"compared files: {'; '.join(listed)}"
        for text in self.uncompared:
            yield f"not compared: {text}"

    def _largest(self) -> Iterator[str]:
        """The largest differences of gradients, parameters and buffers."""
        yield f"gradient norms: largest relative difference {self.max_rel_grad_norm:.3g}"
        if self.max_abs_param_diff is not None:
            where = ""
            if odd := self.odd_parameters:
                where = f", the first is {next(iter(odd))}"
            yield f"last parameters: largest difference {self.max_abs_param_diff:.3g}{where}"
        if self.max_abs_buffer_diff:
            yield f"last buffers: largest difference {self.max_abs_buffer_diff:.3g}, {self.buffer}"

    def _arithmetic(self) -> str:
        how = f"{self.backend}'s own"
        if self.canonical:
            how = "both programs make sums over ranks in rank order, and norms, in float64 (--no-canonical turns it off)"
        if self.emulated:
            how += ", CUDA emulated"
        return f"arithmetic: {how}"

    def _tolerance(self) -> str:
        if not self.tolerance:
            return "tolerance: 0: the same bits"
        dtype = self.original.dtypes[0].removeprefix("torch.") or "float32"
        return f"tolerance: {self.tolerance:.3g} relative (losses are {dtype})"

    def seen(self, verbose: bool = True) -> Iterator[str]:
        """What the migrated program's run showed: the runtime's warnings, what is printed otherwise.

        Of `like_fsdp1` what is not needed; with `verbose` also what it did, and printed lines that tell no more than the
        cause does.
        """
        for line in self.quirks:
            if self.equal and (verbose or line.may_go):
                yield line.text()
            elif verbose and line.acted:
                yield line.did()  # what such a run needed is no advice
        for said in self.migrated.said:
            yield f"{said['place']} {said['code']}: {said['message']}"
        known = self.cause is not None and self.cause.name != "unknown"
        for printed in self.printed:
            if verbose or not known or printed.cause != causes.TRAINED_DIFFERENTLY:
                yield str(printed)

    @property
    def costs(self) -> Iterator[tuple[str, ...]]:
        """A table of both programs, a row each: its title and their figures."""
        runs = self.original, self.migrated
        yield "last loss of the first rank", *map(_last_loss, runs)
        yield "optimizer steps", *[str(run.steps) for run in runs]
        yield "seconds", *[f"{run.seconds:.1f}" for run in runs]
        yield "milliseconds of a step, median", *map(_step_time, runs)
        yield "peak memory of a rank, MiB", *[f"{r.peak_memory_bytes / 2**20:.0f}" for r in runs]

    def line(self) -> str:
        """The verdict in one line."""
        emulated = ""
        if self.emulated:
            emulated = " (CUDA emulated)"
        if not self.equal and self.control is not None and not self.deterministic:
            twice = f"{self.control.first} (its first run against its second)"
            return f"undecided{emulated}: the original program differs from itself: {twice}"
        return self._line() + emulated

    def _line(self) -> str:
        if self.first is not None:
            first = str(self.first)
            if " against " in self.first.text:
                text = self.first.text
                first = first.replace(text, f"{text} (original against migrated)", 1)
            return f"different: {first}; largest difference of a loss {self.max_abs_loss:.3g}"
        if self.bitwise:
            how = "bitwise equal"
        else:
            how = f"equal within {self.tolerance:.3g} relative"
        finite = [sum(map(math.isfinite, rank.losses)) for rank in self.original.ranks]
        losses = max(finite, default=0)
        compared = f"{counted(losses, 'loss')} on {counted(len(self.original.ranks), 'rank')} {how}"
        same = f"same: {compared}, largest difference {self.max_abs_loss:.3g}"
        if clipping.unproved(self.original, self.migrated):
            same += "; clipping never acted"
        if len(self.printed) == 1:
            same += "; 1 printed line differs"
        elif self.printed:
            same += f"; {counted(len(self.printed), 'printed line')} differ"
        unknown = sum(not line.cause for line in self.printed)
        if unknown:
            same += f", {unknown} without a known cause: look at the code that prints it"
        return same

    def to_json(self) -> dict[str, Any]:
        """The contract's fields, version 1; what is not a finite number is null."""
        return {
            "version": 1,
            "equal": self.equal,
            "bitwise": self.bitwise,
            "tolerance": self.tolerance,
            "ranks": len(self.original.ranks),
            "backend": self.backend,
            "steps": self.original.steps,
            "max_abs_loss_diff": _finite(self.max_abs_loss),
            "max_rel_grad_norm_diff": _finite(self.max_rel_grad_norm),
            "max_abs_param_diff": _finite(self.max_abs_param_diff),
            "original": _run(self.original),
            "migrated": _run(self.migrated),
            "first_difference": _difference(self.first),
            "causes": [asdict(self.cause)] if self.cause else [],
            "parameters": {
                name: _finite(apart) for name, apart in [*self.odd_parameters.items()][:_PARAMETERS]
            },
            "notes": self.notes,
            "environment": self.environment,
            "max_abs_buffer_diff": _finite(self.max_abs_buffer_diff),
            "arithmetic": "canonical" if self.canonical else "plain",
            "emulated": self.emulated,
            "aligned": self.migrated.aligned,
            "plain": None,  # had the figures of another run
            "deterministic": None if self.control is None else self.deterministic,
            "uncompared": [*self.uncompared, *self.routine],
            "cost": self.cost,
            "quirks": [line.to_json() for line in self.quirks],
            "said": self.migrated.said,
            "clipping": {
                name: clipping.to_json(run)
                for name, run in (("original", self.original), ("migrated", self.migrated))
            },
            "printed": [asdict(line) for line in self.printed],
            "compared": [*self.compared],
            "where": [line.to_json() for line in self.where],
            "line": self.line(),
            "next": [*self.next.steps],
        }


def _last_loss(run: Run) -> str:
    if run.ranks and run.ranks[0].losses:
        return f"{run.ranks[0].losses[-1]:.8g}"
    return "-"


def _step_time(run: Run) -> str:
    if run.step_seconds:
        return f"{1e3 * run.step_seconds:.1f}"
    return "-"


def _difference(first: Difference | None) -> dict[str, Any] | None:
    if first is None:
        return None
    return {
        "what": first.what,
        "step": None if first.ended else first.step,
        "rank": first.rank if first.rank >= 0 else None,
        "text": first.text,
        "parameter": first.parameter or None,
    }


def _run(run: Run) -> dict[str, Any]:
    return {
        "losses": [[_finite(loss) for loss in rank.losses] for rank in run.ranks],
        "grad_norms": [_finite(norm) for norm in run.grad_norms],
        "seconds": round(run.seconds, 3),
        "peak_memory_bytes": run.peak_memory_bytes,
        "collectives": run.ranks[0].collectives if run.ranks else {},
        "collective_bytes": run.ranks[0].collective_bytes if run.ranks else {},
    }


def _finite(value: float | None) -> float | None:
    if value is not None and math.isfinite(value):
        return value
    return None
