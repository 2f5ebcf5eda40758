"""What FSDP1 needs to run on the CPU, where it refuses, or gets wrong, a few things.

The patches touch nothing that FSDP2 uses, except pinned memory. Each does nothing in a release of torch that no
longer has what it replaces.
"""

import contextlib
import inspect
import os
from collections.abc import Callable
from typing import Any

from . import imports
from .patch import around
from .settings import SETTINGS


def install() -> None:
    """Arrange for every patch to be made when its module is imported."""
    imports.after("torch", _streams)
    imports.after("torch", _pinned_memory)
    imports.after("torch", _device_count)
    imports.after("torch.distributed.fsdp._init_utils", _device_without_device_id)
    imports.after("torch.distributed.fsdp._init_utils", _sync_of_cpu_states)
    imports.after("torch.distributed.fsdp._flat_param", _offload_to_the_same_device)
    imports.after("torch.distributed.fsdp._flat_param", _offloaded_gradients)
    imports.after("torch.distributed.fsdp._optim_utils", _aliased_optimizer_states)


def _streams(torch: Any) -> None:
    # With CPUOffload, FSDP1 waits for the current stream; the CPU's stand-in has no such method.
    stream = getattr(torch.cpu, "Stream", None)
    if stream is not None and not hasattr(stream, "synchronize"):
        stream.synchronize = lambda self: None


def _pinned_memory(torch: Any) -> None:
    # Memory is pinned for copies to an accelerator: without one, torch raises where CPUOffload
    # (FSDP1) and CPUOffloadPolicy (FSDP2) ask for it. Ordinary memory holds the same numbers.
    torch.Tensor.pin_memory = lambda self, *args, **kwargs: self


def _device_count(torch: Any) -> None:
    # HYBRID_SHARD without a mesh shards over the devices of one node. The CPU counts as one device,
    # so that FSDP1 would shard over nothing and, with that, not synchronise gradients at all: every
    # local rank counts as a device.
    count = int(os.environ.get("LOCAL_WORLD_SIZE") or SETTINGS.get("emulate") or 0)
    if count:
        torch.cpu.device_count = lambda: count


def _device_without_device_id(module: Any) -> None:
    # FSDP(model) without device_id takes the current accelerator and raises where there is none.
    def init_device_handle(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(original).bind(*args, **kwargs)
        if bound.arguments.get("device_id") is None:
            import torch

            bound.arguments["device_id"] = torch.device("cpu")
        return original(*bound.args, **bound.kwargs)

    around(module, "_init_device_handle", init_device_handle)


def _sync_of_cpu_states(module: Any) -> None:
    # sync_module_states=True refuses modules on the CPU because NCCL could not broadcast them; gloo
    # can.
    around(module, "_check_module_states_for_sync_module_states", lambda original, states: None)


def _offload_to_the_same_device(module: Any) -> None:
    # offload_to_cpu copies the full parameter to the CPU, then frees the original: here both are
    # the same memory.
    handle = getattr(module, "FlatParamHandle", None)
    around(handle, "to_cpu", lambda original, self: contextlib.nullcontext())


def _offloaded_gradients(module: Any) -> None:
    # With CPUOffload a gradient left on the CPU is the last step's, and FSDP1 drops it. FSDP1 knows it
    # by its device: where all is on the CPU, it takes it for one to add to, and with
    # use_orig_params=True every gradient from the second step on would be a running sum.
    def prepare(original: Callable[..., Any], self: Any) -> Any:
        result = original(self)
        if getattr(self, "_offload_params", False):
            vars(self.flat_param).pop("_saved_grad_shard", None)
        return result

    handle = getattr(module, "FlatParamHandle", None)
    around(handle, "prepare_gradient_for_backward", prepare)


def _aliased_optimizer_states(module: Any) -> None:
    # optim_state_dict gathers all states of a parameter in one buffer and moves each out with
    # `.cpu()`, which copies nothing here: exp_avg would be exp_avg_sq. Without offloading it
    # clones.
    def allgather(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(original).bind(*args, **kwargs)
        if "cpu_offload" in bound.arguments:
            bound.arguments["cpu_offload"] = False
        return original(*bound.args, **bound.kwargs)

    around(module, "_allgather_orig_param_states", allgather)
