"""The forms of tensors, modules and optimizers."""

from __future__ import annotations

import contextlib
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from .. import layouts
from .names import Names
from .units import Units
from .weights import Weights

_ONE_BY_ONE = 4096
"""A tensor with more elements is written by so many of them."""
_SHOWN = 3
_SETTINGS = ("lr", "weight_decay", "momentum", "betas", "eps")
_PLAIN = (torch.Tensor, nn.Parameter, getattr(nn, "Buffer", nn.Parameter))
_DISTRIBUTED = ("DTensor", "FlatParameter")
_FSDP1 = "FullyShardedDataParallel"
_SHARDED = {_FSDP1, "FSDPModule"}


class Tensors:
    """Forms of what torch makes."""

    def __init__(self, is_own: Callable[[type], bool]) -> None:
        self._is_own = is_own
        self._names = Names()
        self._weights = Weights()
        self._units = Units()
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], int, str]] = {}
        self._classes: dict[type, str] = {}

    def of(self, value: Any) -> str | None:
        """The form of a tensor or a module, of an optimizer, a dtype, a device or a shape; None for anything else."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, torch.Size):
            return f"shape {tuple(value)}"
        if isinstance(value, (torch.dtype, torch.device)):
            return str(value)
        if isinstance(value, torch.Generator):
            return f"generator with seed {value.initial_seed()}"
        if isinstance(value, nn.Module):
            return f"module {self._class(value)}"
        if isinstance(value, torch.optim.Optimizer):
            return f"optimizer {type(value).__name__} of {len(value.param_groups)}"
        return None

    def begin(self) -> None:
        """Training begins: the models' weights are what they move away from."""
        self._weights.begin()

    def is_module(self, value: Any) -> bool:
        """Whether it is a module."""
        return isinstance(value, nn.Module)

    def is_optimizer(self, value: Any) -> bool:
        """Whether it is an optimizer."""
        return isinstance(value, torch.optim.Optimizer)

    def parts(self, value: Any, path: str, holders: dict[int, str]) -> Iterator[tuple[str, str]]:
        """What is followed of an optimizer, and of a sharded model, by itself; nothing of anything else.

        `holders` are the variables that have a module, the first one of each: `path` is added.
        """
        if isinstance(value, torch.optim.Optimizer):
            yield from self._of_optimizer(value)
        elif isinstance(value, nn.Module):
            first = holders.setdefault(id(_unwrapped(value)), path)
            if _is_sharded(value):
                yield "<is>", first
                yield from self._units.of(value).items()
                yield from self._of_model(value)

    def all_parameters(self, values: Any) -> bool:
        """Whether a collection has parameters only, and has some."""
        return bool(values) and all(isinstance(value, nn.Parameter) for value in values)

    def any_tensor(self, values: Any) -> bool:
        """Whether a collection begins with tensors, whose forms have another order after sharding."""
        return any(isinstance(value, torch.Tensor) for value in [*values][:_SHOWN])

    def names(self, parameters: Iterable[torch.Tensor], current: bool = False) -> str:
        """Parameters by their names; with `current` those that belong to no module any more have none."""
        found, lost = self._names.of([*parameters], current)
        if lost:
            found = [*found, f"{lost} of no module"]
        shown = ", ".join(found[:_SHOWN])
        if len(found) > _SHOWN:
            code = zlib.crc32("\n".join(found).encode()) & 0xFFFF
            shown += f", … of {len(found)} #{code:04x}"
        return f"parameters {shown}"

    def _of_optimizer(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, str]]:
        """Its settings and its parameters, group by group."""
        for index, group in enumerate(optimizer.param_groups[:_ONE_BY_ONE]):
            settings = {name: group[name] for name in _SETTINGS if name in group}
            told = ", ".join(f"{name} {_number(value)}" for name, value in settings.items())
            yield f"param_groups[{index}]", told
            yield f"param_groups[{index}].params", self.names(group["params"], current=True)

    def _of_model(self, module: nn.Module) -> Iterator[tuple[str, str]]:
        """Which parameters of a sharded model are frozen, and its weights."""
        frozen = [p for p in module.parameters() if not p.requires_grad]
        if frozen:
            yield "requires_grad", f"all but {self.names(frozen)}"
        else:
            yield "requires_grad", "all"
        weights, gradients, moves = self._weights.of(module)
        if weights:
            yield "<weights>", weights
            yield "<gradients>", gradients
        if moves:
            yield "<moved>", moves

    def fields(self, module: nn.Module) -> dict[str, Any]:
        """The attributes, buffers and parameters of a module of the program itself."""
        if "_parameters" not in vars(module):
            return {}  # its constructor has not begun
        kinds = [base for base in type(module).__mro__ if base.__name__ not in _SHARDED]
        if not any(map(self._is_own, kinds[:3])):
            return {}
        held = {name: value for name, value in vars(module).items() if not isinstance(value, dict)}
        return {**held, **module._buffers, **module._parameters}

    def _class(self, module: nn.Module) -> str:
        kind = type(module)
        names = [base.__name__ for base in kind.__mro__]
        if _FSDP1 in names:
            inner = module._modules.get("_fsdp_wrapped_module")
            if inner is not None:
                return f"FSDP({self._class(inner)})"
            return "FSDP"
        if "FSDPModule" in names and kind.__name__.startswith("FSDP"):
            return names[names.index("FSDPModule") + 1]
        return kind.__name__

    def _tensor(self, tensor: torch.Tensor) -> str:
        # What another class answers may be an error, or its own code: only torch's are asked.
        kind = type(tensor)
        if kind.__name__ in _DISTRIBUTED and kind.__module__.startswith("torch."):
            return self._sharded(tensor)
        if kind not in _PLAIN:
            return f"~tensor {kind.__name__} ()"
        with contextlib.suppress(Exception):
            if tensor.numel() <= _ONE_BY_ONE:
                return self._whole(tensor)  # a write to its `data` changes no version
            known = self._known.get(id(tensor))
            version = tensor._version
            if known is not None and known[0]() is tensor and known[1] == version:
                return known[2]
            form = self._whole(tensor)
            self._known[id(tensor)] = weakref.ref(tensor), version, form
            return form
        return "tensor"

    def _sharded(self, tensor: Any) -> str:
        if type(tensor).__name__ == "FlatParameter":
            return f"~flat parameter {tuple(tensor.shape)}"
        if all(placement.is_replicate() for placement in tensor.placements):
            return self._tensor(tensor._local_tensor)
        return f"~DTensor {tuple(tensor.shape)}"

    def _whole(self, tensor: torch.Tensor) -> str:
        name = str(tensor.dtype).removeprefix("torch.")
        if tensor.is_meta or tensor.layout != torch.strided:
            return f"tensor {name} {tuple(tensor.shape)}"
        if _is_freed(tensor):
            return f"~freed tensor {tuple(tensor.shape)}"
        with torch.no_grad(), _disable_current_modes():
            if tensor.dim() < 2 and hasattr(tensor, "_fsdp_flattened"):
                return f"~part of a flat parameter {tuple(tensor.shape)}"
            if tensor.numel() == 1:
                return f"{_number(tensor.item())} {name}"
            some = tensor.detach().reshape(-1)
            if some.numel() > _ONE_BY_ONE:
                some = some[:: some.numel() // _ONE_BY_ONE]
            if some.numel():
                size = some.abs().double().sum().item()
            else:
                size = 0.0
            return f"tensor {name} {tuple(tensor.shape)} |{size:.6g}|"


def _is_sharded(module: nn.Module) -> bool:
    return any(base.__name__ in _SHARDED for base in type(module).__mro__)


def _unwrapped(module: nn.Module) -> nn.Module:
    """The program's own module in wrappers, of which FSDP2 has fewer."""
    for name in layouts.WRAPPERS & module.__dict__.get("_modules", {}).keys():
        inner = module._modules[name]
        if inner is not None:
            return _unwrapped(inner)
    return module


def _is_freed(tensor: torch.Tensor) -> bool:
    """Whether a tensor's memory was given back, as FSDP1 does with whole parameters: to read it would end the process."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    needed = (tensor.storage_offset() + last + 1) * tensor.element_size()
    return tensor.numel() > 0 and tensor.untyped_storage().nbytes() < needed


def _number(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_number, value))})"
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)
