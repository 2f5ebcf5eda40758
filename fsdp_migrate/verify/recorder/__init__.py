"""The recorder that `fsdp-migrate verify` runs programs under.

A `sitecustomize` module starts it in every interpreter of a program, before the program's first line, and it installs
itself when `import torch` has finished. It never communicates, so it cannot deadlock a program whose ranks disagree:
each process writes what it saw into a file of its own, and the comparison adds up.

This package is loaded under a private name, so that it brings nothing else into the program: its modules import each
other relatively, and else torch and the standard library only.
"""


def start() -> None:
    """Arrange for the recorder to be installed as soon as the program has imported torch."""
    from .settings import FOLDER, SETTINGS

    if not FOLDER:
        return
    from . import imports, leaving, seeds

    copies = imports.Copies(SETTINGS["copies"])
    imports.install(copies)
    seeds.install()
    if SETTINGS["device"] == "cpu":
        from . import cpu

        cpu.install()
    if SETTINGS["emulate"]:
        from . import emulate

        emulate.install(SETTINGS["emulate"])
    if SETTINGS["canonical"]:
        from . import canonical

        canonical.install()
    if SETTINGS["lines"]:
        from . import lines

        lines.install(FOLDER, copies, SETTINGS["lines"])
    # First of all exit handlers, hence the last to run; a process that never imports torch has
    # nothing to write.
    departure = leaving.install()

    def record(_: object) -> None:
        from . import session

        departure.before = session.install(FOLDER, departure, copies)

    imports.after("torch", record)
