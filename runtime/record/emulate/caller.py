"""Who asks: the program, or torch itself."""

from __future__ import annotations

import sys

from .. import patch

_TORCHS = {"torch", "functorch", "_fsdp_migrate_record"}


def from_program() -> bool:
    """Whether the function that calls this was itself called from outside torch."""
    frame = sys._getframe(2)
    if frame.f_code.co_filename == patch.__file__ and frame.f_back is not None:
        frame = frame.f_back  # that has replaced a function of torch by it
    name = frame.f_globals.get("__name__", "")
    return str(name).partition(".")[0] not in _TORCHS
