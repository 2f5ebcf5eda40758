"""What no FSDP2 program can have, and is refused with an error that names the rule."""

from typing import Any

import torch.distributed as dist

from ..registry import cannot
from .common import batches, in_blocks, net

FLAT = "FSDP2 has neither flat parameters nor handles"
PRIVATE = "FSDP366"


@cannot("FSDP2 has other hooks for the reduction of gradients", "FSDP361")
def communication_hooks(api: Any) -> Any:
    """`register_comm_hook` replaces the reduction of gradients."""
    model = in_blocks(api, use_orig_params=False)
    calls: list[int] = []

    def hook(state: Any, gradient: Any, output: Any) -> None:
        calls.append(1)
        dist.reduce_scatter_tensor(output, gradient)

    model.register_comm_hook(None, hook)
    model(*batches(1)).sum().backward()
    assert calls
    return len(calls)


@cannot(FLAT, PRIVATE)
def handles(api: Any) -> Any:
    """`_handle` of a unit is the handle of its flat parameter."""
    return type(in_blocks(api)._handle).__name__


@cannot(FLAT, PRIVATE)
def all_handles(api: Any) -> Any:
    """`_all_handles` of the root lists them."""
    model = in_blocks(api)
    model(*batches(1))
    return len(model._all_handles)


@cannot(FLAT, PRIVATE)
def the_flat_parameter(api: Any) -> Any:
    """`_flat_param` of a unit is its flat parameter."""
    return in_blocks(api, use_orig_params=False)._flat_param.dim()


@cannot(FLAT)
def guards_of_private_parts(api: Any) -> Any:
    """`hasattr` is true of a handle, and false of what a unit has not."""
    model = in_blocks(api)
    return hasattr(model, "_handle"), hasattr(net(), "_handle")
