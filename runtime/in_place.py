"""Sharding a model's own modules, without wrappers: FSDP1's units for ``fully_shard``, and FSDP1's behaviour on them."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from weakref import ref

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.weak import TensorWeakRef

from . import torch_private
from .arguments import Arguments, after_sharding, is_unit, ready_to_shard, warn_of_container
from .attributes import given_attributes
from .auto_wrap import plan_checked
from .changed import place, say
from .environment import tell_of_variables
from .in_place_units import adopt
from .materialize import own_modules
from .mesh import MESH_DIM_NAMES
from .notes import QUIRKS, notes_of
from .older_optimizers import replace_parameters
from .patches import install
from .plan import Unit as Planned
from .precision import runs_in_full_precision
from .quirks import Record, follow_writes, start
from .quirks import records as records
from .running import Unit, cast_buffers_of, prefetch_in_order


def units(
    module: nn.Module, *args: Any, **options: Any
) -> Iterator[tuple[nn.Module, dict[str, Any]]]:
    """The modules that FSDP1's constructor would wrap, each with ``fully_shard``'s options for it: innermost first, the
    model last.

    ::

        for module, options in units(model, auto_wrap_policy=policy, sharding_strategy=strategy):
            fully_shard(module, **options)

    With the arguments, the defaults, the errors and the warnings of ``FullyShardedDataParallel(module, ...)``. Before it
    gives a module out it materializes and synchronizes it, in FSDP1's order; after ``fully_shard`` it sets what that
    has no options for. A model that is sharded already, and a ``ModuleList`` or ``ModuleDict`` without a forward, which
    ``fully_shard`` refuses, are left out; what such a list holds belongs to the unit around it.

    Raises RuntimeError if ``fully_shard`` was not called for a module when the next one is asked for.
    """
    arguments = Arguments(module, *args, **options)
    return _each(plan_checked(arguments), arguments)


units.__signature__ = inspect.signature(Arguments)  # type: ignore[attr-defined]


def _each(
    planned: list[Planned], arguments: Arguments
) -> Iterator[tuple[nn.Module, dict[str, Any]]]:
    sharded = []
    for unit in planned:
        module = unit.module
        if is_unit(module):
            continue
        own = arguments.of_unit(unit)
        if _is_container(module):
            warn_of_container(module)
            modules = own_modules(module, own.ignored.modules)
            has_parameters = any([*m.parameters(recurse=False)] for m in modules)
            if unit is not planned[-1] or not has_parameters:
                _say_it_is_no_unit(unit, has_parameters)
                continue  # else fully_shard says why not: no unit is around it
        options = ready_to_shard(module, own)
        if unit is planned[-1] and "mp_policy" in options and own.precision is not None:
            casts = own.precision.cast_forward_inputs or own.precision.cast_root_forward_inputs
            options["mp_policy"] = replace(options["mp_policy"], cast_forward_inputs=casts)
        notes_of(module).arguments = own.attributes()
        with torch_private.named_dimensions(options["mesh"], MESH_DIM_NAMES):
            yield module, options
        if not isinstance(module, FSDPModule):
            raise RuntimeError(
                f"{unit.name or 'the model'} was not sharded: call fully_shard(module, **options) for each module "
                "that units() yields"
            )
        after_sharding(module, own)
        sharded.append(module)
        # Now, so that optimizers of before do not keep the whole model until the end.
        for context in _open:
            context.follow(module)
    model = planned[-1].module
    if model in sharded and not any(context.covers(model) for context in _open):
        _without_like_fsdp1(model, sharded)


def _say_it_is_no_unit(unit: Planned, has_parameters: bool) -> None:
    where = "its parameters belong to the unit that contains it"
    if not has_parameters:
        where = "the modules in it are still sharded by themselves"
    say(
        "FSDP007",
        f"{unit.name or 'the model'} is not sharded by itself, because fully_shard does not accept a "
        f"{type(unit.module).__name__} without a forward: {where}. Code that counts units finds fewer than under FSDP1",
    )


def _is_container(module: nn.Module) -> bool:
    """Whether ``fully_shard`` refuses ``module`` (``_fsdp_init.py``, ``_validate_module``)."""
    own = type(module).forward is not nn.Module.forward
    return isinstance(module, nn.ModuleList | nn.ModuleDict) and not own


def _without_like_fsdp1(model: nn.Module, sharded: list[Any]) -> None:
    """What the first forward does otherwise: dtypes of buffers, and the order of prefetching."""
    given = [(unit, given_attributes(unit) or {}) for unit in sharded]
    for unit, attributes in given:
        cast_buffers_of(unit, attributes)
    if any(attributes["forward_prefetch"] for _, attributes in given):
        finish = prefetch_in_order(model, sharded)

        def end(module: nn.Module, args: Any, output: Any) -> None:
            handle.remove()
            finish()

        handle = model.register_forward_hook(end)


@contextlib.contextmanager
def like_fsdp1(
    model: nn.Module,
    *,
    buffer_dtype: torch.dtype | None = None,
    zero_gradients: bool = True,
    whole_state_dicts: bool = True,
    older_optimizers: bool = True,
    parameter_attributes: bool = True,
    data_writes: bool = True,
    class_names: bool = True,
    sharded_after_forward: bool = True,
    list_inputs: bool = True,
    autocast_cache: bool = True,
    whole_in_apply: bool = True,
    root_inputs: bool = True,
    interface: bool = True,
) -> Iterator[None]:
    """Keeps FSDP1's behaviour on what is sharded inside: ``with like_fsdp1(model): fully_shard(...)``.

    Each of these may be switched off; :func:`records` tells which ones a program needed.

    Args:
        buffer_dtype: FSDP1's ``MixedPrecision.buffer_dtype``, which ``fully_shard`` has not: the first forward casts buffers
            of floating point.
        zero_gradients: a parameter that took no part in backward has a gradient of zeros once another one of its unit
            has one, so that weight decay and momentum act on it. ``fully_shard`` leaves None.
        whole_state_dicts: ``state_dict()`` gives whole tensors and ``load_state_dict()`` takes them. ``fully_shard``'s
            are DTensors.
        older_optimizers: optimizers that were made before go on with the sharded parameters.
        parameter_attributes: what the program has set on parameters is on the sharded ones: ``p.no_weight_decay = True``.
        data_writes: ``p.data = x`` writes to the shards. torch changes nothing there, without an error.
        class_names: classes of units have the names of before, for ``print(model)`` and comparisons of names.
        sharded_after_forward: the model's parameters are the sharded ones after each forward. ``fully_shard`` leaves the
            root's gathered ones in place, which an optimizer or a moving average would take for the model's.
        list_inputs: what a unit puts into a list or dictionary that is given to it arrives at the caller.
        autocast_cache: autocast casts parameters in each forward anew, as it did FSDP1's.
        whole_in_apply: ``model.apply(fn)`` sees whole parameters.
        root_inputs: a unit that a method other than forward runs, ``model.encode(x)``, casts its inputs as the model does.
        interface: FSDP1's methods and attributes, where the model has none of that name: ``no_sync()``,
            ``clip_grad_norm_()``, ``module``, ``sharding_strategy``, ... What FSDP2 cannot have raises an error that names
            the rule.

    Raises ValueError for a BatchNorm that would run in low precision where FSDP1 kept it in full precision.
    """
    given = {k: v for k, v in locals().items() if k not in ("model", "buffer_dtype")}
    record = start(":".join(map(str, place())), [name for name, on in given.items() if not on])
    context = _Open(model, record)
    install()
    _open.append(context)
    try:
        yield
    finally:
        _open.remove(context)
    new = [u for u in torch_private.units_of(model) if not isinstance(u, Unit)]
    new = [unit for unit in new if torch_private.is_alone(unit)]
    _check_batch_norms(new)
    _tell_of_variables(model, new)
    outermost: dict[nn.Module, nn.Module] = {}
    for unit in new:  # a unit comes after those around it
        for below in torch_private.units_of(unit):
            outermost.setdefault(below, unit)
    for unit in new:
        notes = notes_of(unit)
        notes.record = record
        notes.outermost = ref(outermost[unit])
        notes.quirks = QUIRKS - record.switched_off
        notes.buffer_dtype = buffer_dtype
        follow_writes(unit, record)
        adopt(unit, notes)
        context.follow(unit)


class _Open:
    """A ``with like_fsdp1(model)`` that is being executed."""

    def __init__(self, model: nn.Module, record: Record) -> None:
        self._model = model
        self._record = record
        # By module: the name of a parameter, itself, and what the program has set on it. Not the parameter: a whole one
        # must not outlive the sharding of its unit.
        self._former = {
            module: [
                (name, TensorWeakRef(p), dict(vars(p)))
                for name, p in module._parameters.items()
                if p is not None
            ]
            for module in model.modules()
        }

    def covers(self, module: nn.Module) -> bool:
        """Whether ``module`` will do as FSDP1's when this ends."""
        return module in self._model.modules()

    def follow(self, unit: nn.Module) -> None:
        """Hands optimizers, and what the program has set on parameters, from the former ones to the sharded ones."""
        if not (given_attributes(unit) or {}).get("_use_orig_params", True):
            return  # FSDP1 made new ones, too
        off = self._record.switched_off
        successors: dict[torch.Tensor, nn.Parameter] = {}
        for module in own_modules(unit, ()):
            for name, former, attributes in self._former.pop(module, ()):
                old = former()
                new = module._parameters[name]
                if new is None or old is new:
                    continue
                if "parameter_attributes" not in off:
                    fresh = [each for each in attributes if each not in vars(new)]
                    vars(new).update({each: attributes[each] for each in fresh})
                    self._record.add("parameter_attributes", *[f"{name}.{each}" for each in fresh])
                if old is not None and not old.is_meta:
                    successors[old] = new
        if "older_optimizers" not in off:
            replaced = replace_parameters(successors, attributes=False)
            self._record.add("older_optimizers", *["parameter"] * replaced)


