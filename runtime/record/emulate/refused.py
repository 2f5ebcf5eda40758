"""What cannot be emulated, said where it is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from .. import imports
from ..patch import around


class NotEmulated(RuntimeError):
    """A construct that needs a CUDA device."""

    def __init__(self, construct: str, why: str) -> None:
        super().__init__(f"{construct} cannot be emulated on the CPU: {why}")


def install() -> None:
    """Replace each such construct by one that raises `NotEmulated`."""
    cuda: Any = torch.cuda
    why = "it records kernels of a device"
    for name in ("CUDAGraph", "graph"):  # classes, from which programs derive
        refuse = _refused(f"torch.cuda.{name}", why)
        setattr(cuda, name, type(name, (), {"__init__": refuse, "__module__": "torch.cuda"}))
    cuda.make_graphed_callables = _refused("torch.cuda.make_graphed_callables", why)
    if dist.is_available():
        nccl: Any = type("ProcessGroupNCCL", (), {})
        nccl.Options = _refused("ProcessGroupNCCL.Options", "gloo has no such options")
        vars(dist)["ProcessGroupNCCL"] = nccl
    imports.after("torch.utils.cpp_extension", _extensions)


def _refused(construct: str, why: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotEmulated(construct, why)

    return refuse


def _extensions(module: Any) -> None:
    """Kernels that the program compiles; an extension in C++ alone works on the CPU, too."""
    why = "its kernels are CUDA's own"
    module.CUDAExtension = _refused("torch.utils.cpp_extension.CUDAExtension", why)

    def load(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        construct = original.__name__
        sources = kwargs.get("sources", args[1] if len(args) > 1 else ())
        sources = [sources] if isinstance(sources, str) else list(sources)
        kernels = construct == "load" and any(str(s).endswith((".cu", ".cuh")) for s in sources)
        if kernels or kwargs.get("cuda_sources") or kwargs.get("with_cuda"):
            raise NotEmulated(f"torch.utils.cpp_extension.{construct}", why)
        return original(*args, **kwargs)

    around(module, "load load_inline", load)
