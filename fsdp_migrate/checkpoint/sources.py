"""Opening a checkpoint, whatever wrote it: a file, a folder, the files of several ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from fsdp_migrate.checkpoint.dcp import is_dcp, is_part, read_dcp
from fsdp_migrate.checkpoint.errors import Misplaced, Refused, Unreadable
from fsdp_migrate.checkpoint.files import mapped, read_file
from fsdp_migrate.checkpoint.names import is_flat
from fsdp_migrate.checkpoint.optimizers import is_numbered, optimizers
from fsdp_migrate.checkpoint.parts import Parts, is_tensor, join
from fsdp_migrate.checkpoint.trees import leaves, like

Kind = Literal["full", "dcp", "shards", "local"]
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
    kind: Kind
    format: str
    tree: Any
    files: tuple[Path, ...]
    ranks: int = 1
    refused: Refused | None = None


@dataclass(frozen=True)
class Reading:
    """How to read: whether to execute pickles, and which entries of the checkpoint to take (none: all)."""

    trust: bool = False
    only: tuple[str, ...] = ()

    def taken(self, tree: Any) -> Any:
        """The entries that are asked for; raises Misplaced if one is not there."""
        if not self.only:
            return tree
        if not isinstance(tree, Mapping) or (missing := set(self.only) - tree.keys()):
            have = ", ".join(map(str, list(tree)[:8])) if isinstance(tree, Mapping) else "no names"
            raise Misplaced(f"--only {min(missing)}: the checkpoint has {have}")
        return like(tree, ((key, tree[key]) for key in self.only))


def open_checkpoint(path: Path, how: Reading = Reading()) -> Checkpoint:
    """The checkpoint at a path; for the file of one rank, with the files of the other ranks beside it.

    Raises Unreadable where there is none, and Misplaced for an entry that it has not.
    """
    try:
        if path.is_dir():
            return _folder(path, how)
        if not path.exists():
            raise Unreadable("does not exist")
        if not path.is_file():
            raise Unreadable("is neither a file nor a folder")
        if is_part(path):
            raise Unreadable("is a part of a DCP checkpoint: name its folder")
        return _file(path, how)
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from None
    except RecursionError:
        raise Unreadable("is nested too deeply to be a checkpoint") from None


def _folder(folder: Path, how: Reading) -> Checkpoint:
    if is_dcp(folder):
        tree, files = read_dcp(folder, how.trust)
        return Checkpoint(folder, "dcp", "dcp", how.taken(tree), tuple(files))
    files = sorted(f for f in folder.iterdir() if f.suffix in SUFFIXES and f.is_file())
    if not files:
        raise Unreadable("holds no checkpoint: neither DCP's .metadata nor a file of torch.save")
    checkpoint = _file(files[0], how)
    known = checkpoint.files if checkpoint.kind == "full" else _siblings(files[0])
    if others := [file.name for file in files if file not in known]:
        raise Unreadable(f"holds several checkpoints: name one, as {files[0].name} or {others[0]}")
    return checkpoint


def _file(path: Path, how: Reading) -> Checkpoint:
    if _OF.search(path.name):
        raise Unreadable("is one of several files of a model: what wrote them loads them together")
    form, tree = _read(path, how)
    tensors = [value for _, value in leaves(tree) if is_tensor(value)]
    sharded = any(isinstance(tensor, Parts) for tensor in tensors)
    # Files beside it matter only if it may be a part of something.
    alone = not sharded and any(len(tensor.shape) > 1 for tensor in tensors)
    group = [path] if alone else _siblings(path)
    trees = [tree if file == path else _read_sibling(file, how) for file in group]
    if sharded:
        return _shards(path, form, group, trees)
    if len(group) > 1:
        readable = [found for found in trees if not isinstance(found, Unreadable)]
        if _is_local(readable):
            return Checkpoint(path, "local", form, tree, tuple(group), len(group))
    kind: Kind = "local" if _is_local([tree]) else "full"
    return Checkpoint(path, kind, form, tree, (path,))


def _read(path: Path, how: Reading) -> tuple[str, Any]:
    if not path.stat().st_size:
        raise Unreadable("is empty", path)
    try:
        form, tree = read_file(mapped(path), how.trust)
        return form, how.taken(tree)
    except Unreadable as error:
        raise Unreadable(str(error), error.path or path) from None


def _read_sibling(path: Path, how: Reading) -> Any:
    """What is in the file, or the error: its name alone may be like a rank's."""
    try:
        return _read(path, how)[1]
    except Unreadable as error:
        return error
    except Misplaced as error:
        return Unreadable(str(error))


def _siblings(path: Path) -> list[Path]:
    """Files beside `path` whose names differ from its own in one number only, in the order of that number."""
    best = [path]
    names = [f for f in path.parent.iterdir() if f.suffix == path.suffix and f.is_file()]
    for number in re.finditer(r"\d+", path.name):
        before, after = path.name[: number.start()], path.name[number.end() :]
        pattern = re.compile(f"{re.escape(before)}(\\d+){re.escape(after)}")
        found = sorted((int(m[1]), file) for file in names if (m := pattern.fullmatch(file.name)))
        if len(found) > len(best):
            best = [file for _, file in found]
    return best


def _shards(path: Path, form: str, files: Sequence[Path], trees: Sequence[Any]) -> Checkpoint:
    """The ranks' files as one; those that are of no rank, or cannot be read, are left out."""
    ranks: dict[int, Any] = {}
    used: list[Path] = []
    refused: Refused | None = None
    of = 1
    for file, tree in zip(files, trees, strict=True):
        if isinstance(tree, Unreadable):
            refused = Refused(f"{file.name} {tree}")
        shards = next((v for _, v in leaves(tree) if isinstance(v, Parts)), None)
        if shards is None:
            continue
        if shards.rank in ranks:
            refused = Refused(
                f"several files are of rank {shards.rank}: name the files of one save in a folder"
            )
        ranks.setdefault(shards.rank, tree)
        used.append(file)
        of = shards.ranks
    tree = next(iter(ranks.values()))
    if any(is_flat(place[-1]) for place, _ in leaves(tree) if place):
        return Checkpoint(path, "local", form, tree, tuple(used), of)
    try:
        if refused is None:
            tree = join([ranks[rank] for rank in sorted(ranks)])
    except Refused as error:
        refused = error
    return Checkpoint(path, "shards", form, tree, tuple(used), of, refused)


def _is_local(trees: Sequence[Any]) -> bool:
    """Whether these are FSDP1's flattened shards under the parameters' own names.

    All have one dimension, and their sizes differ between ranks, or some are empty, or they are states of numbered
    parameters.
    """
    shapes = [
        {place: tuple(value.shape) for place, value in leaves(tree) if isinstance(value, torch.Tensor)}
        for tree in trees
    ]  # fmt: skip
    if not shapes[0] or any(len(shape) > 1 for found in shapes for shape in found.values()):
        return False
    if any(shape == (0,) for found in shapes for shape in found.values()):
        return True
    if len(trees) > 1 and all(any(is_numbered(o) for _, o in optimizers(t)) for t in trees):
        return any(len(shape) == 1 for shape in shapes[0].values())
    common = set(shapes[0]).intersection(*shapes[1:])
    return any(found[place] != shapes[0][place] for found in shapes for place in common)
