"""Writing a tree with torch's own functions, reading it back with them, and comparing the two bit by bit.

Nothing that is written lies in memory: tensors are maps of files, of the source or of a scratch file.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from fsdp_migrate.checkpoint.errors import Misplaced, Refused
from fsdp_migrate.checkpoint.parts import Parts
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
    """A folder, as `torch.distributed.checkpoint.save` of one rank writes it.

    Raises:
        Refused: two entries get the same name.
    """
    with _one_process() as failures:
        save(tree, checkpoint_id=folder, no_dist=True)
    for error in failures:
        if isinstance(error, ValueError):
            raise Refused(f"cannot be a DCP checkpoint: {error}")
        raise Misplaced(f"cannot be written: {getattr(error, 'strerror', None) or error}")


def check_full(tree: Any, file: Path, trust: bool) -> None:
    """Compare with what `torch.load` finds.

    Raises:
        NotTheSame: with the first difference.
    """
    try:
        found = dict(
            leaves(torch.load(file, map_location="cpu", mmap=True, weights_only=not trust))
        )
    except Exception as error:
        raise _unreadable(file, error) from None
    wanted = dict(leaves(tree))
    for place in wanted.keys() ^ found.keys():
        raise NotTheSame(shown(place), "is there once only")
    for place, value in wanted.items():
        _compare(shown(place), value, found[place])


def check_dcp(tree: Any, folder: Path, trust: bool) -> None:
    """Compare with what `torch.distributed.checkpoint.load` finds.

    Raises:
        NotTheSame: with the first difference.
    """

    class Planner(DefaultLoadPlanner):
        """Compares each item instead of keeping it."""

        def set_up_planner(
            self, _: Any, metadata: Any = None, is_coordinator: bool = False
        ) -> None:
            self.original_state_dict, self.metadata = tree, metadata
            self.state_dict, self.mappings = flatten_state_dict(tree)
            self.is_coordinator = is_coordinator

        def create_local_plan(self) -> Any:
            assert self.metadata is not None
            entries = self.metadata.state_dict_metadata
            for name in self.state_dict.keys() ^ entries.keys():
                raise NotTheSame(name, "is there once only")
            for name, value in self.state_dict.items():
                entry = entries[name]
                if isinstance(entry, TensorStorageMetadata) and isinstance(value, torch.Tensor):
                    _same_form(name, value, tuple(entry.size), entry.properties.dtype)
            return super().create_local_plan()

        def load_bytes(self, read_item: Any, value: Any) -> None:
            name = read_item.dest_index.fqn
            found = torch.load(value, weights_only=not trust)
            _compare(name, self.state_dict[name], found)

        def resolve_tensor(self, read_item: Any) -> torch.Tensor:
            return torch.empty_like(super().resolve_tensor(read_item))

        def commit_tensor(self, read_item: Any, tensor: torch.Tensor) -> None:
            index: MetadataIndex = read_item.dest_index
            _compare(index.fqn, super().resolve_tensor(read_item), tensor)

    with _one_process() as failures:
        load({}, checkpoint_id=folder, planner=Planner(), no_dist=True)
    for error in failures:
        raise error if isinstance(error, NotTheSame) else _unreadable(folder, error)


@contextlib.contextmanager
def _one_process() -> Iterator[list[BaseException]]:
    """What DCP raises, without the exception for many ranks around it; its warnings are of one process."""
    failures: list[BaseException] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield failures
        except CheckpointException as error:
            failures += [failure for failure, _ in error.failures.values()]
        except Exception as error:
            failures.append(error)


def _unreadable(path: Path, error: BaseException) -> NotTheSame:
    reason = str(error).partition("\n")[0]
    return NotTheSame(path.name, f"cannot be read ({type(error).__name__}: {reason})")


def _compare(name: str, wanted: Any, found: Any) -> None:
    if not isinstance(wanted, torch.Tensor):
        # The second is for NaN, which equals nothing.
        if wanted != found and repr(wanted) != repr(found):
            raise NotTheSame(name, "has another value")
        return
    if not isinstance(found, torch.Tensor):
        raise NotTheSame(name, "is no tensor")
    _same_form(name, wanted, tuple(found.shape), found.dtype)
    if not torch.equal(_bits(wanted), _bits(found)):
        raise NotTheSame(name, "has other values")


def _same_form(name: str, wanted: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if (shape, dtype) != (tuple(wanted.shape), wanted.dtype):
        raise NotTheSame(name, f"is {dtype} {shape}")


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of its elements, which tell every bit apart, NaN and -0 as well."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)
