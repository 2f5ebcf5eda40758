"""Reductions over a process group: an exchange, then one sum on each rank that needs it.

They are replaced in `ProcessGroup`, below every spelling of `torch.distributed` by which FSDP1 and FSDP2 reduce. What
DTensor reduces past it are norms in fp64, where the order shows in the sixteenth digit.

An average is the sum, rounded, and then divided by the number of ranks. FSDP1 divides by two factors instead, before
and after the sum; the first is a power of two, so dividing by it loses nothing: they are the same bits at any number
of ranks. (With HYBRID_SHARD only where the number of shards is a power of two: FSDP2 averages twice.)
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ..patch import around


def install() -> None:
    """Replace the reductions of `ProcessGroup`."""
    if not dist.is_available():
        return
    group = dist.ProcessGroup
    around(group, "allreduce allreduce_coalesced", _all_reduce)
    around(group, "_reduce_scatter_base reduce_scatter_single", _reduce_scatter_whole)
    coalesced = "reduce_scatter_tensor_coalesced reduce_scatter_single_coalesced"
    around(group, coalesced, _reduce_scatter_wholes)


Method = Callable[..., Any]


def _all_reduce(
    original: Method, group: Any, tensors: Any, options: Any = dist.ReduceOp.SUM, *rest: Any
) -> Any:
    operation = _operation(options)
    if isinstance(tensors, torch.Tensor):
        listed = [tensors]
    else:
        listed = list(tensors)
    if not _adds(operation, listed):
        return original(group, tensors, options, *rest)
    for tensor in listed:
        tensor.copy_(_sum(_gather(group, tensor), operation).view_as(tensor))
    return _done(listed)


def _reduce_scatter_whole(
    original: Method, group: Any, output: Any, whole: Any, *options: Any
) -> Any:
    def coalesced(group: Any, outputs: Any, wholes: Any, *options: Any) -> Any:
        return original(group, outputs[0], wholes[0], *options)

    return _reduce_scatter_wholes(coalesced, group, [output], [whole], *options)


def _reduce_scatter_wholes(
    original: Method, group: Any, outputs: Any, wholes: Any, *options: Any
) -> Any:
    operation = _operation(*options)
    if not _adds(operation, outputs):
        return original(group, outputs, wholes, *options)
    for output, whole in zip(outputs, wholes, strict=True):
        output.copy_(_sum(_exchange(group, whole), operation).view_as(output))
    return _done(list(outputs))


def _operation(options: Any = dist.ReduceOp.SUM, *_: Any) -> Any:
    return getattr(options, "reduceOp", options)


def _adds(operation: Any, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether this is a sum of rounded numbers: other results do not depend on the order."""
    # `in` would compare the other way round, and then two equal operations are not.
    adds = operation == dist.ReduceOp.SUM or operation == dist.ReduceOp.AVG
    adds = adds or _factor(operation) is not None
    return adds and all(tensor.is_floating_point() for tensor in tensors)


def _factor(operation: Any) -> Any:
    """What `PREMUL_SUM` multiplies with, which gloo refuses otherwise."""
    if operation != dist.ReduceOp.PREMUL_SUM or not hasattr(operation, "__getstate__"):
        return None
    state = operation.__getstate__()
    if isinstance(state, tuple) and len(state) > 1:
        return state[1]
    return None


def _gather(group: Any, tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensor of every rank, flat, in the order of the ranks."""
    mine = tensor.detach().contiguous().view(-1)
    parts = [torch.empty_like(mine) for _ in range(group.size())]
    group.allgather([parts], [mine]).wait()
    return parts


def _exchange(group: Any, whole: torch.Tensor) -> list[torch.Tensor]:
    """This rank's part of every rank's tensor, in the order of the ranks."""
    mine = whole.detach().contiguous().view(-1)
    received = torch.empty_like(mine)
    group.alltoall_base(received, mine, [], []).wait()
    return list(received.view(group.size(), -1))


def _sum(parts: Sequence[torch.Tensor], operation: Any) -> torch.Tensor:
    total = torch.zeros_like(parts[0], dtype=torch.float64)
    factor = _factor(operation)
    for part in parts:
        if factor is not None:
            part = part * factor
        total += part
    result = total.to(parts[0].dtype)
    if operation == dist.ReduceOp.AVG:
        return result.div_(len(parts))
    return result


def _done(results: Any) -> Any:
    """The finished work of a reduction."""
    from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]

    future: Any = torch.futures.Future()
    future.set_result(results)
    return _create_work_from_future(future)
