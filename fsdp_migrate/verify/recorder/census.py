"""What this process holds of a program's parameters and buffers, by name, and which ranks hold the same.

Found by one look at all live modules, which works for every way of wrapping and costs the program some milliseconds
once.
"""

import gc
import weakref
from collections.abc import Iterable

import torch
from torch import nn
from torch._compile import _disable_dynamo

from . import layouts

Tensors = dict[int, torch.Tensor]
"""Tensors by their identity."""


class Census:
    """What is known of some parameters, and of the buffers of the models that they belong to.

    Attributes:
        parts: what this process holds, by name and place.
        first: those of them that this process is the first to hold.
        complete: whether every parameter's name and place is known.
        lost: how many parameters were looked for and belong to no module.
        gathered: those of them that are the gathered form of a unit's sharded ones.
    """

    def __init__(self) -> None:
        self.parts: dict[tuple[str, tuple[int, ...]], layouts.Part] = {}
        self.first: dict[tuple[str, tuple[int, ...]], layouts.Part] = {}
        self.complete = True
        self.lost = 0
        self.gathered = 0
        self._models: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._count = 0
        self._modules: dict[str, nn.Module] = {}
        self._holdings: dict[int, layouts.Holding] = {}
        self._pieces: dict[int, list[layouts.Part]] = {}
        # Parameters are known by identity: they must live on, or another could get the same. They
        # are held to the end also because that is when their last values are read.
        self._known: Tensors = {}
        self._untrained: dict[nn.Module, Census] = {}

    def look(self, parameters: Iterable[torch.Tensor], rank: int, processes: int) -> None:
        """Find the owners of those parameters that were not looked for before."""
        new = {id(p): p for p in parameters if id(p) not in self._known}
        if not new:
            return
        self._known.update(new)
        at = (processes, rank)
        for root in _in_order(roots(), new):
            self._look_into(root, new, at)
        self._lose(
            {identity: p for identity, p in new.items() if identity not in self._holdings}, at
        )

    def look_for_untrained(self, rank: int, processes: int) -> None:
        """Find the sharded models that no optimizer has stepped so far, such as a moving average."""
        for model in roots():
            if model not in self._models and any(map(layouts.is_sharded, model.modules())):
                census = Census()
                census._models[model] = "untrained model"
                census.look(model.parameters(), rank, processes)
                self._untrained[model] = census

    def untrained_parts(self) -> list[layouts.Part]:
        """The parts, of which this process is the first holder, of the one model that no optimizer has stepped.

        Several cannot be told apart.
        """
        others = [census for model, census in self._untrained.items() if model not in self._models]
        if len(others) == 1 and others[0].complete:
            return list(others[0].first.values())
        return []

    def buffers(self) -> dict[str, torch.Tensor]:
        """The buffers as they are now; every process has its own."""
        found: dict[str, torch.Tensor] = {}
        for name, module in self._modules.items():
            for key, buffer in module._buffers.items():
                if buffer is not None:
                    local = getattr(buffer, "_local_tensor", buffer)
                    found.setdefault(layouts.clean(name, key), local)
        return found

    def pieces(self, parameter: torch.Tensor) -> list[layouts.Part]:
        """What this process holds in a parameter that an optimizer has: several in a flat one, none if that is not known."""
        return self._pieces.get(id(parameter), [])

    def replicas(self, parameter: torch.Tensor) -> int:
        """How many processes hold the same part of this parameter and its gradient."""
        return self._holdings[id(parameter)].replicas

    def _named(self, model: nn.Module) -> str:
        """What tells the parameters of one model from those of another with the same names."""
        if model not in self._models:
            self._count += 1  # of those that the program has dropped, too
            if self._count > 1:
                self._models[model] = f"model {self._count}"
            else:
                self._models[model] = ""
        return self._models[model]

    def _look_into(self, model: nn.Module, new: Tensors, at: tuple[int, int]) -> None:
        name = self._named(model)
        for path, module in model.named_modules():
            place = layouts.clean(name, path)
            if module._buffers:
                self._modules.setdefault(place, module)
            members = [id(p) for p in layouts.flat_members(module)]
            if not new.keys().isdisjoint(members):
                holding = layouts.flat_unit(place, module, lambda parameter: id(parameter) in new)
                self._add([m for m in members if m not in self._holdings], holding)
            for key, parameter in module._parameters.items():
                identity = id(parameter)
                if parameter is not None and identity in new and identity not in self._holdings:
                    one = layouts.single(layouts.clean(place, key), parameter, *at)
                    self._add([identity], one)

    def _lose(self, lost: Tensors, at: tuple[int, int]) -> None:
        """Parameters without a module have no name: their gradients count, their last values cannot be compared."""
        for identity, parameter in lost.items():
            holding = layouts.single("", parameter, *at)
            self._add([identity], layouts.Holding(holding.replicas, readable=False))
        self.lost += len(lost)
        if not lost:
            return
        forms = set[int]()
        for root in roots():
            for module in root.modules():
                forms.update(map(id, layouts.gathered(module)))
        self.gathered += len(forms & lost.keys())

    def _add(self, identities: list[int], holding: layouts.Holding) -> None:
        self._holdings.update(dict.fromkeys(identities, holding))
        self.complete = self.complete and holding.readable
        for part in holding.parts:
            self._pieces.setdefault(part.owner, []).append(part)
            self.parts.setdefault((part.name, part.offsets), part)
            if holding.first:
                self.first.setdefault((part.name, part.offsets), part)


def _in_order(models: list[nn.Module], wanted: Tensors) -> list[nn.Module]:
    """The models with wanted parameters, in the order of these, which is the same in both programs."""
    places = {identity: place for place, identity in enumerate(wanted)}
    first: dict[nn.Module, int] = {}
    for model in models:
        flat = [p for module in model.modules() for p in layouts.flat_members(module)]
        found = [places[id(p)] for p in [*model.parameters(), *flat] if id(p) in places]
        if found:
            first[model] = min(found)
    return sorted(first, key=first.__getitem__)


@_disable_dynamo  # a step that the program compiles comes by here
def roots() -> list[nn.Module]:
    """The live modules that no other module contains, those with most parameters first."""
    modules: dict[int, nn.Module] = {}
    for o in gc.get_objects():
        if issubclass(type(o), nn.Module) and "_modules" in o.__dict__:  # else not initialised yet
            # `model.module` of a unit that is sharded in place is a second object with the unit's attributes.
            if id(o.__dict__) not in modules or hasattr(type(o), "_get_fsdp_state"):
                modules[id(o.__dict__)] = o
    inner = {id(child) for module in modules.values() for child in module._modules.values()}
    outer = [module for module in modules.values() if id(module) not in inner]
    return sorted(outer, key=lambda m: (-sum(1 for _ in m.parameters()), type(m).__qualname__))
