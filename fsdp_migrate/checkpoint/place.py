"""Putting the result in place: written beside the target, moved there when it is whole."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from fsdp_migrate.checkpoint.dcp import is_part
from fsdp_migrate.checkpoint.errors import Misplaced
from fsdp_migrate.checkpoint.files import format_of


def check_target(target: Path, sources: Iterable[Path], overwrite: bool) -> None:
    """Raises Misplaced unless `target` may be written: never a source or what holds one, and a checkpoint only if asked."""
    real = Path(os.path.realpath(target))
    for source in sources:
        origin = Path(os.path.realpath(source))
        same = real.exists() and origin.exists() and os.path.samefile(real, origin)
        if same or real in origin.parents or origin in real.parents:
            raise Misplaced(f"is the source, or in the same place ({source.name}): choose another")
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise Misplaced("exists: choose another, or --overwrite")
    if not _replaceable(real):
        raise Misplaced("is no checkpoint: it is not overwritten")


def _replaceable(path: Path) -> bool:
    if path.is_dir():
        return all(is_part(file) for file in path.iterdir())  # nothing else is lost with it
    if not path.is_file():
        return not path.exists()  # a link that leads nowhere
    with path.open("rb") as file:
        head = file.read(16)
    return not head or format_of(head) is not None


@contextlib.contextmanager
def staged(target: Path, overwrite: bool, nbytes: int) -> Iterator[Path]:
    """A path of the same name in a hidden folder beside `target`; what is written there moves to `target` at the end.

    If the block fails, or the process is killed, `target` is as it was. Only a kill leaves the folder, `.NAME.*.tmp`.
    """
    real = Path(os.path.realpath(target))
    free = shutil.disk_usage(real.parent).free
    if free < nbytes:
        raise Misplaced(f"does not fit: {nbytes:,} bytes needed, {free:,} free")
    folder = Path(tempfile.mkdtemp(prefix=f".{real.name[:50]}.", suffix=".tmp", dir=real.parent))
    new, aside = folder / real.name, folder / "replaced"
    try:
        yield new
        if os.path.lexists(real) and not overwrite:
            raise Misplaced("was created while this was written: nothing is overwritten")
        if os.path.lexists(real) and (real.is_dir() or new.is_dir()):
            os.rename(real, aside)  # a folder cannot be replaced in one step
        try:
            os.replace(new, real)
        except OSError:
            if os.path.lexists(aside):
                os.rename(aside, real)
            raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
