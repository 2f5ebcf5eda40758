"""`checkpoint convert`: from a checkpoint that FSDP2 does not load to one that it loads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsdp_migrate.checkpoint.check import check_dcp, check_full
from fsdp_migrate.checkpoint.errors import Misplaced, Refused
from fsdp_migrate.checkpoint.fingerprints import Fingerprints, Progress
from fsdp_migrate.checkpoint.names import strip
from fsdp_migrate.checkpoint.optimizers import (
    Shape,
    is_numbered,
    named,
    optimizers,
    unshared,
)
from fsdp_migrate.checkpoint.place import check_target, staged
from fsdp_migrate.checkpoint.sources import Checkpoint, Reading, open_checkpoint
from fsdp_migrate.checkpoint.survey import is_nested, survey
from fsdp_migrate.checkpoint.tensors import Lazy, Stored
from fsdp_migrate.checkpoint.trees import Path as Place
from fsdp_migrate.checkpoint.trees import leaves, like, mappings, shown
from fsdp_migrate.checkpoint.write import write_dcp, write_full

_FILES = (".pt", ".pth", ".bin", ".ckpt")


@dataclass(frozen=True)
class Conversion:
    """What is asked for; the fields are the command's arguments."""

    source: Path
    target: Path
    to: str | None = None
    only: tuple[str, ...] = ()
    names_from: Path | None = None
    keep_module: bool = False
    overwrite: bool = False
    trust: bool = False


@dataclass(frozen=True)
class Done:
    """What was written, and a line for each thing that was changed."""

    tensors: int
    nbytes: int
    changes: tuple[str, ...]


def convert(wish: Conversion, progress: Progress | None = None) -> Done:
    """Write the target, read it back, and only then put it in its place.

    Raises:
        Unreadable: the source cannot be read.
        Refused: nothing sound can be written from it, or what was written is not the same.
        Misplaced: the target may not be written.
    """
    checkpoint = open_checkpoint(wish.source, Reading(wish.trust, wish.only))
    if wish.target.suffix == ".safetensors":
        raise Misplaced("safetensors files are read, not written: end it in .pt, or name a folder")
    check_target(wish.target, (wish.source, *checkpoint.files), wish.overwrite)
    tree, changes = repaired(checkpoint, wish)
    to = wish.to or ("full" if wish.target.suffix in _FILES else "dcp")
    tensors = [value for _, value in leaves(tree) if isinstance(value, Lazy)]
    distinct = {id(tensor): tensor for tensor in tensors}
    nbytes = sum(tensor.nbytes for tensor in (distinct.values() if to == "full" else tensors))
    write, check = (write_full, check_full) if to == "full" else (write_dcp, check_dcp)
    written = len(distinct) if to == "full" else len(tensors)
    prints = Fingerprints(written + len(tensors), progress)
    with staged(wish.target, wish.overwrite, nbytes) as new:
        try:
            write(tree, new, prints)
        except RuntimeError as error:  # torch's writer, as on a full disk
            raise Misplaced(f"cannot be written: {str(error).splitlines()[0]}") from None
        check(tree, new, prints, wish.trust)
    return Done(len(tensors), nbytes, tuple(changes))


def repaired(checkpoint: Checkpoint, wish: Conversion) -> tuple[Any, list[str]]:
    """The tree without what keeps FSDP2 from loading it, and a line for each change.

    Raises:
        Refused: there is what cannot be repaired.
    """
    found = survey(checkpoint)
    for problem in found.problems:
        if not problem.convertible:
            raise Refused(f"{problem.message}. {problem.advice[0].upper()}{problem.advice[1:]}")
    names = [problem.name for problem in found.problems]
    changes = [
        line
        for name, line in (
            ("rank-files", f"joined the shards of {checkpoint.ranks} ranks"),
            ("several-files", f"joined {len(checkpoint.files)} files"),
            ("wrapper-names", "removed from names what wrappers put into them"),
            ("ddp-names", "" if wish.keep_module else "removed `module.` from names"),
            ("shared-step", "gave each parameter a `step` of its own"),
        )
        if name in names and line
    ]
    tree = _tied(strip(checkpoint.tree, wish.keep_module), {})
    for place, optimizer in list(optimizers(tree)):
        if is_numbered(optimizer):
            try:
                optimizer = named(optimizer, _parameters(tree, wish))
            except Refused as error:
                raise Refused(f"{shown(place) or 'optimizer'}: {error}") from None
            changes.append(f"named the parameters of {shown(place) or 'the optimizer'}")
        tree = _replaced(tree, place, unshared(optimizer))
    return tree, changes


def _tied(tree: Any, seen: dict[Any, Lazy]) -> Any:
    """The same, with one object for one view of a storage: tied weights are written once, as torch.save does."""
    if isinstance(tree, Stored):
        return seen.setdefault((id(tree.storage), tree.offset, tree.shape, tree.stride), tree)
    if isinstance(tree, Mapping):
        return like(tree, ((key, _tied(value, seen)) for key, value in tree.items()))
    if type(tree) in (list, tuple):
        return type(tree)(_tied(value, seen) for value in tree)
    return tree


def _replaced(tree: Any, place: Place, value: Any) -> Any:
    if not place:
        return value
    key, *rest = place
    if isinstance(tree, Mapping):
        return like(
            tree,
            ((k, _replaced(v, tuple(rest), value) if k == key else v) for k, v in tree.items()),
        )
    return [_replaced(v, tuple(rest), value) if i == key else v for i, v in enumerate(tree)]


def _parameters(tree: Any, wish: Conversion) -> Mapping[str, Shape] | None:
    """Names and shapes of the one model that is there, in order; None where there is not one."""
    if wish.names_from is not None:
        other = open_checkpoint(wish.names_from, Reading(wish.trust))
        if other.kind == "local" or other.refused is not None:
            raise Refused(f"--names-from {wish.names_from}: it does not have whole tensors")
        tree = strip(other.tree, wish.keep_module)
    optimizer_places = [place for place, _ in optimizers(tree)]
    models = [
        {str(name): value.shape for name, value in m.items() if isinstance(value, Lazy)}
        for place, m in mappings(tree)
        if not is_nested(m)
        and not any(place[: len(inside)] == inside for inside in optimizer_places)
    ]
    models = [model for model in models if model]
    if wish.names_from is not None and len(models) != 1:
        raise Refused(f"--names-from {wish.names_from}: it holds {len(models)} models, not one")
    return models[0] if len(models) == 1 else None
