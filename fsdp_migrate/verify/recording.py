"""What the recorder changes in a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Recording:
    """How a program is run and recorded.

    Attributes:
        canonical: sums over ranks, and norms, do not depend on who holds what.
        emulate: the number of CUDA devices to emulate on the CPU; 0 for none.
        workers: of each DataLoader; None for the program's own number.
        align: which first values to take from `start`: `all`, `drawn` or, for none, the empty text.
        start: the file with the original's first values, for the migrated program.
        values: what each FSDP1 construct is given is recorded, too.
    """

    canonical: bool = False
    emulate: int = 0
    workers: int | None = None
    align: str = ""
    start: Path | None = None
    values: bool = False
