"""What is read of torch that has no public name; what is changed is in ``patches`` and ``writeback``.

Run with torch 2.8 to 2.15 (``TRIED``): what a release does not have is coped with here, and nowhere else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn
from torch._compile import _disable_dynamo
from torch._guards import TracingContext
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.utils import _apply_to_tensors
from torch.utils._pytree import tree_leaves

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


def resharded(module: nn.Module) -> nn.Module:
    """``module`` with the parameters that have gradients and states: in FSDP2 an evaluation leaves whole ones in place."""
    for unit in units_of(module):
        # Where they are shown, as under FSDP1, what is gathered stays, and the next forward takes it as it is.
        if not all(map(_shows_sharded, parameter_groups(unit))):
            FSDPModule.reshard(unit)
    return module


def _shows_sharded(group: Any) -> bool:
    infos = ((p.sharded_param, p._module_info) for p in group.fsdp_params)
    return all(info.module._parameters.get(info.param_name) is shown for shown, info in infos)


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


# A unit that is sharded itself, rather than the module inside it #


class _Plain(nn.Module):
    """The class of a unit while ``fully_shard`` runs, which derives one from it and FSDPModule: it must not be one yet."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def shard(unit: nn.Module, **options: Any) -> None:
    """``fully_shard`` of ``unit``, an FSDPModule by its class, which it keeps.

    Its forward calls :func:`pre_forward` and :func:`post_forward` itself, as FSDP1's does, so that
    ``unit.forward(x)`` gathers and hooks run outside of that.
    """
    cls = type(unit)
    unit.__class__ = _Plain
    try:
        fully_shard(unit, **options)
    finally:
        unit.__class__ = cls
    remove_hooks(unit)


def remove_hooks(unit: Any) -> None:
    """Takes FSDP2's forward hooks off ``unit``, whose forward calls :func:`pre_forward` and :func:`post_forward`."""
    state = unit._get_fsdp_state()
    state._pre_forward_hook_handle.remove()
    state._post_forward_hook_handle.remove()


def is_alone(unit: Any) -> bool:
    """Whether ``unit`` was sharded by itself, not in a list of modules that FSDP2 gathers together."""
    return len(unit._get_fsdp_state()._modules) == 1


def precision_policy(unit: Any) -> Any:
    """The MixedPrecisionPolicy of a unit."""
    return unit._get_fsdp_state()._mp_policy


def prefetches_in_forward(unit: Any) -> bool:
    """Whether the program set what ``unit`` gathers ahead in forward."""
    return bool(unit._get_fsdp_state()._states_to_forward_prefetch)


