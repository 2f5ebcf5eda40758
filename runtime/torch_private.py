"""What is read of torch that has no public name; what is changed is in ``patches`` and ``writeback``.

Forward, backward and the parameters that a unit shows are in ``torch_forward``, ``torch_backward`` and ``torch_shown``.
Run with torch 2.8 to 2.15 (``TRIED``): what a release does not have is coped with in these modules, and nowhere else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import nn
from torch._compile import _disable_dynamo
from torch._guards import TracingContext
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.utils import _apply_to_tensors

from .forms import unit_of

Function = TypeVar("Function", bound=Callable[..., Any])

TRIED = ("2.8", "2.11", "2.13", "2.14", "2.15")
"""The releases of torch that ``make torches`` and ``make test`` run."""

apply_to_tensors = _apply_to_tensors
"""By which FSDP1 looks into tuples, lists, dictionaries and dataclasses."""


def warn_of_newer_torch(version: str) -> None:
    """Warns where ``version`` is newer than every release that was tried."""
    if _release(version) > _release(TRIED[-1]):
        text = f"tested with torch {', '.join(TRIED)}, not with {version}"
        warnings.warn(
            f"fsdp-migrate's runtime was {text}. Run `fsdp-migrate verify` to check that the program trains the same",
            stacklevel=3,
        )


def _release(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def units_of(module: nn.Module) -> list[Any]:
    """The units in the tree of ``module``, itself included; each is an nn.Module and an FSDPModule."""
    return [m for m in unit_of(module).modules() if isinstance(m, FSDPModule)]


def parameter_groups(unit: FSDPModule) -> list[Any]:
    """What FSDP2 gathers and reduces together; a unit without parameters has none."""
    state = unit._get_fsdp_state()
    if hasattr(state, "_fsdp_param_groups"):  # torch >= 2.12
        return list(state._fsdp_param_groups)
    group = getattr(state, "_fsdp_param_group", None)
    if group is None:
        return []
    return [group]


def parallel_parameters(unit: FSDPModule) -> Iterator[tuple[Any, Any, Any]]:
    """Of parameters that were DTensors before, by tensor parallelism: the meshes of both together, of FSDP, and theirs."""
    for group in parameter_groups(unit):
        for parameter in group.fsdp_params:
            spec = getattr(parameter, "_unsharded_dtensor_spec", None)  # torch >= 2.12
            spec = spec or getattr(parameter, "_tp_spec", None)
            if spec is not None and not getattr(group.mesh_info, "is_spmd_mesh", False):
                yield parameter.sharded_param.device_mesh, group.mesh_info.mesh, spec.mesh


@contextlib.contextmanager
def named_dimensions(mesh: DeviceMesh, names: tuple[str, ...]) -> Iterator[None]:
    """Gives the dimensions of a mesh that has no names these meanwhile, as ``fully_shard`` wants names of two.

    Meshes are equal only if their names are: the program's own must not keep them.
    """
    if mesh.mesh_dim_names is not None or mesh.ndim == 1:
        yield
        return
    own: Any = vars(mesh)
    attribute = "mesh_dim_names"
    if "_mesh_dim_names" in own:
        attribute = "_mesh_dim_names"
    own[attribute], own["_hash"] = names, None
    try:
        yield
    finally:
        own[attribute], own["_hash"] = None, None


def is_alone(unit: Any) -> bool:
    """Whether ``unit`` was sharded by itself, not in a list of modules that FSDP2 gathers together."""
    return len(unit._get_fsdp_state()._modules) == 1


def precision_policy(unit: Any) -> Any:
    """The MixedPrecisionPolicy of a unit."""
    return unit._get_fsdp_state()._mp_policy


def prefetches_in_forward(unit: Any) -> bool:
    """Whether the program set what ``unit`` gathers ahead in forward."""
    return bool(unit._get_fsdp_state()._states_to_forward_prefetch)


def follow_requires_grad(groups: list[Any]) -> None:
    """Gives parameters that are gathered already the ``requires_grad`` of the sharded ones, as a gather would.

    ``FSDPParam.to_unsharded`` sets it, which is not called again for them.
    """
    for parameter in (each for group in groups if group.is_unsharded for each in group.fsdp_params):
        parameter._unsharded_param.requires_grad_(parameter.sharded_param.requires_grad)


def is_gathered(groups: list[Any]) -> bool:
    """Whether a unit has its whole parameters in memory."""
    return any(group.is_unsharded for group in groups)


def holds_whole(groups: list[Any]) -> bool:
    """Whether this rank's shards are the whole parameters, as under NO_SHARD."""
    return all(group.mesh_info.shard_mesh_size == 1 for group in groups)


