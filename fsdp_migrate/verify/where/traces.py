"""What the recorder wrote of a program's lines: frames, the lines that ran in each, and the frames that a line called."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Row:
    """A line that ran in a frame: the forms of what it changed, and the frames that it called.

    `kind` is `call` for a frame's arguments, `return` for its end or a value that it yields, `raise` for an exception
    that ends it, else `line`.
    """

    kind: str
    line: int
    values: dict[str, str]
    children: list[Frame] = field(default_factory=list)


@dataclass
class Frame:
    """A call of a function of the program, or the code of one of its modules."""

    number: int
    file: str
    first: int
    name: str
    rows: list[Row] = field(default_factory=list)
    waiting: list[Frame] = field(default_factory=list)


@dataclass
class Trace:
    """One process: the frames that no other own frame called.

    Attributes:
        cut: whether the journal ended before the program did.
        limited: whether a limit ended it.
    """

    rank: int = -1
    frames: list[Frame] = field(default_factory=list)
    size: int = 0
    cut: bool = False
    limited: bool = False


def read(folder: Path) -> dict[int, Trace]:
    """The trace of each rank; of two processes with one rank the one that wrote more."""
    found: dict[int, Trace] = {}
    for path in sorted(folder.glob("process-*.lines")):
        trace = _read(path)
        known = found.get(trace.rank)
        if known is None or known.size < trace.size:
            found[trace.rank] = trace
    ranks = {rank: trace for rank, trace in found.items() if rank >= 0}
    # A program without a process group has one process, or several that are not told apart.
    return dict(sorted(ranks.items())) or dict(enumerate(found.values()))


def below(frames: list[Frame]) -> Iterator[Frame]:
    """Frames with all that they called."""
    for frame in frames:
        yield frame
        for row in frame.rows:
            yield from below(row.children)


def ended(folder: Path, processes: int) -> bool:
    """Whether so many processes have written all that they will."""
    ends = [_end(path) == b'["cut"]\n' for path in folder.glob("process-*.lines")]
    return len(ends) >= processes and all(ends)


def _end(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - 8, 0))
        return file.read()


def _read(path: Path) -> Trace:
    trace = Trace()
    files: dict[int, str] = {}
    frames: dict[int, Frame] = {}
    for kind, *entry in _entries(path):
        match kind, entry:
            case "rank", [rank]:
                trace.rank = rank
            case "file", [number, name]:
                files[number] = name
            case (("cut" | "limit"), []):
                trace.cut = True
                trace.limited = trace.limited or kind == "limit"
            case "call", [number, parent, file, line, name, values]:
                frame = Frame(number, files[file], line, name)
                frame.rows.append(Row("call", line, values))
                frames[number] = frame
                above = frames.get(parent)
                if above is None:
                    trace.frames.append(frame)
                else:
                    above.waiting.append(frame)
            case (("line" | "return" | "raise"), [number, line, values]) if number in frames:
                frame = frames[number]
                frame.rows.append(Row(kind, line, values, frame.waiting))
                frame.waiting = []
        trace.size += 1
    for frame in frames.values():
        if frame.waiting:  # it was still in a call
            frame.rows.append(Row("open", frame.rows[-1].line, {}, frame.waiting))
    return trace


def _entries(path: Path) -> Iterator[list[Any]]:
    for line in path.read_text("utf-8", errors="replace").splitlines():
        try:
            yield json.loads(line)
        except ValueError:  # the process was killed while it wrote
            return
