"""What a checkpoint holds, and what keeps an FSDP2 program from loading it as it is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fsdp_migrate.checkpoint.errors import LocalShards, Unreadable
from fsdp_migrate.checkpoint.names import WRAPPERS, all_in_ddp, is_flat, wrapped
from fsdp_migrate.checkpoint.optimizers import is_numbered, is_optimizer, optimizers, sharing_step
from fsdp_migrate.checkpoint.parts import is_tensor, nbytes
from fsdp_migrate.checkpoint.sources import Checkpoint
from fsdp_migrate.checkpoint.trees import leaves, mappings, shown

AGAIN_WHOLE = "load it with FSDP1 on as many ranks as wrote it, and save it as FULL_STATE_DICT or SHARDED_STATE_DICT"


@dataclass(frozen=True)
class Section:
    """A part of a checkpoint: `optimizer`, `model` (names and tensors) or `other`, and its key (empty: the whole)."""

    key: str
    role: str
    tensors: int
    elements: int
    bytes: int
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class Problem:
    """Why it does not load as it is. `convertible`: `checkpoint convert` repairs it."""

    name: str
    message: str
    advice: str
    convertible: bool = True


@dataclass(frozen=True)
class Survey:
    """The result for one checkpoint."""

    checkpoint: Checkpoint
    sections: tuple[Section, ...]
    others: tuple[str, ...]
    problems: tuple[Problem, ...]

    @property
    def loads(self) -> bool:
        """Whether an FSDP2 program can load it as it is."""
        return not self.problems

    @property
    def convertible(self) -> bool:
        """Whether `checkpoint convert` can make one that loads."""
        return all(problem.convertible for problem in self.problems)


def survey(checkpoint: Checkpoint) -> Survey:
    """Look at the names, shapes and kinds of all that is in it; raises Unreadable where no tensor has a name."""
    tree = checkpoint.tree
    if not any(is_tensor(value) for _, value in leaves(tree)) and not any(optimizers(tree)):
        raise Unreadable("holds no tensor")
    if not isinstance(tree, Mapping):
        raise Unreadable("holds no state dict: its tensors have no names")
    sections = tuple(_sections(tree))
    keys = {section.key for section in sections}
    others = tuple(str(key) for key in tree if str(key) not in keys) if "" not in keys else ()
    return Survey(checkpoint, sections, others, tuple(_problems(checkpoint)))


def _sections(tree: Mapping[Any, Any]) -> Iterator[Section]:
    if is_optimizer(tree) or not is_nested(tree):
        yield _section("", tree)
        return
    for key, value in tree.items():
        section = _section(str(key), value)
        if section.tensors or section.role == "optimizer":
            yield section


def is_nested(tree: Mapping[Any, Any]) -> bool:
    """Whether it holds state dicts, and is none itself."""
    return any(
        isinstance(value, Mapping)
        and (is_optimizer(value) or any(is_tensor(leaf) for _, leaf in leaves(value)))
        for value in tree.values()
    )


def _section(key: str, tree: Any) -> Section:
    tensors = [value for _, value in leaves(tree) if is_tensor(value)]
    bytes_of = Counter[str]()
    for tensor in tensors:
        bytes_of[str(tensor.dtype).removeprefix("torch.")] += nbytes(tensor)
    role = "model" if isinstance(tree, Mapping) else "other"
    role = "optimizer" if any(optimizers(tree)) else role
    elements = sum(math.prod(tensor.shape) for tensor in tensors)
    dtypes = tuple(name for name, _ in bytes_of.most_common())
    return Section(key, role, len(tensors), elements, bytes_of.total(), dtypes)


def _problems(checkpoint: Checkpoint) -> Iterator[Problem]:
    tree, ranks = checkpoint.tree, checkpoint.ranks
    flat = [place for place, _ in leaves(tree) if place and is_flat(place[-1])]
    if flat:
        number = "1 flat parameter" if len(flat) == 1 else f"{len(flat)} flat parameters"
        message = f"{number} of FSDP1 ({shown(flat[0])}): the shapes of the parameters in them are in no file"
        yield Problem("flat-parameter", message, AGAIN_WHOLE, convertible=False)
    elif checkpoint.kind == "local":
        message = (
            f"one-dimensional shards of FSDP1, other ones on each of {ranks} ranks: the "
            "parameters' shapes are in no file"
        )
        advice = AGAIN_WHOLE
        if is_optimizer(tree):
            advice = f"give convert the model's checkpoint with --names-from, or {AGAIN_WHOLE}"
        yield Problem("local-shards", message, advice, convertible=False)
    if isinstance(refused := checkpoint.refused, LocalShards):
        advice = f"convert --only takes other entries; for this one, {AGAIN_WHOLE}"
        yield Problem("local-shards", str(refused), advice, convertible=False)
    elif refused is not None:
        advice = "bring the files of all ranks together"
        yield Problem("incomplete", str(refused), advice, convertible=False)
    elif checkpoint.kind == "shards":
        message = f"sharded tensors in a file for each of {ranks} ranks"
        yield Problem("rank-files", message, "convert joins them")
    yield from _name_problems(tree)
    yield from _optimizer_problems(tree, checkpoint)


def _name_problems(tree: Any) -> Iterator[Problem]:
    for part, names in wrapped(tree).items():
        number = "1 name" if len(names) == 1 else f"{len(names)} names"
        message = f"{number} with the `{part}.` of {WRAPPERS[part]}, as {names[0]}"
        yield Problem("wrapper-names", message, "convert strips it")
    in_ddp = next((m for _, m in mappings(tree) if all_in_ddp(m)), None)
    if in_ddp is not None:
        yield Problem(
            "ddp-names",
            f"all names begin with the `module.` of DistributedDataParallel, as {next(iter(in_ddp))}",
            "convert strips it (--keep-module if your model has a part called `module`)",
        )


def _optimizer_problems(tree: Any, checkpoint: Checkpoint) -> Iterator[Problem]:
    for place, optimizer in optimizers(tree):
        what = shown(place) or "the optimizer"
        # DCP has each parameter's step as an entry of its own.
        if checkpoint.kind != "dcp" and (sharing := sharing_step(optimizer)):
            yield Problem(
                "shared-step",
                f"{sharing} parameters in {what} share `step` tensors, as FSDP1's flat parameters do: "
                "training would resume, and count each step once for every one of them",
                "convert gives each its own",
            )
        if is_numbered(optimizer):
            yield Problem(
                "numbered-parameters",
                f"{what} numbers its parameters; set_optimizer_state_dict takes names",
                "convert names them, where the file or --names-from shows how",
            )
