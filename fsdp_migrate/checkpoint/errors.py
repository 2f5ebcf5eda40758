"""Why a checkpoint cannot be read or converted. Each message is one line for the user."""

from pathlib import Path


class Unreadable(Exception):
    """The file (`path`, where it is not the one that the user named) is damaged, no checkpoint, or asks for too much."""

    def __init__(self, reason: str, path: Path | None = None) -> None:
        super().__init__(reason)
        self.path = path


class Refused(Exception):
    """The checkpoint can be read, but nothing sound can be written from it."""


class Incomplete(Refused):
    """The files of some ranks are missing."""


class LocalShards(Refused):
    """Some tensors are one rank's own, without a layout; other entries may be convertible."""


class Misplaced(Exception):
    """The command's arguments do not fit what is on the disk: nothing is written."""
