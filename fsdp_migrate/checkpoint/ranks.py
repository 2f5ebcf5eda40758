"""The files of all ranks of one `torch.save`: which they are, and what they hold together."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fsdp_migrate.checkpoint.errors import Incomplete, LocalShards, Refused, Unreadable
from fsdp_migrate.checkpoint.optimizers import is_numbered, optimizers
from fsdp_migrate.checkpoint.parts import Parts, covers, in_parts
from fsdp_migrate.checkpoint.trees import leaves, like


def siblings(path: Path) -> list[Path]:
    """Files beside `path` whose names differ from its own in one number only, in the order of that number."""
    best = [path]
    names = [f for f in path.parent.iterdir() if f.suffix == path.suffix and f.is_file()]
    for number in re.finditer(r"\d+", path.name):
        before = path.name[: number.start()]
        after = path.name[number.end() :]
        pattern = re.compile(f"{re.escape(before)}(\\d+){re.escape(after)}")
        numbered = [(pattern.fullmatch(file.name), file) for file in names]
        found = sorted([(int(match[1]), file) for match, file in numbered if match])
        if len(found) > len(best):
            best = [file for _, file in found]
    return best


def joined(trees: Mapping[Path, Any]) -> tuple[Any, tuple[Path, ...], int, Refused | None]:
    """The ranks' files as one tree, the files that it is of, the number of ranks, and why the tree is not whole.

    Files that are of no rank, or cannot be read, are left out.
    """
    by_rank: dict[int, Any] = {}
    used: list[Path] = []
    refused: Refused | None = None
    ranks = 0
    for file, tree in trees.items():
        if isinstance(tree, Unreadable):
            refused = Refused(f"{file.name} {tree}")
        shards = next((v for _, v in leaves(tree) if isinstance(v, Parts)), None)
        if shards is None:
            continue
        if shards.rank in by_rank:
            refused = Refused(
                f"several files are of rank {shards.rank}: name the files of one save in a folder"
            )
        if ranks not in (0, shards.ranks):
            refused = Refused(
                f"some files are of {ranks} ranks, others of {shards.ranks}: name those of one save"
            )
        by_rank.setdefault(shards.rank, tree)
        used.append(file)
        ranks = shards.ranks
    tree = next(iter(by_rank.values()))
    try:
        if refused is None:
            tree = join([by_rank[rank] for rank in sorted(by_rank)])
    except Refused as error:
        refused = error
    return tree, tuple(used), ranks, refused


def join(trees: Sequence[Any], place: str = "") -> Any:
    """The tree of all ranks' trees. Sharded tensors become whole; of all else the first rank's value counts.

    Raises Refused where shards are missing, or a tensor has no layout.
    """
    first = next((tree for tree in trees if tree is not None), None)
    if isinstance(first, Parts):
        return _whole([tree for tree in trees if isinstance(tree, Parts)], place)
    if isinstance(first, Mapping):
        held = [tree for tree in trees if isinstance(tree, Mapping)]
        joined: dict[Any, Any] = {}
        for key in itertools.chain.from_iterable(held):
            if key not in joined:
                name = str(key)
                if place:
                    name = f"{place}.{key}"
                joined[key] = join([tree.get(key) for tree in held], name)
        return like(first, joined.items())
    if isinstance(first, list):
        same = [tree for tree in trees if isinstance(tree, list) and len(tree) == len(first)]
        return [join(values, f"{place}.{i}") for i, values in enumerate(zip(*same, strict=True))]
    if isinstance(first, torch.Tensor) and any(
        isinstance(tree, torch.Tensor) and tree.shape != first.shape for tree in trees
    ):
        raise LocalShards(
            f"{place} is a plain tensor of another shape on each rank: its layout is in no file"
        )
    return first


def _whole(ranks: Sequence[Parts], place: str) -> Parts:
    one = ranks[0]
    if any(p.shape != one.shape or p.dtype != one.dtype for p in ranks):
        raise Refused(f"{place} has another shape or dtype on each rank: these are several saves")
    # Replicas have the same place.
    found = {part.box[0]: part for held in ranks for part in held.parts if math.prod(part.box[1])}
    if not covers(one.shape, [part.box for part in found.values()]):
        have = {held.rank for held in ranks}
        missing = ", ".join(str(rank) for rank in range(one.ranks) if rank not in have)
        reason = "the shards do not fill it"
        if missing:
            reason = f"the files of ranks {missing} are missing"
        raise Incomplete(
            f"{place} is not whole: {reason} ({len(have)} of {one.ranks} ranks are there)"
        )
    return in_parts(one.shape, one.dtype, found.values())


def are_local(trees: Sequence[Any]) -> bool:
    """Whether these are FSDP1's flattened shards under the parameters' own names.

    All have one dimension, and their sizes differ between ranks, or some are empty, or they are states of numbered
    parameters.
    """
    shapes = [
        {place: tuple(value.shape) for place, value in leaves(tree) if isinstance(value, torch.Tensor)}
        for tree in trees
    ]  # fmt: skip
    first = shapes[0]
    every = [shape for found in shapes for shape in found.values()]
    if not first or any(len(shape) > 1 for shape in every):
        return False
    if (0,) in every:
        return True
    if len(trees) > 1 and all(map(_has_numbered, trees)):
        return 1 in map(len, first.values())
    common = set(first).intersection(*shapes[1:])
    return any(len({found[place] for found in shapes}) > 1 for place in common)


def _has_numbered(tree: Any) -> bool:
    return any(is_numbered(optimizer) for _, optimizer in optimizers(tree))
