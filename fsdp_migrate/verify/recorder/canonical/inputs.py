"""The gradient of a tensor that several units read: every use is added to it by itself, as in FSDP1.

FSDP2 passes the inputs of each unit through an autograd node (``RegisterPostBackwardFunction``, in
``torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py``), which first adds up the unit's own uses: in bfloat16
that shows in the third digit. Here no unit has a node. FSDP2 then reduces its gradients when the whole backward is
over, as it does for a unit whose inputs need no gradient (``_root_post_backward_final_callback`` in
``_fsdp_state.py``): the same numbers, but each rank holds all parameters and gradients until then.
"""

from collections.abc import Callable
from typing import Any

from .. import imports
from ..patch import around


def install() -> None:
    """Arrange for FSDP2's registration to be replaced when its module is imported."""
    imports.after("torch.distributed.fsdp._fully_shard._fsdp_param_group", _replace)


def _replace(module: Any) -> None:
    around(module.FSDPParamGroup, "_register_post_backward_hook", _without_node)


def _without_node(original: Callable[..., Any], self: Any, args: Any, kwargs: Any) -> Any:
    return args, kwargs
