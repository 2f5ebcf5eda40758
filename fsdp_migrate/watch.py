"""`check --watch`: the run again after each change of a file that it reads."""

from __future__ import annotations

import contextlib
import gc
import os
from pathlib import Path
from time import sleep
from typing import NoReturn

import click

from fsdp_migrate.discover import discover
from fsdp_migrate.run import Request, run
from fsdp_migrate.settings import Settings
from fsdp_migrate.views.terminal import say
from fsdp_migrate.views.text import counted

_PAUSE = 0.5
"""Seconds between two looks at the files."""


def watch(request: Request, settings: Settings) -> NoReturn:
    """Check, and check again whenever a file of the paths changes, appears or goes; Ctrl-C ends it."""
    gc.enable()  # one run needs no collection, many do
    while True:
        before = _state(request, settings)
        click.clear()
        run(request, settings)
        say(f"Watching {counted(len(before), 'file')}; Ctrl-C ends.", err=True, dim=True)
        while _state(request, settings) == before:
            sleep(_PAUSE)


def _state(request: Request, settings: Settings) -> dict[Path, tuple[int, int]]:
    """When each file was written, and how long it is."""
    paths = [Path(path) for path in request.paths]
    state = {}
    for file in discover(paths, settings.exclude + request.exclude, settings.root).files:
        with contextlib.suppress(OSError):  # it went away
            found = os.stat(file)
            state[file] = found.st_mtime_ns, found.st_size
    return state
