"""`checkpoint convert`: from a checkpoint that FSDP2 does not load to one that it loads."""

import contextlib
import itertools
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import save

from fsdp_migrate.checkpoint.errors import Misplaced, Refused
from fsdp_migrate.checkpoint.names import strip
from fsdp_migrate.checkpoint.numbered import named
from fsdp_migrate.checkpoint.optimizers import is_numbered, is_optimizer, unshared
from fsdp_migrate.checkpoint.parts import Parts
from fsdp_migrate.checkpoint.sources import Checkpoint, open_checkpoint
from fsdp_migrate.checkpoint.survey import is_nested, problems, sections
from fsdp_migrate.checkpoint.trees import Place, rebuilt, tensors

_FILES = (".pt", ".pth", ".bin", ".ckpt")


@dataclass(frozen=True)
class Done:
    """What was written, and a line for each thing that was changed."""

    tensors: int
    nbytes: int
    changes: tuple[str, ...]


def convert(
    source: Path,
    target: Path,
    to: str | None = None,
    only: Sequence[str] = (),
    names_from: Path | None = None,
) -> Done:
    """Writes the target, and only then puts it in its place. Raises each of the errors in `errors.py`."""
    checkpoint = open_checkpoint(source, only)
    _check_target(source, target)
    if names_from is None:
        tree, changes = repaired(checkpoint)
    else:
        tree, changes = _named(checkpoint, only, names_from)
    if to is None and target.suffix in _FILES:
        to = "full"
    write: Callable[[Any, Path], None] = _write_dcp
    if to == "full":
        write = _write_full
    held = tensors(tree)
    size = sum(tensor.nbytes for tensor in held)
    joined = sum(tensor.nbytes for tensor in held if isinstance(tensor, Parts))
    with _staged(target, size + joined) as new:
        try:
            write(_settled(tree, new.parent / "scratch"), new)
        except RuntimeError as error:  # torch's writer, as on a full disk
            raise Misplaced(f"cannot be written: {str(error).splitlines()[0]}") from None
    return Done(len(held), size, tuple(changes))


def repaired(checkpoint: Checkpoint) -> tuple[Any, list[str]]:
    """The tree without what keeps FSDP2 from loading it, and a line for each change; raises Refused for what stays."""
    sections(checkpoint.tree)  # it has some
    found = list(problems(checkpoint))
    for problem in found:
        if not problem.convertible:
            raise Refused(f"{problem.message}. {problem.advice[0].upper()}{problem.advice[1:]}")
    done = {
        "rank-files": f"joined the shards of {checkpoint.ranks} ranks",
        "wrapper-names": "removed from names what wrappers put into them",
        "shared-step": "gave each parameter a `step` of its own",
    }
    names = {problem.name for problem in found}
    changes = [line for name, line in done.items() if name in names]
    tree = strip(checkpoint.tree)
    return rebuilt(tree, _with_own_steps), changes


def _with_own_steps(_: Place, node: Any) -> Any:
    if is_optimizer(node):
        return unshared(node)
    return node


def _named(checkpoint: Checkpoint, only: Sequence[str], names_from: Path) -> tuple[Any, list[str]]:
    """A numbered optimizer's states by the names of a model's checkpoint, and a line that says so."""
    trees = [open_checkpoint(file, only).tree for file in checkpoint.files]
    ranks = trees
    if len(only) == 1:
        ranks = [tree[only[0]] for tree in trees]
    if not all(is_optimizer(rank) and is_numbered(rank) for rank in ranks):
        raise Refused("--names-from names an optimizer's states: take them with --only")
    model = open_checkpoint(names_from)
    tree = strip(model.tree)
    if isinstance(tree, Mapping) and is_nested(tree):
        tree = next((tree[s.key] for s in sections(tree) if s.role == "model"), {})
    if model.kind == "local" or model.refused is not None or not tensors(tree):
        raise Refused(f"--names-from {names_from}: it has no model of whole tensors")
    shapes = {str(n): tuple(v.shape) for n, v in tree.items() if isinstance(v, torch.Tensor)}
    line = f"named the parameters of the optimizer, from {len(ranks)} files"
    return unshared(named(ranks, shapes)), [line]


def _check_target(source: Path, target: Path) -> None:
    if os.path.lexists(target):
        raise Misplaced("exists: choose another")
    if target.suffix == ".safetensors":
        raise Misplaced("safetensors files are read, not written: end it in .pt, or name a folder")
    if source.resolve() in target.resolve().parents:
        raise Misplaced("is inside of the source: choose another")


@contextlib.contextmanager
def _staged(target: Path, nbytes: int) -> Iterator[Path]:
    """A path of the same name in a hidden folder beside `target`; what is written there moves to `target` at the end.

    Only a kill leaves the folder, `.NAME.*.tmp`.
    """
    free = shutil.disk_usage(target.parent).free
    if free < nbytes:  # the system kills a program that writes to a map beyond the end of a disk
        raise Misplaced(f"does not fit: {nbytes:,} bytes needed, {free:,} free")
    folder = Path(
        tempfile.mkdtemp(prefix=f".{target.name[:50]}.", suffix=".tmp", dir=target.parent)
    )
    try:
        yield folder / target.name
        if os.path.lexists(target):
            raise Misplaced("was created while this was written: nothing is overwritten")
        os.rename(folder / target.name, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _settled(tree: Any, scratch: Path) -> Any:
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


def _write_full(tree: Any, file: Path) -> None:
    """One file, by `torch.save`."""
    with file.open("wb") as opened:
        torch.save(tree, opened)
        os.fsync(opened.fileno())


def _write_dcp(tree: Any, folder: Path) -> None:
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
