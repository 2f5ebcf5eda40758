"""The file that a process writes of its lines."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import IO, Any


class Journal:
    """Writes one JSON list a line to `process-PID.lines`, until so many lines, or seconds of its processor, are over.

    Entries are ["file", number, path], ["rank", number], ["call", frame, parent, file, line, name, values],
    ["line", frame, line, values], ["return", frame, line, values] and ["cut"] where it ended before the program did,
    behind ["limit"] where one of the limits ended it.

    Attributes:
        stop: called once at the end, so that the program runs on unfollowed.
        on: whether it is still written.
    """

    def __init__(self, folder: str, lines: int, seconds: float) -> None:
        self.stop: Callable[[], None] = lambda: None
        self.on = True
        self._folder = folder
        self._left = lines
        self._seconds = seconds
        self._until = 0.0
        self._files: dict[str, int] = {}
        self._rank = -1
        self._stream: IO[str] | None = None

    def write(self, *entry: Any) -> None:
        """Write an entry, unless the journal has ended."""
        if not self.on:
            return
        now = time.process_time()  # a machine that is busy must not shorten the journal
        if self._stream is None:
            path = os.path.join(self._folder, f"process-{os.getpid()}.lines")
            # Each line is written at once: the process may be killed.
            self._stream = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115
            self._until = now + self._seconds
        self._tell_rank()
        self._stream.write(json.dumps(entry) + "\n")
        self._left -= 1
        if self._left <= 0 or now > self._until:
            self._stream.write('["limit"]\n')
            self.end()

    def file(self, path: str) -> int:
        """The number that stands for a file."""
        if path not in self._files:
            self._files[path] = len(self._files)
            self.write("file", self._files[path], path)
        return self._files[path]

    def end(self) -> None:
        """Write no more."""
        if self.on and self._stream is not None:
            self._stream.write('["cut"]\n')
        self.on = False
        self.stop()

    def reopen(self) -> None:
        """Begin another file, as a forked child does."""
        self._stream = None
        files = self._files
        self._files = {}
        if self.on:
            for path in files:
                self.file(path)

    def _tell_rank(self) -> None:
        """Write the rank as soon as the process has joined a group."""
        group = sys.modules.get("torch.distributed")
        if self._rank < 0 and group is not None and self._stream is not None:
            if getattr(group, "is_initialized", lambda: False)():
                self._rank = group.get_rank()
                self._stream.write(f'["rank", {self._rank}]\n')