def is_root(unit: FSDPModule) -> bool | None:
    """Whether ``unit`` is the outermost one; None until a forward has decided that."""
    return unit._get_fsdp_state()._is_root


def set_root(unit: FSDPModule, value: bool | None) -> None:
    """Changes what :func:`is_root` says. With False a unit that was used alone may be part of another root."""
    state: Any = unit._get_fsdp_state()
    if state._is_root and not value and getattr(state, "_auto_reshard_after_forward", False):
        for group in parameter_groups(unit):  # a root keeps its parameters after forward
            group.post_forward_mesh_info = group.mesh_info
    state._is_root = value


def initialize(unit: Any) -> None:
    """Makes ``unit`` a root, and what is below it part of that, unless that is decided already.

    What was below another root may be wrapped again, as under FSDP1; a root may not be inside another.
    """
    if is_root(unit) is None:
        for below in units_of(unit):
            if is_root(below) is False:
                set_root(below, None)
    unit._get_fsdp_state()._lazy_init()


def is_running(unit: FSDPModule) -> bool:
    """Whether ``unit`` is in its forward or backward."""
    return unit._get_fsdp_state()._training_state.name != "IDLE"


def is_recomputed(unit: FSDPModule) -> bool:
    """Whether the forward of ``unit`` runs in its backward once more, as activation checkpointing has it.

    Once its parameters are freed and its gradients reduced that backward is over, though torch's state of the unit stays.
    """
    if unit._get_fsdp_state()._training_state.name != "PRE_BACKWARD":
        return False
    groups = parameter_groups(unit)
    return not groups or any(g._training_state.name != "POST_BACKWARD" for g in groups)


def keeps_unsharded_after_forward(unit: FSDPModule) -> bool:
    """Whether ``unit`` was sharded with ``reshard_after_forward=False``; a root that was told nothing, if all below it were."""
    if getattr(unit._get_fsdp_state(), "_auto_reshard_after_forward", True):
        inner = units_of(unit)[1:]  # type: ignore[arg-type]
        return bool(inner) and all(map(keeps_unsharded_after_forward, inner))
    groups = parameter_groups(unit)
    return bool(groups) and all(group.post_forward_mesh_info is None for group in groups)


def syncs_gradients(unit: FSDPModule) -> bool:
    """Whether the next backward reduces the gradients of ``unit``."""
    return all(group.reduce_grads for group in parameter_groups(unit))


def set_cast_forward_inputs(unit: FSDPModule, cast: bool) -> None:
    """Changes ``MixedPrecisionPolicy.cast_forward_inputs`` of a unit that is sharded already."""
    state: Any = unit._get_fsdp_state()
    state._mp_policy = dataclasses.replace(state._mp_policy, cast_forward_inputs=cast)


def is_compiling() -> bool:
    """Whether ``torch.compile`` is looking at the program just now (``torch/_guards.py``)."""
    return TracingContext.try_get() is not None


run_eagerly = _disable_dynamo
"""Keeps ``torch.compile`` out of a function and of what it calls. ``torch.compiler.disable`` would import the compiler now."""


def run_outside_of_graphs(function: Function) -> Function:
    """Keeps ``torch.compile`` out of a function, but not out of what it calls.

    Unlike a disabled one it looks like any other, without which ``torch.compile(model)`` breaks a graph at ``model.forward``.
    """
    private = torch._C._dynamo.eval_frame
    skip = private._FrameExecStrategy(private._FrameAction.SKIP, private._FrameAction.DEFAULT)
    private.set_code_exec_strategy(function.__code__, skip)
    return function


def group_of_shards(tensor: Any) -> Any:
    """The ranks that hold the parts of a ShardedTensor."""
    return tensor._process_group


def torch_asks_for_state() -> bool:
    """Whether the caller is a function of ``torch.distributed.checkpoint.state_dict``.

    They want DTensors and names without wrappers, and have no way to say so: for FSDP1 they set
    its state dict type for the time being, and know its prefix.
    """
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.distributed.checkpoint.state_dict":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
