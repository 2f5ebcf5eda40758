"""What a checkpoint holds, and what keeps an FSDP2 program from loading it as it is."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fsdp_migrate.checkpoint.errors import LocalShards, Unreadable
from fsdp_migrate.checkpoint.names import WRAPPERS, is_flat, wrapped
from fsdp_migrate.checkpoint.optimizers import is_numbered, is_optimizer, optimizers, sharing_step
from fsdp_migrate.checkpoint.sources import Checkpoint
from fsdp_migrate.checkpoint.trees import leaves, shown, tensors
from fsdp_migrate.views.text import counted

AGAIN_WHOLE = "load it with FSDP1 on as many ranks as wrote it, and save it as FULL_STATE_DICT or SHARDED_STATE_DICT"


class Section(NamedTuple):
    """A part of a checkpoint: `optimizer`, `model` (names and tensors) or `other`, and its key (empty: the whole)."""

    key: str
    role: str
    tensors: int
    elements: int
    bytes: int
    dtypes: tuple[str, ...]


class Problem(NamedTuple):
    """Why it does not load as it is. `convertible`: `checkpoint convert` repairs it."""

    name: str
    message: str
    advice: str
    convertible: bool = True


def sections(tree: Any) -> list[Section]:
    """What is in it, by the entries that have tensors; raises Unreadable where no tensor has a name."""
    if not tensors(tree) and not any(optimizers(tree)):
        raise Unreadable("holds no tensor")
    if not isinstance(tree, Mapping):
        raise Unreadable("holds no state dict: its tensors have no names")
    if is_optimizer(tree) or not is_nested(tree):
        return [_section("", tree)]
    found = [_section(str(key), value) for key, value in tree.items()]
    return [section for section in found if section.tensors or section.role == "optimizer"]


def is_nested(tree: Mapping[Any, Any]) -> bool:
    """Whether it holds state dicts, and is none itself."""
    return any(
        isinstance(value, Mapping) and (is_optimizer(value) or tensors(value))
        for value in tree.values()
    )


def _section(key: str, tree: Any) -> Section:
    held = tensors(tree)
    bytes_of = Counter[str]()
    for tensor in held:
        bytes_of[str(tensor.dtype).removeprefix("torch.")] += tensor.nbytes
    if isinstance(tree, Mapping):
        role = "model"
    else:
        role = "other"
    if any(optimizers(tree)):
        role = "optimizer"
    elements = sum(tensor.numel() for tensor in held)
    dtypes = tuple(name for name, _ in bytes_of.most_common())
    return Section(key, role, len(held), elements, bytes_of.total(), dtypes)


def problems(checkpoint: Checkpoint) -> Iterator[Problem]:
    """Why FSDP2 does not load it as it is: none, if it does."""
    yield from _of_layout(checkpoint)
    yield from _of_names(checkpoint.tree)
    yield from _of_optimizers(checkpoint)


def _of_layout(checkpoint: Checkpoint) -> Iterator[Problem]:
    tree = checkpoint.tree
    ranks = checkpoint.ranks
    refused = checkpoint.refused
    if flat := [place for place, _ in leaves(tree) if place and is_flat(place[-1])]:
        message = f"{counted(len(flat), 'flat parameter')} of FSDP1 ({shown(flat[0])})"
        message += ": the shapes of the parameters in them are in no file"
        yield Problem("flat-parameter", message, AGAIN_WHOLE, convertible=False)
    elif checkpoint.kind == "local":
        message = f"one-dimensional shards of FSDP1, other ones on each of {ranks} ranks: "
        message += "the parameters' shapes are in no file"
        yield Problem("local-shards", message, AGAIN_WHOLE, convertible=False)
    if isinstance(refused, LocalShards):
        advice = f"convert --only takes other entries; for this one, {AGAIN_WHOLE}"
        yield Problem("local-shards", str(refused), advice, convertible=False)
    elif refused is not None:
        advice = "bring the files of all ranks together"
        yield Problem("incomplete", str(refused), advice, convertible=False)
    elif checkpoint.kind == "shards":
        message = f"sharded tensors in a file for each of {ranks} ranks"
        yield Problem("rank-files", message, "convert joins them")


def _of_names(tree: Any) -> Iterator[Problem]:
    for part, names in wrapped(tree).items():
        found = counted(len(names), "name")
        message = f"{found} with the `{part}.` of {WRAPPERS[part]}, as {names[0]}"
        yield Problem("wrapper-names", message, "convert strips it")


def _of_optimizers(checkpoint: Checkpoint) -> Iterator[Problem]:
    for place, optimizer in optimizers(checkpoint.tree):
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
                "convert --names-from MODEL names them by the shapes of the model's checkpoint; --only takes "
                "other entries",
                convertible=False,
            )
