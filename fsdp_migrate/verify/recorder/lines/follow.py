"""One program's frames: which of them are its own, and what changed in them since the line before."""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

from ..imports import Copies
from .forms import Forms
from .journal import Journal

_RESUMED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_SEED = "<seed>"
"""Stands for torch's generator among a frame's variables."""
_HIDDEN = (".", "__")
"""Names that begin so are the interpreter's."""


Method = TypeVar("Method", bound=Callable[..., None])


def _guarded(method: Method) -> Method:
    """What the recorder does not understand must not end the program: the journal ends, and says why."""

    @functools.wraps(method)
    def guarded(self: Follower, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self.journal.write("problem", f"{type(error).__name__}: {error}")
            self.journal.end()

    return guarded  # type: ignore[return-value]


class _Seen:
    """What is known of a frame that runs: its number, the line that runs in it, and its variables' forms."""

    def __init__(self, number: int, code: CodeType, line: int, start: int) -> None:
        self.number = number
        self.code = code
        self.line = line
        self.start = start
        self.forms: dict[str, str] = {}
        self.written = False


class Follower:
    """Takes what the interpreter reports of a program's own frames, and writes it to a journal."""

    def __init__(self, copies: Copies, journal: Journal, forms: Forms) -> None:
        self._copies = copies
        self.journal = journal
        self._forms = forms
        self._own: dict[str, str] = {}
        # By identity: a frame that is held would hold the program's tensors.
        self._frames: dict[int, _Seen] = {}
        self._count = 0
        self._thread = threading.get_ident()

    def owns(self, code: CodeType) -> bool:
        """Whether code is of a file in the copied folder."""
        name = code.co_filename
        if name not in self._own:
            if name.startswith("<"):
                inside = ""
            else:
                inside = self._copies.inside(os.path.abspath(name))
            self._own[name] = inside
        return bool(self._own[name])

    @_guarded
    def enter(self, frame: FrameType, line: int = 0) -> None:
        """A frame begins, or a generator goes on; or it runs already and is at this `line`."""
        if not self._follows():
            return
        seen = self._frames.get(id(frame))
        if seen is not None and seen.code is frame.f_code and frame.f_lasti > seen.start:
            return  # a generator that goes on
        self._count += 1
        code = frame.f_code
        seen = _Seen(self._count, code, line or code.co_firstlineno, frame.f_lasti)
        self._frames[id(frame)] = seen
        number = self.journal.file(self._own[code.co_filename])
        place = [self._parent(frame), number, code.co_firstlineno, code.co_name]
        self.journal.write("call", seen.number, *place, self._changed(frame, seen))

    @_guarded
    def line(self, frame: FrameType, line: int) -> None:
        """A line is about to run: the one before has done what it does."""
        seen = self._of(frame)
        if seen is None:
            return
        changed = self._changed(frame, seen)
        if changed or not seen.written:
            self.journal.write("line", seen.number, seen.line, changed)
        seen.line = line
        seen.written = False

    @_guarded
    def jump(self, frame: FrameType) -> None:
        """A loop goes on with its next round, maybe in the same line."""
        seen = self._of(frame)
        if seen is not None:
            changed = self._changed(frame, seen)
        else:
            changed = {}
        if seen is not None and changed:
            self.journal.write("line", seen.number, seen.line, changed)
            seen.written = True

    @_guarded
    def leave(self, frame: FrameType, value: Any, raised: bool = False) -> None:
        """A frame returns or yields a value, or ends by an exception."""
        seen = self._of(frame)
        if seen is None:
            return
        changed = self._changed(frame, seen)
        if raised:
            self.journal.write("raise", seen.number, seen.line, changed)
        else:
            form = self._forms.of(value)
            if form is not None:
                changed["return"] = form
            self.journal.write("return", seen.number, seen.line, changed)
        if not seen.code.co_flags & _RESUMED:
            del self._frames[id(frame)]

    def _follows(self) -> bool:
        return self.journal.on and threading.get_ident() == self._thread

    def _of(self, frame: FrameType) -> _Seen | None:
        seen = None
        if self._follows():
            seen = self._frames.get(id(frame))
        if seen is not None and seen.code is frame.f_code:
            return seen
        return None

    def _parent(self, frame: FrameType) -> int:
        """The number of the own frame that called this one, maybe through other code; 0 for none."""
        above = frame.f_back
        while above is not None:
            seen = self._frames.get(id(above))
            if seen is not None and seen.code is above.f_code:
                return seen.number
            above = above.f_back
        return 0

    def _changed(self, frame: FrameType, seen: _Seen) -> dict[str, str]:
        changed: dict[str, str] = {}
        seed = self._forms.seed()
        if seed and seen.forms.get(_SEED) != seed:
            seen.forms[_SEED] = changed[_SEED] = seed
        holders: dict[int, str] = {}
        for name, value in [*frame.f_locals.items()]:
            if name.startswith(_HIDDEN):
                continue
            another = False
            for path, form in self._forms.named(name, value, holders):
                # Another object's parts are written even where they look like those of the one before.
                if seen.forms.get(path) != form or another:
                    seen.forms[path] = changed[path] = form
                    another = another or path == name
        return changed
