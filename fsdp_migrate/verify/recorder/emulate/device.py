"""`torch.device` and `torch.Generator`: what the program calls CUDA is the CPU for torch's own code."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

# The recorder has another name in the ranks of `verify` than as a part of the installed package.
_RECORDER = __name__.removesuffix(".emulate.device")
_REPLACES = (f"{_RECORDER}.emulate", f"{_RECORDER}.patch")
_TORCHS = ("torch", "functorch")
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
    """Whether the emulation was called from outside torch, and outside the runtime, of which the program may have a copy."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(_REPLACES):
        frame = frame.f_back
    if frame is not None:
        names = frame.f_globals
    else:
        names = {}
    if f"{names.get('__package__')}.torch_private" in sys.modules:
        return False
    name = str(names.get("__name__", ""))
    return name.partition(".")[0] not in _TORCHS and not name.startswith(_RECORDER)


class Cuda:
    """The `torch.device` that the program has: CUDA in what it says of itself, the CPU for torch's own code.

    All of them are equal: there is one.
    """

    def __init__(self, index: int | None = None) -> None:
        self._index = index

    @property
    def type(self) -> str:
        if from_program():
            return "cuda"
        return _CPU.type

    @property
    def index(self) -> int | None:
        if from_program():
            return self._index
        return _CPU.index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cuda) or (other == _CPU and not from_program())

    def __hash__(self) -> int:
        return hash(_CPU)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._index is None:
            return torch.device, ("cuda",)
        return torch.device, ("cuda", self._index)

    def __repr__(self) -> str:
        return f"device({str(self)!r})"

    def __str__(self) -> str:
        if not from_program():
            return str(_CPU)
        if self._index is None:
            return "cuda"
        return f"cuda:{self._index}"

    def __enter__(self) -> Any:
        return _CPU.__enter__()

    def __exit__(self, *exception: Any) -> Any:
        return _CPU.__exit__(*exception)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return _CPU(function)  # type: ignore[operator, no-any-return]


def mapped(device: Any) -> Any:
    """What names a device, with the CPU for CUDA: a string, an index, a device or None."""
    if isinstance(device, Cuda):
        return _CPU
    if isinstance(device, str):
        if device.partition(":")[0] == "cuda":
            return "cpu"
        return device
    if isinstance(device, int) and not isinstance(device, bool):
        return _CPU
    return device


def cpu_type(kind: Any) -> Any:
    """The name of a tensor type, without `cuda`."""
    if isinstance(kind, str):
        return kind.replace("torch.cuda.", "torch.")
    return kind


def _make(*args: Any, **kwargs: Any) -> Any:
    name, *index = [*args, *kwargs.values()]
    if mapped(name) is name:
        return _Device(*args, **kwargs)
    if not from_program():
        return _CPU
    if isinstance(name, int):
        return Cuda(name)
    number = str(name).partition(":")[2]
    if number:
        index.append(int(number))
    return Cuda(*index)


def _stand_in(real: type, make: Callable[..., Any]) -> type:
    """A class in the place of one in C: it looks like `real`, and its calls return what `make` returns, a `real`."""

    class Meta(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return make(*args, **kwargs)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, real) or (real is _Device and isinstance(instance, Cuda))

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
