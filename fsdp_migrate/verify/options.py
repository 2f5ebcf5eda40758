"""How two programs are run and compared."""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fsdp_migrate.verify.errors import Unverifiable
from fsdp_migrate.verify.nodes import Nodes
from fsdp_migrate.verify.processes import held_back

TIMEOUT = 600.0


@dataclass(frozen=True)
class Recording:
    """How a program is run and recorded.

    Attributes:
        emulate: the number of CUDA devices to emulate on the CPU; 0 for none.
        start: the file of the original's first values that the migrated program takes over; None for none.
        lines: the last optimizer step of which the program's lines are recorded; 0 for none.
    """

    canonical: bool = False
    emulate: int = 0
    start: Path | None = None
    lines: int = 0


class Progress:
    """What a person who waits is told; here nothing."""

    def stage(self, text: str) -> None:
        """What is done now, or was found, in a line."""

    def now(self, text: str) -> None:
        """How far that is."""


@dataclass(frozen=True)
class Options:
    """The options of `verify`, as `--help` says."""

    entry: Path | None = None
    links: Sequence[Path] = ()
    ranks: int = 2
    arguments: Sequence[str] = ()
    launcher: str = "auto"
    device: str = "auto"
    tolerance: float | None = None
    timeout: float = TIMEOUT
    nodes: Nodes | None = None
    canonical: bool | None = None
    align_init: bool = False
    emulate: bool | None = None
    repeat: bool | None = None
    where: bool | None = None
    form: str = "auto"
    quick: bool = False
    side_by_side: bool | None = None
    progress: Progress = field(default_factory=Progress)

    def usable(self) -> Options:
        """The same with the device that `auto` means here; raises Unverifiable without torch, or enough devices."""
        if importlib.util.find_spec("torch") is None:
            raise Unverifiable("verify needs torch: pip install 'fsdp-migrate[runtime]'")
        with held_back():  # what is raised while torch imports numpy would be lost
            import torch

        count = 0
        if torch.cuda.is_available():
            count = torch.cuda.device_count()
        if self.device == "cuda" and count < self.ranks:
            fitting = ""
            if count:
                fitting = f"--nproc {count} fits, and "
            raise Unverifiable(
                f"{self.ranks} ranks need {self.ranks} CUDA devices, there are {count} (NCCL takes one rank a device): "
                f"{fitting}--device cpu runs on any number"
            )
        if self.device == "cpu" or count < self.ranks:
            device = "cpu"
        else:
            device = "cuda"
        if self.emulate and device != "cpu":
            raise Unverifiable("CUDA is emulated on the CPU: --emulate needs --device cpu")
        return replace(self, device=device)

    @property
    def typed(self) -> str:
        """The options and arguments of this run as they are typed, without how the programs are named and migrated."""
        options: dict[str, object] = {"--nproc": self.ranks, "--device": self.device}
        if self.launcher != "auto":
            options["--launcher"] = self.launcher
        if self.tolerance is not None:
            options["--tolerance"] = f"{self.tolerance:g}"
        if self.timeout != TIMEOUT:
            options["--timeout"] = f"{self.timeout:g}"
        parts = [str(part) for pair in options.items() for part in pair]
        parts += [part for link in self.links for part in ("--link", str(link))]
        switches = {"canonical": self.canonical, "emulate": self.emulate}
        parts += [
            f"--{'' if on else 'no-'}{name}" for name, on in switches.items() if on is not None
        ]
        if self.align_init:
            parts.append("--align-init")
        if self.nodes is not None:
            parts += self.nodes.typed
        if self.arguments:
            parts += ["--", *self.arguments]
        return shlex.join(parts)

    @property
    def recording(self) -> Recording:
        """What the recorder does, in the first run of the original."""
        canonical = self.canonical
        if canonical is None:
            canonical = self.device == "cpu"
        if self.emulate:
            return Recording(canonical, self.ranks)
        return Recording(canonical, 0)

    @property
    def may_emulate(self) -> bool:
        """Whether CUDA is emulated if a program asks for it."""
        return self.emulate is None and self.device == "cpu" and self.nodes is None
