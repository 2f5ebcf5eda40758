"""A run on several nodes: every node runs `verify`.

A node puts its records in a shared folder when its part of a program has ended, and waits for the others'. So the
next program begins on all nodes together, and each of them reads the same records in the end.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path

from fsdp_migrate.verify.errors import ProgramFailed, Unverifiable

_PAUSE = 0.2
_FAILURE = "failure"


@dataclass(frozen=True)
class Nodes:
    """The nodes of a run, seen from one of them; `run` is a name that this run alone has."""

    count: int
    number: int
    endpoint: str
    run: str
    folder: Path

    @property
    def typed(self) -> list[str]:
        """The options of `verify` on this node, as they are typed."""
        values = {
            "--nnodes": self.count,
            "--node-rank": self.number,
            "--rdzv-endpoint": self.endpoint,
            "--rdzv-id": self.run,
            "--records": self.folder,
        }
        return [str(part) for pair in values.items() for part in pair]

    def options(self, program: str) -> list[str]:
        """torchrun's options for one of the programs."""
        return [
            f"--nnodes={self.count}",
            f"--node-rank={self.number}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={self.endpoint}",
            f"--rdzv-id={self.run}-{program}",
        ]

    def again(self, name: str) -> Nodes:
        """The same for one more run."""
        return replace(self, run=f"{self.run}-{name}")

    def check(self) -> None:
        """Raise `Unverifiable` if the shared folder has records of an earlier run of this name."""
        for program in ("original", "migrated"):
            if (place := self._place(program, self.number)).exists():
                raise Unverifiable(f"{place} is of an earlier run: give another --rdzv-id")

    def share(self, program: str, records: Path, failure: str = "") -> None:
        """Put this node's records where the others find them."""
        place = self._place(program, self.number)
        part = place.with_suffix(".part")
        part.mkdir(parents=True, exist_ok=True)
        for file in records.glob("process-*"):
            shutil.copy2(file, part)
        if failure:
            (part / _FAILURE).write_text(failure, encoding="utf-8")
        os.replace(part, place)

    def meet(self, program: str, timeout: float) -> list[Path]:
        """The records of all nodes, as soon as they are there; raises ProgramFailed if it failed on another node."""
        end = time.monotonic() + timeout
        places = [self._place(program, number) for number in range(self.count)]
        while missing := [place for place in places if not place.exists()]:
            if time.monotonic() > end:
                names = ", ".join(place.name for place in missing)
                raise ProgramFailed(program, f"no records of {names} appeared in {self.folder}", "")
            time.sleep(_PAUSE)
        for place in places:
            if (place / _FAILURE).exists():
                failure = (place / _FAILURE).read_text(encoding="utf-8")
                raise ProgramFailed(program, f"on {place.name}, {failure}", "")
        return places

    def _place(self, program: str, number: int) -> Path:
        return self.folder / self.run / program / f"node-{number}"
