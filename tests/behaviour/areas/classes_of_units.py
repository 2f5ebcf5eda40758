"""What a model's own class does under FSDP1, whose units are other objects around it and not of a derived class."""

from typing import Any

import torch
from torch import nn

from ..registry import each, holds
from . import common

KINDS: dict[str, type[nn.Module]] = {}


class Registered(nn.Module):
    """Its subclasses say under which name they are registered."""

    def __init_subclass__(cls, *, kind: str, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        KINDS[kind] = cls


class Mlp(Registered, kind="mlp"):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.a(x))


class Counted(nn.Module):
    """Its subclasses are counted, and the last one is made."""

    made: list[type[nn.Module]] = []

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)

    def __init_subclass__(cls, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        Counted.made.append(cls)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - torch.tanh(self.a(x))


class Last(Counted):
    pass


class Checked(nn.Module):
    """Its subclasses must say how wide they are, and none is made of another's."""

    width: int

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(self.width, self.width)

    def __init_subclass__(cls, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        if "width" not in vars(cls):
            raise TypeError(f"{cls.__name__} has no width")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(self.a(x))


class Wide(Checked):
    width = 6


class OwnMethods(nn.Module):
    """Methods that have the names of FSDP2's."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)

    def reshard(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, 6)

    def unshard(self) -> str:
        return "mine"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.unshard() == "mine"
        return self.reshard(self.a(x))


class OwnParts(nn.Module):
    """A layer and a parameter that have the names of FSDP2's methods."""

    def __init__(self) -> None:
        super().__init__()
        self.reshard = nn.Linear(6, 6)
        self.unshard = nn.Parameter(torch.full((6,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.reshard(x)) * self.unshard


class OwnAttributes(OwnMethods):
    """Attributes of the names of FSDP2's and FSDP1's, one of them inherited."""

    set_requires_gradient_sync = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.rank, self.world_size, self.reshard_after = 2, 3, 6

    def reshard(self, x: torch.Tensor) -> torch.Tensor:
        return super().reshard(x) * self.world_size / self.rank

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.set_requires_gradient_sync


class Scaled(nn.Linear):
    """Asks for its base by `self.__class__`, as code for Python 2 did."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super(self.__class__, self).forward(x) * 2

    def extra_repr(self) -> str:
        return super(self.__class__, self).extra_repr()


class ByBases(nn.Linear):
    """Names its base by its class."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (base,) = self.__class__.__bases__
        return base.forward(self, x) * 2


class ByOrder(nn.Linear):
    """Looks for its base behind its class."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        order = self.__class__.__mro__
        return order[order.index(ByOrder) + 1].forward(self, x) * len(order)


CLASSES: dict[str, tuple[Any, ...]] = {
    "registered_by_a_keyword": ("A class may ask its subclasses for a keyword.", Mlp),
    "counted_subclasses": ("A class that counts its subclasses has none more.", Last),
    "checked_subclasses": ("A class may refuse a subclass that does not define something.", Wide),
    "own_methods": ("Methods of a model may be called `reshard` and `unshard`.", OwnMethods),
    "own_parts": ("Layers and parameters may be called `reshard` and `unshard`.", OwnParts),
    "own_attributes": ("Attributes may have such names, and be inherited.", OwnAttributes),
    "base_by_class": ("`super(self.__class__, self)` is the base of the model's class.", Scaled),
    "base_by_bases": ("`self.__class__.__bases__` has that base alone.", ByBases),
    "base_by_order": ("`self.__class__.__mro__` has no other classes.", ByOrder),
}


@each(CLASSES)
def trained_class(api: Any, cls: type[nn.Module]) -> Any:
    """The losses, and what the class knows of itself."""
    torch.manual_seed(1)
    sizes = (6, 6) if issubclass(cls, nn.Linear) else ()
    parts = [cls(*sizes) for _ in range(2)]
    model = nn.Sequential(nn.Linear(4, 6), parts[0], nn.Tanh(), parts[1], nn.Linear(6, 3))
    model = api.FSDP(model, auto_wrap_policy=api.wrap.ModuleWrapPolicy({cls}), use_orig_params=True)
    losses = common.train(model)
    part = model.module[1].module
    assert part.__class__ is cls
    assert [*KINDS.items()] == [("mlp", Mlp)]
    assert [*Counted.made] == [Last]
    return losses, common.full(api, model), repr(part), sorted(model.state_dict())


@holds()
def own_methods_from_outside(api: Any) -> Any:
    """The wrapper gives the model's own methods, whatever their names."""
    torch.manual_seed(1)
    model = api.FSDP(OwnMethods(), use_orig_params=True)
    losses = common.train(model, inputs=common.batches(2, 5, 6))
    return losses, model.unshard(), model.reshard(torch.ones(2, 12))


class Core(common.Net):
    """Has names of its own that FSDP1's wrapper has as well."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(3, 3)
        self.process_group = "mine"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(super().forward(x))

    def clip_grad_norm_(self, limit: float) -> None:
        raise NotImplementedError


class Shell(nn.Module):
    """Answers for its core."""

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core = core

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.core, name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.process_group == "mine"
        return self.core(x)


class Forwarding(Shell):
    """Its own methods ask for the core's."""

    def head_of_core(self) -> nn.Module:
        return self.module


SHELLS: dict[str, tuple[Any, ...]] = {
    "delegating": ("A model that answers for its core is asked after FSDP1's wrapper.", Shell),
    "delegating_inside": ("Its own methods find the core's.", Forwarding),
}


@each(SHELLS)
def delegated(api: Any, cls: type[nn.Module]) -> Any:
    """What the names are: FSDP1's on the model, the core's in its methods."""
    torch.manual_seed(1)
    model = common.in_blocks(api, cls(Core()))
    losses = common.train(model)
    assert type(model.module) is cls
    assert len(model.module.blocks) == len(model.blocks) == 2
    norm = model.clip_grad_norm_(0.5)
    of_core = type(model.head_of_core()).__name__ if cls is Forwarding else ""
    size = model.process_group.size()
    return losses, norm, of_core, size, model.rank, sorted(model.state_dict())


@holds()
def delegating_units(api: Any) -> Any:
    """So is a unit inside that answers for a part which has such names."""
    torch.manual_seed(1)
    model = nn.Sequential(Shell(Core()), nn.Linear(3, 3))
    policy = api.wrap.ModuleWrapPolicy({Shell})
    model = api.FSDP(model, auto_wrap_policy=policy, use_orig_params=True)
    losses = common.train(model)
    unit = model.module[0]
    return losses, type(unit.module).__name__, unit.world_size, len(unit.blocks)
