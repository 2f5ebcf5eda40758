"""`optimizer.state_dict()`, which numbers parameters: whole, or each rank's shards of FSDP1, named by a model's shapes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from fsdp_migrate.checkpoint.errors import Refused
from fsdp_migrate.checkpoint.optimizers import Optimizer
from fsdp_migrate.checkpoint.trees import Place, like, rebuilt

Shapes = Mapping[str, tuple[int, ...]]
_SAVE = "save it with FSDP.optim_state_dict or get_optimizer_state_dict"


def named(ranks: Sequence[Optimizer], shapes: Shapes) -> dict[Any, Any]:
    """One optimizer's state dict with whole states by names, from its files; raises Refused where the shapes leave none.

    The numbers follow the order of `model.parameters()`, and so does the model's state dict, among buffers and frozen
    parameters: the names are those whose sizes fit, if there is one way only. Under `use_orig_params` a rank has a run
    of each parameter's elements, in the order of ranks; without it of a whole unit's, and no file says of which parameters.
    """
    groups = ranks[0]["param_groups"]
    if len(groups) > 1:
        raise Refused(
            f"its parameters are in several groups, so that their order is not the model's: {_SAVE}"
        )
    numbers = groups[0]["params"]
    states = {number: _joined([r["state"].get(number, {}) for r in ranks]) for number in numbers}
    names = _fitting([_size(states[number]) for number in numbers], shapes.items())
    if names is None:
        raise Refused(
            f"the states of {len(ranks)} files do not add up to the model's parameters: a rank's file is missing, "
            "it is of another model, or it was saved without use_orig_params"
        )
    backwards = _fitting([_size(states[n]) for n in numbers[::-1]], [*shapes.items()][::-1])
    if backwards is None or names != backwards[::-1]:
        raise Refused(f"the shapes leave several ways to name its parameters: {_SAVE}")

    def shaped(place: Place, value: Any) -> Any:
        if _has_elements(value):
            return value.view(shapes[place[0]])
        return value

    state = rebuilt(dict(zip(names, (states[n] for n in numbers), strict=True)), shaped)
    given = {name: values for name, values in state.items() if values}
    return like(
        ranks[0],
        {**ranks[0], "state": given, "param_groups": [{**groups[0], "params": names}]}.items(),
    )


def _joined(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A parameter's state, from its parts on the ranks; a rank without elements of it has none."""
    states = [state for state in states if state]
    if not states:
        return {}
    joined = dict(states[0])
    for key, value in joined.items():
        if _has_elements(value):
            joined[key] = torch.cat([state[key].flatten() for state in states])
    return joined


def _has_elements(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0


def _size(state: Mapping[str, Any]) -> int | None:
    """How many elements the parameter has; None where nothing in its state follows it."""
    return max((v.numel() for v in state.values() if _has_elements(v)), default=None)


def _fitting(
    sizes: Sequence[int | None], names: Iterable[tuple[str, tuple[int, ...]]]
) -> list[str] | None:
    """The first names in order whose shapes have these sizes."""
    found = []
    rest = iter(names)
    for size in sizes:
        name = next((n for n, shape in rest if size in (None, math.prod(shape))), None)
        if name is None:
            return None
        found.append(name)
    return found
