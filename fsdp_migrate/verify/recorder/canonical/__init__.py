"""Canonical arithmetic: sums over ranks that do not depend on who holds what.

FSDP1 and FSDP2 lay the same gradients out in different buffers, so a backend adds them up in different orders. Here
both programs add in one defined way, and every difference that remains has another reason: reductions over ranks
(`collectives`) in fp64, in the order of the ranks, rounded once; norms of gradients and clipping
(`norms`) in fp64; the gradient of a tensor that several units read (`inputs`) one use after the other.
"""

from .. import imports


def install() -> None:
    """Arrange for the canonical arithmetic to be used as soon as the program imports torch."""
    from . import norms

    def reductions(_: object) -> None:
        from . import collectives, inputs

        collectives.install()
        inputs.install()

    imports.after("torch", reductions)
    norms.install()
