"""Two programs while they run: how far they are, and the first difference as soon as both have come to it."""

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from fsdp_migrate.verify.compare import Difference, compare
from fsdp_migrate.verify.options import Options
from fsdp_migrate.verify.records import Following, Run

NAMES = ("original", "migrated")


class Live:
    """The steps of both programs, by the records below a folder.

    Attributes:
        first: the first difference so far.
        stop: set where the programs shall end.
    """

    def __init__(self, folder: Path, how: Options) -> None:
        self.first: Difference | None = None
        self.stop = threading.Event()
        self._how = how
        self._folder = folder
        self._records = {name: Following(folder / name / "records") for name in NAMES}
        self._lock = threading.Lock()  # each program has a thread
        self._compared = 0

    def steps(self, name: str) -> int:
        """How many steps a program has finished on all ranks."""
        with self._lock:
            run = self._records[name].run()
        if run.complete:
            return run.steps
        return 0

    def look(self) -> bool:
        """See what is new; returns whether the programs shall end."""
        with self._lock:
            one, other = [self._records[name].run() for name in NAMES]
            steps = min(one.steps, other.steps)
            if one.complete and other.complete and steps > self._compared and not self.first:
                self._compared = steps
                self._compare(one.upto(steps), other.upto(steps))
            runs = zip(NAMES, (one, other), strict=True)
            self._how.progress.now(", ".join(self._texts(runs)))
        return self.stop.is_set()

    def _texts(self, runs: Iterable[tuple[str, Run]]) -> Iterator[str]:
        """How far each program is that has been started."""
        for name, run in runs:
            if run.steps:
                yield f"{name}: step {run.steps}"
            elif (self._folder / name / "records").exists():
                yield f"{name}: starting"

    def _compare(self, one: Run, other: Run) -> None:
        self.first = next(iter(compare(one, other, self._how.tolerance).differences), None)
        if self.first:
            self._how.progress.stage(f"so far: {self.first}")
            if self._how.quick:
                self.stop.set()
