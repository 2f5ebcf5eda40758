"""Opening a checkpoint, whatever wrote it: a file, a folder, the files of several ranks."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fsdp_migrate.checkpoint.dcp import is_dcp, is_part, read_dcp
from fsdp_migrate.checkpoint.errors import Misplaced, Refused, Unreadable
from fsdp_migrate.checkpoint.files import read_file
from fsdp_migrate.checkpoint.names import is_flat
from fsdp_migrate.checkpoint.parts import Parts
from fsdp_migrate.checkpoint.ranks import are_local, joined, siblings
from fsdp_migrate.checkpoint.trees import leaves, like, tensors

_OF = re.compile(r"-of-(?!0*1\b)\d+\b")  # a file 00-of-01 is whole
SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".tar")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose tensors are still on disk.

    Attributes:
        kind: `full` (whole tensors), `dcp` (a DCP folder), `shards` (one `torch.save` a rank, of sharded
            tensors), `local` (one rank's own numbers, without their layout).
        tree: what was saved; with `kind` shards, whole tensors if `refused` is None.
        refused: why the ranks' files make no whole checkpoint.
    """

    path: Path
    kind: Literal["full", "dcp", "shards", "local"]
    format: str
    tree: Any
    files: tuple[Path, ...]
    ranks: int = 1
    refused: Refused | None = None


def open_checkpoint(path: Path, only: Sequence[str] = ()) -> Checkpoint:
    """The checkpoint at a path; for the file of one rank, with the files of the other ranks beside it.

    `only` names the entries to take, if not all. Raises Unreadable where there is none, and Misplaced for an entry that it
    has not.
    """
    try:
        if path.is_dir():
            return _folder(path, only)
        if not path.exists():
            raise Unreadable("does not exist")
        if not path.is_file():
            raise Unreadable("is neither a file nor a folder")
        if is_part(path):
            raise Unreadable("is a part of a DCP checkpoint: name its folder")
        return _file(path, only)
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from None
    except RecursionError:
        raise Unreadable("is nested too deeply to be a checkpoint") from None


def _folder(folder: Path, only: Sequence[str]) -> Checkpoint:
    if is_dcp(folder):
        tree, files = read_dcp(folder)
        return Checkpoint(folder, "dcp", "dcp", _taken(tree, only), tuple(files))
    found = sorted([f for f in folder.iterdir() if f.suffix in SUFFIXES and f.is_file()])
    if not found:
        raise Unreadable("holds no checkpoint: neither DCP's .metadata nor a file of torch.save")
    checkpoint = _file(found[0], only)
    known = checkpoint.files
    if checkpoint.kind != "full":
        known = tuple(siblings(found[0]))
    others = [file.name for file in found if file not in known]
    if others:
        raise Unreadable(f"holds several checkpoints: name one, as {found[0].name} or {others[0]}")
    return checkpoint


def _file(path: Path, only: Sequence[str]) -> Checkpoint:
    if _OF.search(path.name):
        raise Unreadable("is one of several files of a model: what wrote them loads them together")
    form, tree = _read(path, only)
    held = tensors(tree)
    sharded = any(isinstance(tensor, Parts) for tensor in held)
    # Files beside it matter only if it may be a part of something.
    alone = not sharded and any(len(tensor.shape) > 1 for tensor in held)
    trees = {path: tree}
    if not alone:
        trees = {}
        for file in siblings(path):
            if file == path:
                trees[file] = tree
            else:
                trees[file] = _read_sibling(file, only)
    readable = [found for found in trees.values() if not isinstance(found, Unreadable)]
    if sharded:
        tree, used, ranks, refused = joined(trees)
        if any(is_flat(place[-1]) for place, _ in leaves(tree) if place):
            return Checkpoint(path, "local", form, tree, used, ranks, None)
        return Checkpoint(path, "shards", form, tree, used, ranks, refused)
    if len(trees) > 1 and are_local(readable):
        return Checkpoint(path, "local", form, tree, tuple(trees), len(trees))
    if are_local([tree]):
        return Checkpoint(path, "local", form, tree, (path,))
    return Checkpoint(path, "full", form, tree, (path,))


def _read(path: Path, only: Sequence[str]) -> tuple[str, Any]:
    try:
        form, tree = read_file(path)
    except Unreadable as error:
        raise Unreadable(str(error), path) from None
    return form, _taken(tree, only)


def _taken(tree: Any, only: Sequence[str]) -> Any:
    """The entries that are asked for; raises Misplaced if one is not there."""
    if not only:
        return tree
    if not isinstance(tree, Mapping) or (missing := set(only) - tree.keys()):
        have = "no names"
        if isinstance(tree, Mapping):
            have = ", ".join(map(str, list(tree)[:8]))
        raise Misplaced(f"--only {min(missing)}: the checkpoint has {have}")
    return like(tree, ((key, tree[key]) for key in only))


def _read_sibling(path: Path, only: Sequence[str]) -> Any:
    """What is in the file, or the error: its name alone may be like a rank's."""
    try:
        return _read(path, only)[1]
    except (Unreadable, Misplaced) as error:
        return Unreadable(str(error))
