"""Reading back what was written, with torch's own readers, and comparing it with what was read."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

from fsdp_migrate.checkpoint.errors import Refused
from fsdp_migrate.checkpoint.tensors import Lazy, fingerprint
from fsdp_migrate.checkpoint.torchfile import View, read_torch
from fsdp_migrate.checkpoint.trees import leaves, shown
from fsdp_migrate.checkpoint.write import Fingerprints, flatten


class NotTheSame(Refused):
    """What was read back is not what was written."""

    def __init__(self, place: str, what: str) -> None:
        super().__init__(
            f"what was written was read back, and {place} {what}: it is removed again. "
            "The disk may be damaged, or the source was changed meanwhile"
        )


def check_full(tree: Any, file: Path, prints: Fingerprints, trust: bool) -> None:
    """Names, shapes and dtypes as `torch.load` sees them, then the bytes of one tensor after the other.

    Raises:
        NotTheSame: with the first difference.
    """
    wanted = dict(leaves(tree))
    with _reading(file):
        seen = dict(leaves(torch.load(file, map_location="meta", weights_only=not trust)))
        with View(file) as view:
            found = dict(leaves(read_torch(view, trust)))
    if not wanted.keys() == seen.keys() == found.keys():
        place = next(iter(wanted.keys() ^ seen.keys() or wanted.keys() ^ found.keys()))
        raise NotTheSame(shown(place), "is there once only")
    for place, value in wanted.items():
        name, meta, read = shown(place), seen[place], found[place]
        if not isinstance(value, Lazy):
            _same_value(name, value, meta)
            continue
        if not isinstance(meta, torch.Tensor) or not isinstance(read, Lazy):
            raise NotTheSame(name, "is no tensor")
        _same_form(name, value, meta)
        if fingerprint(read.load()) != prints[id(value)]:
            raise NotTheSame(name, "has other values")


class _Comparing(DefaultLoadPlanner):
    """Takes a checkpoint tensor by tensor from DCP's reader, and keeps none."""

    def __init__(self, wanted: Mapping[str, Any], prints: Fingerprints, trust: bool) -> None:
        super().__init__()
        self.wanted, self.prints, self.trust = wanted, prints, trust
        self.seen: set[str] = set()

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        metadata: Metadata | None = None,
        is_coordinator: bool = False,
    ) -> None:
        self.state_dict, self.metadata = state_dict, metadata
        if metadata is not None and metadata.state_dict_metadata.keys() != state_dict.keys():
            names = metadata.state_dict_metadata.keys() ^ state_dict.keys()
            raise NotTheSame(min(names), "is there once only")

    def create_local_plan(self) -> LoadPlan:
        self.flatten_state_dict = False  # it is flat, and no older release's names are to be tried
        return super().create_local_plan()

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        wanted = self.wanted[read_item.dest_index.fqn]
        return torch.empty(read_item.lengths, dtype=wanted.dtype)

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        name = read_item.dest_index.fqn
        _same_form(name, self.wanted[name], tensor)
        if fingerprint(tensor) != self.prints[id(self.wanted[name])]:
            raise NotTheSame(name, "has other values")
        self.seen.add(name)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        name = read_item.dest_index.fqn
        _same_value(name, self.wanted[name], torch.load(value, weights_only=not self.trust))
        self.seen.add(name)


def check_dcp(tree: Any, folder: Path, prints: Fingerprints, trust: bool) -> None:
    """The same through DCP's reader.

    Raises:
        NotTheSame: with the first difference.
    """
    wanted = flatten(tree).entries
    state = {
        name: torch.empty(v.shape, dtype=v.dtype, device="meta") if isinstance(v, Lazy) else v
        for name, v in wanted.items()
    }
    planner = _Comparing(wanted, prints, trust)
    with _reading(folder):
        _load_state_dict(
            state, storage_reader=FileSystemReader(folder), planner=planner, no_dist=True
        )
    expected = {n for n, v in wanted.items() if not isinstance(v, Lazy) or v.numel}
    if missed := expected - planner.seen:
        raise NotTheSame(min(missed), "was not read")


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Whatever torch's readers say of a damaged file becomes a difference."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except NotTheSame:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise NotTheSame(path.name, f"cannot be read ({type(error).__name__}: {reason})") from None


def _same_form(name: str, wanted: Lazy, found: torch.Tensor) -> None:
    if tuple(found.shape) != wanted.shape or found.dtype != wanted.dtype:
        raise NotTheSame(name, f"is {found.dtype} {tuple(found.shape)}")


def _same_value(name: str, wanted: Any, found: Any) -> None:
    # The second is for NaN, which equals nothing.
    if wanted != found and repr(wanted) != repr(found):
        raise NotTheSame(name, "has another value")
