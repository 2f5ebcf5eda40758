"""Canonical arithmetic: sums over ranks that do not depend on who holds what.

FSDP1 and FSDP2 lay the same gradients out in different buffers, so a backend adds them up in
different orders: a sound migration differs in the last bits, and so would many a fault. Here both
programs add in one defined way, and every difference that remains has another reason.

- Reductions over ranks (`collectives`, `functional`): fp64, in the order of the ranks, rounded once
  to the tensor's type.
- Norms of gradients, and clipping by them (`norms`): fp64.
- The gradient of a tensor that several units read (`inputs`): one use after the other.

What it costs is bandwidth and time, and it is no backend's own result: the report says which
arithmetic was used.
"""

from __future__ import annotations

from .. import imports


def install() -> None:
    """Arrange for the canonical arithmetic to be used as soon as the program imports torch."""
    from . import norms

    def reductions(_: object) -> None:
        from . import collectives, functional, inputs

        collectives.install()
        functional.install()
        inputs.install()

    imports.after("torch", reductions)
    norms.install()
