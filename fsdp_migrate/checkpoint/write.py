"""Writing a tree with torch's own functions, reading it back, and comparing the two bit by bit.

Nothing that is written lies in memory: tensors are maps of files, of the source or of a scratch file.
"""

from __future__ import annotations

import itertools
import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import save

from fsdp_migrate.checkpoint.dcp import read_dcp
from fsdp_migrate.checkpoint.errors import Misplaced, Refused, Unreadable
from fsdp_migrate.checkpoint.files import read_file
from fsdp_migrate.checkpoint.parts import Parts
from fsdp_migrate.checkpoint.trees import Place, leaves, rebuilt, shown


def settled(tree: Any, scratch: Path) -> Any:
    """The tree with its tensors in parts put together in maps of new files."""
    scratch.mkdir()
    numbers = itertools.count()

    def settle(_: Place, value: Any) -> Any:
        if not isinstance(value, Parts):
            return value
        whole = torch.empty(value.shape, dtype=value.dtype)
        if value.nbytes:
            file = scratch / str(next(numbers))
            storage: Any = torch.UntypedStorage.from_file(str(file), True, value.nbytes)
            whole = torch.empty(0, dtype=value.dtype).set_(storage).view(value.shape)
        return value.fill(whole)

    return rebuilt(tree, settle)


def write_full(tree: Any, file: Path) -> None:
    """One file, by `torch.save`."""
    with file.open("wb") as opened:
        torch.save(tree, opened)
        os.fsync(opened.fileno())


def write_dcp(tree: Any, folder: Path) -> None:
    """A folder, as `torch.distributed.checkpoint.save` of one rank writes it; raises Refused where names clash."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about one process
        try:
            save(tree, checkpoint_id=folder, no_dist=True)
        except CheckpointException as failures:
            error = next(failure for failure, _ in failures.failures.values())
            if isinstance(error, ValueError):
                raise Refused(f"cannot be a DCP checkpoint: {error}") from None
            reason = getattr(error, "strerror", None) or error
            raise Misplaced(f"cannot be written: {reason}") from None


def check(tree: Any, new: Path, trust: bool) -> None:
    """Read what was written back, a tensor at a time; raises Refused with the first difference."""
    try:
        read = read_dcp(new, trust)[0] if new.is_dir() else read_file(new, trust)[1]
        found, wanted = dict(leaves(read)), dict(leaves(tree))
        for place in wanted.keys() ^ found.keys():
            raise _not_the_same(shown(place), "is there once only")
        for place, value in wanted.items():
            _compare(shown(place), value, found[place])
    except Unreadable as error:
        raise _not_the_same(new.name, f"cannot be read ({error})") from None


def _not_the_same(place: str, what: str) -> Refused:
    return Refused(
        f"what was written was read back, and {place} {what}: it is removed again. "
        "The disk may be damaged, or the source was changed meanwhile"
    )


def _compare(name: str, wanted: Any, found: Any) -> None:
    if not isinstance(wanted, torch.Tensor):
        # The second is for NaN, which equals nothing.
        if wanted != found and repr(wanted) != repr(found):
            raise _not_the_same(name, "has another value")
        return
    if not isinstance(found, torch.Tensor):
        raise _not_the_same(name, "is no tensor")
    if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
        raise _not_the_same(name, f"is {found.dtype} {tuple(found.shape)}")
    values = found.load() if isinstance(found, Parts) else found
    if not torch.equal(_bits(wanted), _bits(values)):
        raise _not_the_same(name, "has other values")


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of its elements, which tell every bit apart, NaN and -0 as well."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)
