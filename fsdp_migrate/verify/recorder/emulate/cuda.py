"""`torch.cuda`: what it says of devices, memory and streams."""

import time
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from .device import from_program, nothing

NAME = "CUDA emulated on the CPU"
_CAPABILITY = (8, 0)  # the first with bfloat16
_MEMORY = 80 << 30

_NOTHING = ("init", "synchronize", "ipc_collect", "set_sync_debug_mode", "set_stream")
_NOTHING_IN_MEMORY = (
    "empty_cache", "reset_peak_memory_stats", "reset_accumulated_memory_stats",
    "reset_max_memory_allocated", "reset_max_memory_cached", "set_per_process_memory_fraction",
    "_record_memory_history", "_dump_snapshot",
)  # fmt: skip
_TYPES = ("Float", "Double", "Half", "BFloat16", "Byte", "Char", "Short", "Int", "Long", "Bool")


def install(devices: int) -> None:
    """Replace what needs a device, or describes one."""
    cuda: Any = torch.cuda
    for name in _NOTHING:
        setattr(cuda, name, nothing)
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        setattr(cuda.nvtx, name, _zero)
    cuda.profiler.start = cuda.profiler.stop = nothing
    _device_functions(cuda, devices)
    _memory_functions(cuda)
    # Classes of their own: programs ask by them what they have.
    cuda.Stream = cuda.ExternalStream = type("Stream", (_Done,), {})
    cuda.Event = type("Event", (_Done,), {})
    cuda.StreamContext = cuda.stream = cuda.nvtx.range = _Done
    cuda.current_stream = cuda.default_stream = lambda device=None: _DEFAULT
    for name in _TYPES:
        setattr(cuda, f"{name}Tensor", getattr(torch, f"{name}Tensor"))
    cuda.cudart = _Cudart
    cuda.nccl.version = lambda: (2, 27, 3)
    # Programs compare it before they use bfloat16; torch's own code asks the build instead.
    version: Any = torch.version
    version.cuda = version.cuda or "12.8"


def _device_functions(cuda: Any, devices: int) -> None:
    current = 0

    def set_device(device: Any) -> None:
        nonlocal current
        current = _index(device, current)

    def for_program(answer: Any) -> Callable[..., Any]:
        # torch chooses by it what to run, and must not choose CUDA.
        def ask(*args: Any, **kwargs: Any) -> Any:
            if from_program():
                return answer
            return type(answer)()

        return ask

    class Device(_Done):
        """`with torch.cuda.device(index)`."""

        def __init__(self, device: Any) -> None:
            self.device = device
            self.before = current

        def __enter__(self) -> None:
            self.before = current
            set_device(self.device)

        def __exit__(self, *exception: Any) -> None:
            set_device(self.before)

    properties = types.SimpleNamespace(
        name=NAME,
        major=_CAPABILITY[0],
        minor=_CAPABILITY[1],
        total_memory=_MEMORY,
        multi_processor_count=108,
        warp_size=32,
        gcnArchName="",
    )
    cuda.is_available = for_program(True)
    cuda.is_initialized = for_program(True)
    cuda.device_count = for_program(devices)
    cuda.current_device = lambda: current
    cuda.set_device = set_device
    cuda.device = cuda.device_of = Device
    cuda.get_device_name = lambda device=None: NAME
    cuda.get_device_capability = lambda device=None: _CAPABILITY
    cuda.get_device_properties = lambda device=None: properties
    cuda.is_bf16_supported = lambda including_emulation=True: True
    cuda.get_arch_list = lambda: ["sm_80"]
    cuda.can_device_access_peer = lambda device, peer: True
    cuda.utilization = _zero


def _memory_functions(cuda: Any) -> None:
    """The allocator's functions: nothing is ever held on a device."""
    for owner in (cuda, cuda.memory):
        for kind in ("allocated", "reserved", "cached"):
            setattr(owner, f"memory_{kind}", _zero)
            setattr(owner, f"max_memory_{kind}", _zero)
        for name in _NOTHING_IN_MEMORY:
            setattr(owner, name, nothing)
        owner.mem_get_info = lambda device=None: (_MEMORY, _MEMORY)
        owner.memory_stats = lambda device=None: _Zeros()
        owner.memory_summary = lambda device=None, abbreviated=False: ""
        owner.memory_snapshot = lambda mempool_id=None: []


def _index(device: Any, default: int) -> int:
    if not isinstance(device, int):
        device = str(device).partition(":")[2]
    if device != "":
        return int(device)
    return default


def _zero(*args: Any, **kwargs: Any) -> int:
    return 0


class _Zeros(OrderedDict[str, int]):
    def __missing__(self, key: str) -> int:
        return 0


class _Cudart:
    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *args, **kwargs: 0


class _Done:
    """A stream, an event or a context whose work is done at once; events take the time of the CPU."""

    device_index = cuda_stream = priority = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._time = 0.0

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: Any) -> None: ...

    def query(self) -> bool:
        return True

    def record(self, stream: Any = None) -> None:
        self._time = time.perf_counter()

    def record_event(self, event: Any = None) -> Any:
        event = event or vars(torch.cuda)["Event"]()
        event.record()
        return event

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds, as CUDA's."""
        return float(end_event._time - self._time) * 1000

    wait = wait_stream = wait_event = synchronize = nothing


_DEFAULT = _Done()
