"""The order in which ranks run units: FSDP1 checks it under ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` (``_exec_order_utils.py``).

Ranks that run units in different orders mix up what they gather: the collectives fit each other, and the numbers are wrong.
"""

from __future__ import annotations

import warnings
from itertools import combinations
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn

from .gather import current_device
from .materialize import own_modules
from .optimizer_keys import as_saved
from .torch_private import parameter_groups


class Order:
    """The order of the units of a root, in forwards of training.

    In the first iteration, until a backward, ranks compare each unit that they gather. Later each compares its own order with
    that of the first iteration.
    """

    def __init__(self, root: nn.Module, units: list[Any], group: dist.ProcessGroup) -> None:
        names = {module: f"{name}." if name else "" for name, module in root.named_modules()}
        gathered = [unit for unit in units if parameter_groups(unit)]
        self._group = group
        self._numbers = WeakKeyDictionary({unit: n for n, unit in enumerate(gathered)})
        self._names = [
            [
                as_saved(names[module] + name)
                for module in own_modules(unit, ())
                for name, _ in module.named_parameters(recurse=False)
            ]
            for unit in gathered
        ]
        self._first: list[int] = []
        self._is_first = True
        self._had_backward = False
        self._position = 0
        self._warns = False
        self._has_warned = False

    def backward_begins(self) -> None:
        """Ends the iteration: the next forward belongs to another one."""
        self._had_backward = True

    def forward_begins(self, unit: Any) -> None:
        """Compares ``unit``, whose parameters are about to be gathered.

        Raises RuntimeError where ranks gather different units.
        """
        if self._had_backward:
            self._next_iteration()
        number = self._numbers.get(unit)
        if number is None:
            return
        if self._is_first:
            if unit.training:
                self._compare_ranks(unit, number)
            if number not in self._first:
                self._first.append(number)
        elif unit.training and not self._has_warned:
            self._compare_with_first(number)

    def _next_iteration(self) -> None:
        self._is_first = self._had_backward = False
        self._has_warned = self._warns  # in one iteration, and never again
        self._position = 0

    def _compare_ranks(self, unit: Any, number: int) -> None:
        mesh = parameter_groups(unit)[0].mesh_info.mesh
        own = torch.tensor([number], device=current_device(mesh.device_type))
        every = [torch.empty_like(own) for _ in range(self._group.size())]
        dist.all_gather(every, own, group=self._group)
        gathered = [self._names[int(each.item())] for each in every]
        for one, other in combinations(range(len(gathered)), 2):
            if gathered[one] != gathered[other]:
                raise RuntimeError(
                    f"Forward order differs across ranks: rank {one} is all-gathering parameters for "
                    f"{[gathered[one]]} while rank {other} is all-gathering parameters for "
                    f"{[gathered[other]]}"
                )

    def _compare_with_first(self, number: int) -> None:
        expected = self._first[self._position : self._position + 1]
        self._position += 1
        if expected == [number]:
            return
        self._warns = True
        what = "Expected to not all-gather any more parameters in the forward"
        if expected:
            what = f"Expected to all-gather for {[self._names[expected[0]]]}"
        warnings.warn(
            f"Forward order differs from that of the first iteration on rank {self._group.rank()}. Collectives are "
            f"unchecked and may give incorrect results or hang.\n{what} but trying to all-gather parameters for "
            f"{[self._names[number]]}",
            stacklevel=2,
        )
