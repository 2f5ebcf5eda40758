"""FSDP1's `optimizer.state_dict()`, saved by each rank: its shards of numbered parameters, joined by a model's shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fsdp_migrate.checkpoint.errors import Refused
from fsdp_migrate.checkpoint.files import read_file
from fsdp_migrate.checkpoint.optimizers import Optimizer, Shape, is_numbered, is_optimizer, named
from fsdp_migrate.checkpoint.sources import Checkpoint, Reading
from fsdp_migrate.checkpoint.trees import Place, like, rebuilt


def holds_shards(checkpoint: Checkpoint) -> bool:
    """Whether it is such a file, of an optimizer alone."""
    return (
        checkpoint.kind == "local"
        and is_optimizer(checkpoint.tree)
        and is_numbered(checkpoint.tree)
    )


def joined(checkpoint: Checkpoint, how: Reading, shapes: Mapping[str, Shape] | None) -> Any:
    """The optimizer's state dict with whole states by names; raises Refused where they do not fit the shapes.

    With `use_orig_params` a rank holds a run of the elements of each parameter, in the order of ranks. Without it, of all
    parameters of a unit, with padding behind: only a model that is one unit says which these are.
    """
    if shapes is None:
        raise Refused("the model's checkpoint, given with --names-from, does not hold one model")
    ranks = [how.taken(read_file(file, how.trust)[1]) for file in checkpoint.files]
    first, sizes = ranks[0], {name: (math.prod(shape),) for name, shape in shapes.items()}
    flat = {
        key: _joined([r["state"][key] for r in ranks if key in r["state"]]) for key in _keys(ranks)
    }
    if len(flat) == 1 and len(shapes) > 1:
        return _of_one_unit(first, flat.popitem()[1], shapes, len(ranks))
    try:
        whole = named(like(first, {**first, "state": flat}.items()), sizes)
    except Refused as error:
        raise Refused(
            f"the shards of {len(ranks)} files do not add up to the model's parameters: a rank's file is missing, it is "
            "of another model, or it was saved without use_orig_params, where a state is of a whole unit and no file "
            f"says of which parameters ({error})"
        ) from None

    def shaped(place: Place, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.dim():
            return value
        if value.numel() != sizes[place[0]][0]:
            raise Refused(f"the shards of {place[0]}.{place[1]} do not add up to its parameter")
        return value.view(shapes[place[0]])

    return {**whole, "state": rebuilt(whole["state"], shaped)}


def _keys(ranks: Sequence[Optimizer]) -> list[Any]:
    """The numbers that have a state on any rank, in order: a rank without elements of a parameter has none."""
    return sorted({key for rank in ranks for key in rank["state"]}, key=int)


def _joined(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One parameter's state, from its parts on the ranks; what has no elements of its own is the first rank's."""

    def whole(name: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.dim():
            return value
        return torch.cat([state[name].flatten() for state in states])

    return {name: whole(name, value) for name, value in states[0].items()}


def _of_one_unit(
    optimizer: Optimizer, state: Mapping[str, Any], shapes: Mapping[str, Shape], ranks: int
) -> dict[str, Any]:
    """The states of all parameters, from that of the flat parameter of the only unit."""
    sizes = [math.prod(shape) for shape in shapes.values()]
    parts: dict[str, dict[str, Any]] = {name: {} for name in shapes}
    for key, value in state.items():
        if isinstance(value, torch.Tensor) and value.dim():
            if not 0 <= value.numel() - sum(sizes) < ranks:
                raise Refused(
                    f"it has one state, of {value.numel()} elements, and the model has {sum(sizes)}: a rank's file is "
                    "missing, or other parts of the model are not in it"
                )
            pieces: Sequence[Any] = value[: sum(sizes)].split(sizes)  # type: ignore[no-untyped-call]
        else:
            pieces = [value] * len(sizes)
        for (name, shape), piece in zip(shapes.items(), pieces, strict=True):
            parts[name][key] = (
                piece.view(shape) if isinstance(piece, torch.Tensor) and piece.dim() else piece
            )
    (group,) = optimizer["param_groups"]
    return {"state": parts, "param_groups": [{**group, "params": list(shapes)}]}
