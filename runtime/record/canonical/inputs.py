"""The gradient of a tensor that several units read: every use is added to it by itself, as in FSDP1.

FSDP2 passes the inputs of each unit through an autograd node (``RegisterPostBackwardFunction``, in
``torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py``), which first adds up the unit's own uses: in bfloat16
that shows in the third digit. Here the node is put on the unit's first input alone, which no other unit reads. It
still runs after the unit's backward: autograd takes later nodes first. An input that needs no gradient, as under frozen
layers, has no node, and FSDP2 finishes the unit at the end: the next input can be what all units read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree

from .. import imports
from ..patch import around


def install() -> None:
    """Arrange for FSDP2's registration to be replaced when its module is imported."""
    imports.after("torch.distributed.fsdp._fully_shard._fsdp_param_group", _replace)


def _replace(module: Any) -> None:
    around(module.FSDPParamGroup, "_register_post_backward_hook", _register)


def _register(original: Callable[..., Any], self: Any, args: Any, kwargs: Any) -> Any:
    leaves, form = _pytree.tree_flatten((args, kwargs))
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            (leaves[index],), _ = original(self, (leaf,), {})
            break
    return _pytree.tree_unflatten(leaves, form)
