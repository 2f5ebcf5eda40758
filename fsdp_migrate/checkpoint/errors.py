"""What keeps a checkpoint from being read, or from being converted. Each is one line for the user."""

from __future__ import annotations

from pathlib import Path


class Unreadable(Exception):
    """The file is damaged, or no checkpoint, or its pickle asks for more than tensors need.

    `path` is the file, where it is not the one that the user named.
    """

    def __init__(self, reason: str, path: Path | None = None) -> None:
        super().__init__(reason)
        self.path = path


class Refused(Exception):
    """The checkpoint can be read, but nothing sound can be written from it, or not to that place."""


class LocalShards(Refused):
    """Some tensors are one rank's own, without a layout; the others may be taken."""


class Misplaced(Exception):
    """Nothing may be written to that place: wrong usage. One line."""
