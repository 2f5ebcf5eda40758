"""The gradient of a tensor that several units read: each unit's own uses are added up first, as under FSDP2.

FSDP2 passes the inputs of each unit through an autograd node (``RegisterPostBackwardFunction``, in
``torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py``), which adds up the unit's uses of a tensor before the others'
are added: in bfloat16 that shows in the third digit. Here the inputs of FSDP1's units pass through a node, too. FSDP2 runs
as it is: its node also decides when a unit's gradients are reduced, and refuses some changes of inputs in place.
"""

from collections.abc import Callable
from typing import Any

import torch

from .. import imports
from ..patch import around

Method = Callable[..., Any]


def install() -> None:
    """Arrange for FSDP1's units to be given views when its module is imported."""
    imports.after("torch.distributed.fsdp.fully_sharded_data_parallel", _replace)


def _replace(module: Any) -> None:
    around(module, "_pre_forward", _with_views)
    around(module, "_post_forward", _with_own_output)


def _with_views(original: Method, *args: Any) -> Any:
    inputs = original(*args)
    if torch.is_grad_enabled():
        return _map(_view, inputs)
    return inputs


def _view(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.requires_grad or tensor.layout != torch.strided:
        return tensor
    # A unit may change a view in place, which an autograd function's output may not be.
    view: Any = tensor.view_as(tensor)
    view._version_as_input = view._version
    return view  # type: ignore[no-any-return]


def _with_own_output(original: Method, *args: Any) -> Any:
    *others, output = args
    return original(*others, _map(_own, output))


def _own(tensor: Any) -> Any:
    """A copy of an input that the unit changed: the next change of the view would take FSDP1's hook out of the graph."""
    if getattr(tensor, "_version_as_input", tensor._version) == tensor._version:
        return tensor
    return tensor.clone()


def _map(function: Callable[[Any], Any], values: Any) -> Any:
    from torch.distributed.utils import _apply_to_tensors

    return _apply_to_tensors(function, values)
