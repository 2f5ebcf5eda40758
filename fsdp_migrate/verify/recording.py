"""What the recorder is asked to do, beyond recording."""

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

    def variables(self) -> dict[str, str]:
        """The environment variables that say it."""
        values = {}
        if self.canonical:
            values["FSDP_MIGRATE_CANONICAL"] = "1"
        if self.emulate:
            values["FSDP_MIGRATE_EMULATE"] = str(self.emulate)
            # A compiled graph would make its tensors past the emulation.
            values["TORCHDYNAMO_DISABLE"] = "1"
        if self.workers is not None:
            values["FSDP_MIGRATE_WORKERS"] = str(self.workers)
        if self.start is not None and self.align:
            values["FSDP_MIGRATE_START"] = str(self.start)
            values["FSDP_MIGRATE_ALIGN"] = self.align
        if self.values:
            values["FSDP_MIGRATE_VALUES"] = "1"
        return values
