"""`checkpoint convert`: from a checkpoint that FSDP2 does not load to one that it loads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fsdp_migrate.checkpoint import optimizers, rank_optimizers
from fsdp_migrate.checkpoint.errors import Misplaced, Refused
from fsdp_migrate.checkpoint.names import strip
from fsdp_migrate.checkpoint.parts import Parts
from fsdp_migrate.checkpoint.place import check_target, staged
from fsdp_migrate.checkpoint.sources import Checkpoint, Reading, open_checkpoint
from fsdp_migrate.checkpoint.survey import is_nested, problems, sections
from fsdp_migrate.checkpoint.trees import Place, mappings, rebuilt, shown, tensors
from fsdp_migrate.checkpoint.write import check, settled, write_dcp, write_full

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


def convert(wish: Conversion) -> Done:
    """Write the target, read it back, and only then put it in its place. Raises each of the errors in `errors.py`."""
    checkpoint = open_checkpoint(wish.source, Reading(wish.trust, wish.only))
    if wish.target.suffix == ".safetensors":
        raise Misplaced("safetensors files are read, not written: end it in .pt, or name a folder")
    check_target(wish.target, (wish.source, *checkpoint.files), wish.overwrite)
    tree, changes = repaired(checkpoint, wish)
    to_full = (wish.to or ("full" if wish.target.suffix in _FILES else "dcp")) == "full"
    write = write_full if to_full else write_dcp
    held = tensors(tree)
    size = sum(tensor.nbytes for tensor in held)
    joined = sum(tensor.nbytes for tensor in held if isinstance(tensor, Parts))
    with staged(wish.target, wish.overwrite, size + joined) as new:
        try:
            tree = settled(tree, new.parent / "scratch")
            write(tree, new)
        except RuntimeError as error:  # torch's writer, as on a full disk
            raise Misplaced(f"cannot be written: {str(error).splitlines()[0]}") from None
        check(tree, new, wish.trust)
    return Done(len(held), size, tuple(changes))


def repaired(checkpoint: Checkpoint, wish: Conversion) -> tuple[Any, list[str]]:
    """The tree without what keeps FSDP2 from loading it, and a line for each change; raises Refused for what stays."""
    if wish.names_from is not None and rank_optimizers.holds_shards(checkpoint):
        how, shapes = Reading(wish.trust, wish.only), _parameters(checkpoint.tree, wish)
        whole = optimizers.unshared(rank_optimizers.joined(checkpoint, how, shapes))
        return whole, [f"joined and named the optimizer's shards of {checkpoint.ranks} ranks"]
    sections(checkpoint.tree)  # it has some
    found = list(problems(checkpoint))
    for problem in found:
        if not problem.convertible:
            raise Refused(f"{problem.message}. {problem.advice[0].upper()}{problem.advice[1:]}")
    done = {
        "rank-files": f"joined the shards of {checkpoint.ranks} ranks",
        "wrapper-names": "removed from names what wrappers put into them",
        "ddp-names": "" if wish.keep_module else "removed `module.` from names",
        "shared-step": "gave each parameter a `step` of its own",
    }
    names = {problem.name for problem in found}
    changes = [line for name, line in done.items() if name in names and line]
    tree = strip(checkpoint.tree, wish.keep_module)

    def repair(place: Place, node: Any) -> Any:
        if not optimizers.is_optimizer(node):
            return node
        if optimizers.is_numbered(node):
            try:
                node = optimizers.named(node, _parameters(tree, wish))
            except Refused as error:
                raise Refused(f"{shown(place) or 'optimizer'}: {error}") from None
            changes.append(f"named the parameters of {shown(place) or 'the optimizer'}")
        return optimizers.unshared(node)

    return rebuilt(tree, repair), changes


def _parameters(tree: Any, wish: Conversion) -> Mapping[str, optimizers.Shape] | None:
    """Names and shapes of the one model that is there, in order; None where there is not one."""
    if (path := wish.names_from) is not None:
        other = open_checkpoint(path, Reading(wish.trust))
        if other.kind == "local" or other.refused is not None:
            raise Refused(f"--names-from {path}: it does not have whole tensors")
        tree = strip(other.tree, wish.keep_module)
    inside = [place for place, _ in optimizers.optimizers(tree)]
    models = [
        {str(n): tuple(v.shape) for n, v in m.items() if isinstance(v, torch.Tensor)}
        for place, m in mappings(tree)
        if not is_nested(m) and not any(place[: len(o)] == o for o in inside)
    ]
    models = [model for model in models if model]
    if path is not None and len(models) != 1:
        raise Refused(f"--names-from {path}: it holds {len(models)} models, not one")
    return models[0] if len(models) == 1 else None
