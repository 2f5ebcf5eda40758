"""Optimizers that are older than the sharding of their model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def remap_optimizer(optimizer: Any, model: nn.Module) -> Iterator[None]:
    """Keeps ``optimizer`` the optimizer of ``model`` while the body shards it.

    ``fully_shard`` replaces the parameters, where FSDP1 with ``use_orig_params=True`` kept them; an
    optimizer made before would go on with the old ones and train nothing. When the body is done,
    each of the model's parameters in ``param_groups`` makes way for the one that has its name now.
    The groups, their lists and their order stay, so that schedulers and closures hold on to them.

    Args:
        optimizer: a ``torch.optim.Optimizer``, or what has one as its ``optimizer``; None: nothing to do.
        model: the model that the body shards. Parameters of other modules are left alone.

    Raises:
        ValueError: the optimizer has stepped (FSDP1 failed in the next step: the state has the shape
            of whole parameters), or a parameter of it has no successor in the model.
        TypeError: ``optimizer`` is none.
    """
    if optimizer is None:
        yield
        return
    inner = _unwrapped(optimizer)
    names = {p: name for name, p in model.named_parameters(remove_duplicate=False)}
    _check_state(inner, names)
    yield
    successors = dict(model.named_parameters(remove_duplicate=False))
    gone = [
        names[p]
        for group in inner.param_groups
        for p in group["params"]
        if p in names and names[p] not in successors
    ]
    if gone:
        raise ValueError(
            f"the optimizer's parameter {gone[0]!r} is no longer in the model: create the optimizer "
            "after the model is sharded"
        )
    for group in inner.param_groups:
        group["params"][:] = [successors[names[p]] if p in names else p for p in group["params"]]


def _unwrapped(optimizer: Any) -> Any:
    """The optimizer with the states: what wraps one holds it as `optimizer`."""
    inner = optimizer
    while hasattr(inner, "optimizer"):
        inner = inner.optimizer
    if not hasattr(inner, "param_groups") or not hasattr(inner, "state"):
        raise TypeError(f"{type(optimizer).__name__} is no optimizer: it has no param_groups")
    return inner


def _check_state(optimizer: Any, names: dict[nn.Parameter, str]) -> None:
    for parameter, state in optimizer.state.items():
        # SGD without momentum notes that it has none.
        if parameter in names and any(value is not None for value in state.values()):
            raise ValueError(
                f"the optimizer has state for {names[parameter]!r} already, of the whole parameter: "
                "create it, or load its state, after the model is sharded"
            )