def pre_forward(unit: Any, groups: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Gathers the parameters of ``unit``; the inputs, moved and cast."""
    for group in groups:
        _show_unsharded(group)
    given = _leaves(args, kwargs)
    state = unit._get_fsdp_state()
    if state._training_state.name == "PRE_BACKWARD" and not is_recomputed(unit):
        # In a reentrant checkpoint it may still be that of an earlier use, and torch would not reduce this one's gradients.
        state._training_state = type(state._training_state).IDLE
    gather = _undecorated(state._pre_forward)
    args, kwargs = gather(unit, args, kwargs)
    for before, after in zip(given, _leaves(args, kwargs), strict=True):
        if after is not before and _may_change(before) and not _may_change(after):
            # A view by FSDP2's autograd node: torch refuses to change it in place, as it would FSDP1's input.
            torch._C._autograd._set_creation_meta(after, torch._C._autograd.CreationMeta.DEFAULT)
    return args, kwargs


def _leaves(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterable[Any]:
    values = (*args, *kwargs.values())
    only_tensors = all(isinstance(each, torch.Tensor) for each in values)  # as most units are given
    if only_tensors:
        return values
    return tree_leaves(values)


def copies_inputs(unit: Any) -> bool:
    """Whether the inputs of ``unit`` were moved or cast."""
    policy = precision_policy(unit)
    return bool(is_root(unit) or (policy.cast_forward_inputs and policy.param_dtype))


def in_place_of(given: Any, made: Any) -> Any:
    """Inputs as FSDP2 made them, in the lists and dictionaries that were given: a unit may add to these."""
    if isinstance(given, list | dict) and made is not given:
        for key in given if isinstance(given, dict) else range(len(given)):
            given[key] = in_place_of(given[key], made[key])
        return given
    if type(given) is tuple:
        return tuple(map(in_place_of, given, made))
    return made


def _may_change(tensor: object) -> bool:
    """Whether autograd lets a module change its input in place; only some views may not be."""
    if not isinstance(tensor, torch.Tensor) or not tensor._is_view():
        return True
    meta: Any = torch._C._autograd
    return bool(meta._get_creation_meta(tensor) == meta.CreationMeta.DEFAULT)


def is_gathered(groups: list[Any]) -> bool:
    """Whether a unit has its whole parameters in memory."""
    return any(group.is_unsharded for group in groups)


def holds_whole(groups: list[Any]) -> bool:
    """Whether this rank's shards are the whole parameters, as under NO_SHARD."""
    return all(group.mesh_info.shard_mesh_size == 1 for group in groups)


def is_outermost_forward(unit: Any) -> bool:
    """Whether the forward that ``unit`` is in began with it."""
    state = unit._get_fsdp_state()
    return state._state_ctx.iter_forward_root is state


def post_forward(unit: Any, output: Any, show: Callable[[Any], None] | None) -> Any:
    """Frees the parameters of ``unit`` if its strategy says so; the output, ready for backward.

    When the outermost unit is done, ``show`` is called for each unit below, which decides what its modules show.
    """
    state = unit._get_fsdp_state()
    recomputed = is_recomputed(unit)
    output = _undecorated(state._post_forward)(unit, None, output)
    if recomputed:
        return output
    _hook_dataclasses(state, output)
    if show is not None and state._state_ctx.iter_forward_root is None:
        # A unit begins a forward also in a checkpoint that is computed again: the others stay as they are then.
        every = (each._modules[0] for each in state._state_ctx.all_states)
        for below in every if state._is_root else units_of(unit):
            show(below)
    return output


def _undecorated(method: Any) -> Any:
    """A method of FSDP2 without its decorator, which keeps ``torch.compile`` out of each call anew, as is done already."""
    function = getattr(method, "__wrapped__", None)
    if function is None:
        return method
    return partial(function, method.__self__)


def _hook_dataclasses(state: Any, output: Any) -> None:
    """Prepares the backward of tensors in dataclasses, as FSDP1 does and FSDP2 only where it has ``collect_grad_tensors``.

    A unit whose outputs are all in dataclasses would get no gradients, without an error.
    """
    has_them = hasattr(sys.modules[type(state).__module__], "collect_grad_tensors")
    if has_them or not torch.is_grad_enabled():
        return

    def hook(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.requires_grad:
            tensor.register_hook(state._pre_backward)  # type: ignore[no-untyped-call]
        return tensor

    for leaf in tree_leaves(output):
        if dataclasses.is_dataclass(leaf):
            apply_to_tensors(hook, leaf)


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


# Which parameters a unit's modules show #


def show_sharded(group: Any, whole_attributes: bool = False) -> None:
    """Registers the sharded parameters of a unit that stays gathered after forward.

    FSDP2 leaves the gathered ones registered, which an optimizer, ``zero_grad()`` or a moving average
    would take for the model's. What is gathered is kept for backward or the next forward, as in FSDP1,
    which does not see changes in between either (``_runtime_utils.py``, ``_post_forward_reshard``).

    With ``whole_attributes`` a parameter that is asked for by its name, ``model.head.weight``, is the gathered one until a
    backward, a forward or a reshard, as in FSDP1 (``_flat_param.py``, ``_use_sharded_flat_param``): gradients reach it.
    """
    if not group.is_unsharded:
        return
    _hide_attributes(group)
    for parameter in group.fsdp_params:
        parameter._setattr_on_modules(parameter.sharded_param)
    if whole_attributes:
        # A loss that reads them has gradients before the unit's backward begins.
        keep = vars(group).get("_set_unsharded_grad_dtypes")
        if keep is not None:
            keep(defer_upcast=False)
        for parameter in group.fsdp_params:
            for module, name in _places(parameter):
                vars(module)[name] = parameter._unsharded_param
        group._memory_shown = _memory(group)
        group._to_sharded = partial(_to_sharded, group)


def shows_gathered(group: Any) -> bool:
    """Whether the parameters that are asked for by their names are the gathered ones."""
    return "_to_sharded" in vars(group)


def shows_other_data(group: Any) -> bool:
    """Whether ``p.data = x`` gave other memory to one of those parameters."""
    return shows_gathered(group) and group._memory_shown != _memory(group)


def _memory(group: Any) -> list[int]:
    gathered = (parameter._unsharded_param for parameter in group.fsdp_params)
    return [getattr(each, "_local_tensor", each).data_ptr() for each in gathered]


def _show_unsharded(group: Any) -> None:
    """Takes :func:`show_sharded` back."""
    if group.is_unsharded:
        _hide_attributes(group)
        for parameter in group.fsdp_params:
            parameter._setattr_on_modules(parameter.unsharded_param)


def _to_sharded(group: Any) -> None:
    """``group._to_sharded()``, after which nothing is gathered any more."""
    _hide_attributes(group)
    group._to_sharded()


def _hide_attributes(group: Any) -> None:
    """Takes the gathered parameters out of the attributes of modules, where they stand before the registered ones."""
    if vars(group).pop("_to_sharded", None) is None:
        return
    for parameter in group.fsdp_params:
        for module, name in _places(parameter):
            if vars(module).get(name) is parameter._unsharded_param:
                del vars(module)[name]


def _places(parameter: Any) -> list[tuple[nn.Module, str]]:
    """The modules that have a parameter, with its name there."""
    info = parameter._module_info
    shared = zip(info.shared_modules, info.shared_param_names, strict=True)
    return [(info.module, info.param_name), *shared]


# Backward #


def around_backward(
    unit: FSDPModule, before: Callable[[Any], None], after: Callable[..., None]
) -> None:
    """Calls ``before(group)`` when the backward of the unit starts, and ``after(group, reduce)`` in place of ``reduce()``.

    That frees its parameters and reduces its gradients. The modules show what is gathered, as activation checkpointing runs
    their forward again. Unreduced gradients add up in the type that they are computed in: FSDP2 casts to ``reduce_dtype``.
    """

    def pre_backward(group: Any, own: Callable[..., None], *args: Any) -> None:
        before(group)
        _show_unsharded(group)
        own(*args)

    for group in parameter_groups(unit):
        for parameter in group.fsdp_params:
            parameter.to_accumulated_grad_if_needed = lambda: None
        # torch >= 2.15 has autograd cast them instead, by what this method sets
        group._set_unsharded_grad_dtypes = partial(_keep_gradient_dtypes, group)
        group.pre_backward = partial(pre_backward, group, group.pre_backward)
        group.post_backward = partial(after, group, group.post_backward)


def _keep_gradient_dtypes(group: Any, defer_upcast: bool) -> None:
    for parameter in group.fsdp_params:
        unsharded = _unsharded(parameter)
        if unsharded is not None and unsharded.requires_grad:
            unsharded.grad_dtype = unsharded.dtype


def has_unreduced_gradient(parameter: Any) -> bool:
    """Whether a backward left a gradient that has not been reduced."""
    return getattr(_unsharded(parameter), "grad", None) is not None


def drop_unreduced_gradient(parameter: Any) -> None:
    """Forgets what :func:`has_unreduced_gradient` asks for."""
    if has_unreduced_gradient(parameter):
        _unsharded(parameter).grad = None


def complete_gradients(group: Any) -> list[str]:
    """Gives zeros to the parameters without a gradient, so that every rank reduces the same ones; returns their names.

    torch would add up gradients of different parameters; from 2.13 on it can fill in zeros
    (``set_reduce_scatter_unused_params``).
    """
    completed = []
    for parameter in group.fsdp_params:
        unsharded = _unsharded(parameter)
        if unsharded is not None and unsharded.requires_grad and unsharded.grad is None:
            unsharded.grad = torch.zeros_like(unsharded)
            completed.append(str(getattr(parameter, "_param_fqn", None)))
    return completed


def _unsharded(parameter: Any) -> Any:
    return getattr(parameter, "_unsharded_param", None)


# State dicts #


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
