"""A progress bar on standard error, for long work and a person who waits for it."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from fsdp_migrate.views.terminal import printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE = 1.0


class ProgressBar:
    """Called with (done, total, name) as work goes on; invisible for `PATIENCE` seconds."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> ProgressBar:
        return self

    def __call__(self, done: int, total: int, name: str) -> None:
        """Notes that `done` of `total` steps are behind; `name` is the file in hand."""
        if time.monotonic() - self._start < PATIENCE:
            return
        if self._bar is None or self._task is None:
            self._bar = _make_bar()
            self._task = self._bar.add_task("", total=total)
            self._bar.start()
        # `name` is text, not rich's markup: a folder may be called `[red]`.
        self._bar.update(self._task, completed=done, total=total, description=printable(name))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _make_bar() -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)