_open: list[_Open] = []


def _tell_of_variables(model: nn.Module, new_units: list[Any]) -> None:
    own = [unit for unit in new_units if given_attributes(unit) is None]  # units() told of others
    dtypes = [torch_private.precision_policy(unit).param_dtype for unit in own]
    low = next((dtype for dtype in dtypes if dtype is not None), None)
    if own:
        tell_of_variables(model.modules(), low)


def _check_batch_norms(new_units: list[Any]) -> None:
    """Raises ValueError where FSDP1, given a policy, made a unit in full precision of a BatchNorm, and this program not."""
    if len(new_units) < 2:
        return  # FSDP1 without a policy ran it in low precision
    for unit in new_units:
        dtype = torch_private.precision_policy(unit).param_dtype
        if dtype in (None, torch.float32) or given_attributes(unit) is not None:
            continue
        for module in own_modules(unit, ()):
            if isinstance(module, _BatchNorm) and not runs_in_full_precision(module):
                raise ValueError(
                    f"{type(module).__name__} would run in {dtype}; FSDP1 kept it in full precision. Call "
                    "run_in_full_precision(module) and shard it by itself without an mp_policy, or use a loop over "
                    "units(model, ...), both of fsdp_migrate.runtime (fsdp-migrate explain FSDP213)"
                )
