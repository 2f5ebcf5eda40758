"""Who asks: the program, or torch itself."""

from __future__ import annotations

import sys

_TORCHS = {"torch", "functorch", "_fsdp_migrate_record"}


def from_program() -> bool:
    """Whether the function that calls this was itself called from outside torch."""
    name = sys._getframe(2).f_globals.get("__name__", "")
    return str(name).partition(".")[0] not in _TORCHS
