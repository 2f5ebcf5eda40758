"""Writing a tree with torch's own functions, reading it back, and comparing the two bit by bit.

Nothing that is written lies in memory: tensors are maps of files, of the source or of a scratch file.
"""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any, cast

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import save

from fsdp_migrate.checkpoint.dcp import read_dcp
from fsdp_migrate.checkpoint.errors import Misplaced, Refused, Unreadable
from fsdp_migrate.checkpoint.files import mapped, read_file
from fsdp_migrate.checkpoint.parts import Parts, is_tensor
from fsdp_migrate.checkpoint.trees import Place, leaves, rebuilt, shown


class NotTheSame(Refused):
    """What was read back is not what was written."""

    def __init__(self, place: str, what: str) -> None:
        super().__init__(
            f"what was written was read back, and {place} {what}: it is removed again. "
            "The disk may be damaged, or the source was changed meanwhile"
        )


def settled(tree: Any, scratch: Path) -> Any:
    """The tree with a tensor that fills its storage in every place; what has to be put together is mapped from `scratch`.

    Tied weights, views of one storage with one shape, stay one tensor.
    """
    scratch.mkdir()
    numbers = itertools.count()
    views: dict[Any, torch.Tensor] = {}

    def kept(tensor: torch.Tensor) -> torch.Tensor:
        file = scratch / str(next(numbers))
        torch.save(tensor, file)
        return cast(torch.Tensor, torch.load(file, mmap=True, weights_only=True))

    def settle(place: Place, value: Any) -> Any:
        if isinstance(value, Parts):
            return settle(place, value.load()) if len(value.parts) < 2 else kept(value.load())
        if not isinstance(value, torch.Tensor) or _fills_its_storage(value):
            return value
        if (view := identity(value)) not in views:
            views[view] = kept(value.clone(memory_format=torch.contiguous_format))
        return views[view]

    return rebuilt(tree, settle)


def identity(tensor: torch.Tensor | Parts) -> Any:
    """What two tensors have in common that are written once to a full file."""
    if isinstance(tensor, Parts):
        return id(tensor)
    storage = tensor.untyped_storage().data_ptr()
    return storage, tensor.storage_offset(), tensor.dtype, tensor.shape, tensor.stride()


def _fills_its_storage(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes


def write_full(tree: Any, file: Path) -> None:
    """One file, by `torch.save`."""
    with file.open("wb") as opened:
        torch.save(tree, opened)


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
    """Read what was written back, a tensor at a time; raises NotTheSame with the first difference."""
    try:
        is_dcp = new.is_dir()
        read = read_dcp(new, trust)[0] if is_dcp else read_file(mapped(new), trust)[1]
        found, wanted = dict(leaves(read)), dict(leaves(tree))
        for place in wanted.keys() ^ found.keys():
            raise NotTheSame(shown(place), "is there once only")
        for place, value in wanted.items():
            _compare(shown(place), value, found[place])
    except Unreadable as error:
        raise NotTheSame(new.name, f"cannot be read ({error})") from None


def _compare(name: str, wanted: Any, found: Any) -> None:
    if not isinstance(wanted, torch.Tensor):
        # The second is for NaN, which equals nothing.
        if wanted != found and repr(wanted) != repr(found):
            raise NotTheSame(name, "has another value")
        return
    if not is_tensor(found):
        raise NotTheSame(name, "is no tensor")
    if (tuple(found.shape), found.dtype) != (tuple(wanted.shape), wanted.dtype):
        raise NotTheSame(name, f"is {found.dtype} {tuple(found.shape)}")
    values = found.load() if isinstance(found, Parts) else found
    if not torch.equal(_bits(wanted), _bits(values)):
        raise NotTheSame(name, "has other values")


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of its elements, which tell every bit apart, NaN and -0 as well."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)
