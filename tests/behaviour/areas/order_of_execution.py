"""The order in which units run, which FSDP1 checks under `TORCH_DISTRIBUTED_DEBUG=DETAIL`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from ..registry import each
from . import common


@contextmanager
def in_detail() -> Iterator[None]:
    before = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        yield
    finally:
        dist.set_debug_level(before)


class Ordered(nn.Module):
    """Blocks in the order that is asked for; in backward they may be computed again."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([common.Block(4) for _ in range(3)])
        self.again = False

    def forward(self, x: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
        for number in order:
            block = self.blocks[number]
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return x


Steps = list[tuple[tuple[int, ...], ...]]
SAME, SWAPPED = (0, 1, 2), (0, 2, 1)

# By name: a sentence, and the order of each rank in each step.
ORDERS: dict[str, tuple[str, Steps]] = {
    "other_on_a_rank": (
        "Ranks that run units in another order raise in the first step.",
        [(SAME, SWAPPED)],
    ),
    "fewer_on_a_rank": ("So do ranks that leave a unit out.", [((0, 1, 2), (0, 2, 2))]),
    "other_later": (
        "A rank that runs units in another order than in the first step warns once.",
        [(SAME, SAME), (SWAPPED, SWAPPED), (SWAPPED, SWAPPED), (SAME, SAME)],
    ),
    "more_later": (
        "A rank that runs a unit more than in the first step warns.",
        [((0, 1), (0, 1)), (SAME, SAME)],
    ),
    "the_same": (
        "Ranks that run units in one order are told nothing.",
        [(SAME, SAME), (SAME, SAME)],
    ),
}


def outcome(steps: Steps, model: Any) -> Any:
    """The losses with what was warned of, or the error."""
    losses: list[float] = []

    def run() -> None:
        for order, x in zip(steps, common.batches(len(steps)), strict=True):
            loss = model(x, order[dist.get_rank()]).pow(2).mean()
            loss.backward()
            losses.append(loss.item())

    try:
        warned = common.said(run)
    except RuntimeError as error:
        return str(error)
    return losses, [text for text in warned if "order" in text]


RAISING = ("other_on_a_rank", "fewer_on_a_rank")


def is_right(name: str, found: Any) -> bool:
    is_error = isinstance(found, str)
    if name in RAISING:
        return is_error and found.startswith("Forward order differs across ranks")
    return not is_error and bool(found[1]) is (name != "the_same")


def compare(api: Any, name: str, prepare: Callable[[Any], None]) -> Any:
    with in_detail():
        torch.manual_seed(1)
        # With `use_orig_params` FSDP1 finds no names, and fails with a KeyError where it would raise.
        model = common.in_blocks(api, Ordered(), use_orig_params=False)
        prepare(model.module)
        found = outcome(ORDERS[name][1], model)
    assert is_right(name, found), found
    return found


ROWS = {name: (sentence, name) for name, (sentence, _) in ORDERS.items()}


@each(ROWS)
def checked(api: Any, name: str) -> Any:
    """As FSDP1 says it, word for word."""
    return compare(api, name, lambda model: None)


def _again(model: Any) -> None:
    model.again = True


AGAIN = {
    f"{name}_with_checkpoints": (f"{sentence[:-1]}, with activation checkpoints.", name)
    for name, (sentence, name) in ROWS.items()
    if name in ("the_same", "other_later")
}


@each(AGAIN)
def checked_again(api: Any, name: str) -> Any:
    """What backward computes again is no forward."""
    return compare(api, name, _again)


@each({"silent_otherwise": ("Without that variable nothing is compared.",)})
def unchecked(api: Any) -> Any:
    """As many collectives as without the check."""
    counts = []
    for level in (dist.DebugLevel.OFF, dist.DebugLevel.INFO):
        dist.set_debug_level(level)
        torch.manual_seed(1)
        model = common.in_blocks(api, Ordered())
        with common.counted_collectives() as collectives:
            found = outcome(ORDERS["other_later"][1], model)
        counts.append(dict(sorted(collectives.items())))
        assert found[1] == []
    dist.set_debug_level(dist.DebugLevel.OFF)
    return counts
