"""The bridge: FSDP1's wrapper, with its whole public interface, on FSDP2's engine."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from . import state_dict_types, torch_forward, torch_private
from .api import BackwardPrefetch
from .arguments import Arguments, after_sharding, ready_to_shard, warn_of_container
from .auto_wrap import plan_checked
from .forms import WRAPPED, is_fsdp1
from .gradients import reduce_as_fsdp1
from .interface import Interface
from .materialize import own_modules
from .mesh import MESH_DIM_NAMES
from .notes import notes_of
from .older_optimizers import replace_parameters
from .own_members import NONE, own_first
from .patches import install
from .pickled import as_before_sharding
from .refusals import PRIVATE_PARTS, PrivatePart
from .running import Unit, run_gathered
from .state_dict_types import PREFIX, leave_out_of_state_dicts


class _BridgeType(type):
    """Lets ``isinstance(model, FullyShardedDataParallel)`` also see models that are sharded in place like FSDP1's, and
    those that libraries wrap with torch's FSDP1.

    A model of ``fully_shard`` alone is not an instance: a program with a branch for each must take the one for FSDP2.
    """

    def __instancecheck__(cls, instance: object) -> bool:
        return issubclass(type(instance), cls)

    def __subclasscheck__(cls, subclass: type) -> bool:
        stands_for = issubclass(subclass, Unit) or is_fsdp1(subclass)
        return super().__subclasscheck__(subclass) or (
            cls is FullyShardedDataParallel and stands_for
        )

    @property
    def __signature__(cls) -> inspect.Signature:
        signature = inspect.signature(cls.__init__)  # type: ignore[misc]
        return signature.replace(parameters=list(signature.parameters.values())[1:])


class FullyShardedDataParallel(Interface, Unit, FSDPModule, nn.Module, metaclass=_BridgeType):
    """FSDP1's wrapper of a module, a unit of FSDP2.

    ``torch.distributed.fsdp.FullyShardedDataParallel``'s arguments, methods, attributes, errors and warnings, in the
    same order and with the same defaults; torch's own option objects are accepted as well as those of this package.
    FSDP2's methods are there too.

    What differs from FSDP1: parameters are DTensors with the model's own shapes, and gradients have their dtype.
    Hybrid sharding over one rank synchronizes gradients, where FSDP1 did not (pytorch#154888). Without an accelerator
    the CPU is used, also without ``device_id``. BACKWARD_POST runs as BACKWARD_PRE, and ``limit_all_gathers`` has no
    effect: FSDP2 bounds memory by other means. ``use_orig_params`` decides only whether optimizers that were made
    before go on with the parameters.

    Raises ValueError where an argument has no equivalent in FSDP2, or does not fit another one, or two units share a
    parameter.
    """

    _fsdp_wrapped_module: nn.Module

    def __new__(cls, *args: Any, **kwargs: Any) -> FullyShardedDataParallel:
        return nn.Module.__new__(cls)  # FSDPModule's would build the class after the next one

    def __init__(
        self,
        module: nn.Module,
        process_group: Any = None,
        sharding_strategy: Any = None,
        cpu_offload: Any = None,
        auto_wrap_policy: Any = None,
        backward_prefetch: Any = BackwardPrefetch.BACKWARD_PRE,
        mixed_precision: Any = None,
        ignored_modules: Iterable[nn.Module] | None = None,
        param_init_fn: Callable[[nn.Module], Any] | None = None,
        device_id: int | str | torch.device | None = None,
        sync_module_states: bool = False,
        forward_prefetch: bool = False,
        limit_all_gathers: bool = True,
        use_orig_params: bool = False,
        ignored_states: Iterable[nn.Parameter] | Iterable[nn.Module] | None = None,
        device_mesh: DeviceMesh | None = None,
    ) -> None:
        given = locals()
        super().__init__()
        arguments = Arguments(**{field.name: given[field.name] for field in fields(Arguments)})
        *inner, _ = plan_checked(arguments)
        places: dict[nn.Module, list[tuple[nn.Module, str]]] = {}
        for parent in module.modules():
            for name, child in parent._modules.items():
                if child is not None:
                    places.setdefault(child, []).append((parent, name))
        for unit in inner:
            wrapper = FullyShardedDataParallel.__new__(FullyShardedDataParallel)
            nn.Module.__init__(wrapper)
            wrapper._wrap(arguments.of_unit(unit))
            for parent, name in places[unit.module]:
                setattr(parent, name, wrapper)
        self._wrap(arguments)

    def _wrap(self, arguments: Arguments) -> None:
        """Makes this a unit around a module, whose own units are there already."""
        module = arguments.module
        self._fsdp_wrapped_module = module
        install()
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            warn_of_container(module)
        options = ready_to_shard(module, arguments)
        modules = own_modules(module, ())
        before = {
            p: (m, name) for m in modules for name, p in m._parameters.items() if p is not None
        }
        with torch_private.named_dimensions(options["mesh"], MESH_DIM_NAMES):
            torch_forward.shard(self, **options)
        reduce_as_fsdp1(self, notes_of(self))
        after_sharding(self, arguments)
        if arguments.use_orig_params:
            now = {p: m._parameters[name] for p, (m, name) in before.items()}
            replace_parameters(
                {p: new for p, new in now.items() if new is not p and new is not None}
            )
        vars(self).update(arguments.attributes())
        leave_out_of_state_dicts(self)
        state_dict_types.follow_default_type(self)

    # The wrapped module #

    @property
    def module(self) -> nn.Module:
        """The wrapped module, without activation checkpointing around it."""
        inner = self._fsdp_wrapped_module
        inner = inner._modules.get("_checkpoint_wrapped_module") or inner
        if not isinstance(inner, FSDPModule):
            as_before_sharding(type(inner))
        return inner

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == WRAPPED:
                raise
        try:
            return getattr(self._fsdp_wrapped_module, name)
        except AttributeError:
            if name in PRIVATE_PARTS:
                raise PrivatePart(name) from None
            raise

    def __getitem__(self, key: Any) -> Any:
        return self._fsdp_wrapped_module.__getitem__(key)  # type: ignore[operator]

    # Running #

    @torch_private.run_outside_of_graphs
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped module's forward, with its parameters gathered before and freed after."""
        return run_gathered(self, self._fsdp_wrapped_module, args, kwargs)

    # Modules, parameters and buffers #

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """As ``nn.Module``'s; torch's state dict functions get names without the wrapper."""
        if not torch_private.torch_asks_for_state():
            yield from super().named_modules(memo, prefix, remove_duplicate)
            return
        if memo is None:
            memo = set()
        if self not in memo:
            if remove_duplicate:
                memo.add(self)
            yield prefix, self
            yield from self._fsdp_wrapped_module.named_modules(memo, prefix, remove_duplicate)

    def _named_members(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Any]]:
        """Parameters and buffers, inside ``summon_full_params`` by names without the wrapper."""
        is_summoned = notes_of(self).is_summoned
        for name, member in super()._named_members(*args, **kwargs):
            yield name.replace(PREFIX, "") if is_summoned else name, member

    def _fqn_modifiers(self) -> dict[str, str]:
        """Tells torch's state dict functions that the wrapper is in no name of a state dict."""
        inner = self._fsdp_wrapped_module
        return dict.fromkeys((*inner._modules, *inner._parameters, *inner._buffers), WRAPPED)


def _of_the_wrapped(unit: Any, name: str) -> Any:
    """What the wrapped module has by a name, which FSDP1's wrapper answered; an inner wrapper has FSDP2's methods only."""
    wrapped = unit._modules.get(WRAPPED)
    if isinstance(wrapped, FSDPModule):
        return NONE
    return getattr(wrapped, name, NONE)


for _name, _member in own_first(_of_the_wrapped).items():
    setattr(FullyShardedDataParallel, _name, _member)
