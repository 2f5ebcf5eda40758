"""`torch.device` and `torch.Generator`: every CUDA device is the CPU, for the program; torch's own code sees none."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from .. import patch

_TORCHS = {"torch", "functorch", "_fsdp_migrate_record"}
_Device = torch.device
_CPU = torch.device("cpu")


def install() -> None:
    """Replace both classes, what sets a device for all that follows, and what `torch.cuda` says of random numbers."""
    torch.device = _stand_in(_Device, _make)  # type: ignore[misc, assignment]
    set_default = torch.set_default_device
    torch.set_default_device = lambda device: set_default(mapped(device))
    set_type = torch.set_default_tensor_type
    torch.set_default_tensor_type = lambda kind: set_type(cpu_type(kind))
    _generators()


def _generators() -> None:
    """One generator, the CPU's; seeds for CUDA alone are not taken over.

    A program that seeds its devices by rank and its CPU not counts on equal numbers on the CPU, and would lose them.
    """
    real = torch.Generator
    torch.Generator = _stand_in(real, lambda device="cpu": real(mapped(device)))  # type: ignore[misc, assignment]
    fork: Any = torch.random.fork_rng
    torch.random.fork_rng = lambda devices=None, enabled=True, *args, **kwargs: fork((), enabled)
    cuda: Any = torch.cuda
    for name in ("manual_seed", "manual_seed_all", "seed", "seed_all"):
        # Not `nothing`: torch.compile has other rules for these, and refuses one function under two.
        setattr(cuda, name, lambda *_: None)
    cuda.initial_seed = torch.initial_seed
    cuda.get_rng_state = lambda device="cuda": torch.get_rng_state()
    cuda.get_rng_state_all = lambda: [torch.get_rng_state()]
    cuda.set_rng_state = lambda state, device="cuda": torch.set_rng_state(state)
    cuda.set_rng_state_all = lambda states: torch.set_rng_state(next(iter(states)))


def nothing(*args: Any, **kwargs: Any) -> None:
    """What has nothing to do on the CPU."""


def from_program() -> bool:
    """Whether the function that calls this was itself called from outside torch."""
    frame = sys._getframe(2)
    if frame.f_code.co_filename == patch.__file__ and frame.f_back is not None:
        frame = frame.f_back  # that has replaced a function of torch by it
    name = frame.f_globals.get("__name__", "")
    return str(name).partition(".")[0] not in _TORCHS


def mapped(device: Any) -> Any:
    """What names a device, with the CPU for CUDA: a string, an index, a device or None."""
    if isinstance(device, str):
        return "cpu" if device.partition(":")[0] == "cuda" else device
    return _CPU if isinstance(device, int) and not isinstance(device, bool) else device


def cpu_type(kind: Any) -> Any:
    """The name of a tensor type, without `cuda`."""
    return kind.replace("torch.cuda.", "torch.") if isinstance(kind, str) else kind


def _make(*args: Any, **kwargs: Any) -> Any:
    name = args[0] if args else kwargs.get("type", kwargs.get("device", ""))
    return _CPU if mapped(name) is not name else _Device(*args, **kwargs)


def _stand_in(real: type, make: Callable[..., Any]) -> type:
    """A class in the place of one in C: it looks like `real`, and its calls return what `make` returns, a `real`."""

    class Meta(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return make(*args, **kwargs)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, real)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, real)

        def __eq__(cls, other: object) -> bool:
            # A module that torch imported earlier holds the real one.
            return other is cls or other is real

        def __hash__(cls) -> int:
            return hash(real)

        def __getattr__(cls, name: str) -> Any:
            return getattr(real, name)

    # Pickled objects and annotations name the class: they must find this one.
    names = {"__module__": "torch", "__qualname__": real.__name__, "__doc__": real.__doc__}
    return Meta(real.__name__, (), names)
