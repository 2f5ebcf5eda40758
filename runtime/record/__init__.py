"""The recorder that `fsdp-migrate verify` runs programs under.

It is started by a `sitecustomize` module in every interpreter of a program, before the program's
first line, and installs itself when `import torch` has finished: in torchrun's workers, in the
children of `mp.spawn` and in a plain `python` alike. The program is not edited. The recorder never
communicates, so it cannot deadlock a program whose ranks disagree: each process writes what it saw
into a file of its own, and the comparison adds up.

This package is loaded on its own, under a private name, so that it brings nothing else into the
program: its modules import each other relatively, and else torch (once the program did) and the
standard library only.
"""

from __future__ import annotations

import os

FOLDER = "FSDP_MIGRATE_RECORD"
"""Environment variable: the folder that the records go to. Without it nothing is recorded."""

DEVICE = "FSDP_MIGRATE_DEVICE"
"""Environment variable: `cpu` or `cuda`, the kind of device that the program is meant to use."""

CANONICAL = "FSDP_MIGRATE_CANONICAL"
"""Environment variable: `1` for sums over ranks that do not depend on the layout (`canonical`)."""

EMULATE = "FSDP_MIGRATE_EMULATE"
"""Environment variable: the number of CUDA devices to emulate on the CPU (`emulate`)."""

WORKERS = "FSDP_MIGRATE_WORKERS"
"""Environment variable: the number of workers of each DataLoader (`workers`)."""

ALIGN = "FSDP_MIGRATE_ALIGN"
"""Environment variable: which first values to take from `START`: `all`, or `drawn` (`start`)."""

START = "FSDP_MIGRATE_START"
"""Environment variable: the file with the other program's first values."""

COPIES = "FSDP_MIGRATE_COPIES"
"""Environment variable: the user's folders and their copies, in JSON (`redirect`)."""


def start() -> None:
    """Arrange for the recorder to be installed as soon as the program has imported torch."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    from . import imports, leaving, redirect, seeds

    copies = redirect.Copies(os.environ.get(COPIES, ""))
    redirect.install(copies)
    imports.install()
    seeds.install()
    _change()
    # First of all exit handlers, hence the last to run; a process that never imports torch has
    # nothing to write.
    departure = leaving.install()

    def record(_: object) -> None:
        from . import session, stacks

        departure.before = session.install(folder, departure, copies)
        stacks.install(folder)

    imports.after("torch", record)


def _change() -> None:
    """What is asked for beyond watching, each a package or module of its own."""
    settings = os.environ
    if settings.get(DEVICE) == "cpu":
        from . import cpu

        cpu.install()
    if settings.get(EMULATE):
        from . import emulate

        emulate.install(int(settings[EMULATE]))
    if settings.get(WORKERS):
        from . import workers

        workers.install(int(settings[WORKERS]))
    if settings.get(CANONICAL):
        from . import canonical

        canonical.install()
