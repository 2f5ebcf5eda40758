"""Faults planted in the bridge and in `like_fsdp1`, each with a behaviour that must find it."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule

from fsdp_migrate.runtime import (
    MixedPrecision,
    ShardingStrategy,
    arguments,
    auto_wrap,
    bridge,
    gradients,
    in_place,
    in_place_units,
    notes,
    older_optimizers,
    optimizer_state,
    own_members,
    patches,
    pickled,
    running,
    state_dict_types,
    tensor_parallel,
    torch_private,
    torch_shown,
)
from fsdp_migrate.runtime.api import (
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictSettings,
    StateDictType,
)
from fsdp_migrate.runtime.plan import Unit, plan_units

from .areas import programs
from .registry import BEHAVIOURS, Behaviour

Plant = Callable[[], None]


@dataclass(frozen=True)
class Fault:
    """``plant()`` changes the runtime, until ``remove_faults()``."""

    behaviour: Behaviour
    plant: Plant
    form: str


FAULTS: dict[str, Fault] = {}


PLANTED: list[tuple[Any, str, Any]] = []


def change(owner: Any, name: str, value: Any) -> None:
    """Sets what the runtime must have by this name: a fault that changes nothing proves nothing."""
    assert hasattr(owner, name), name
    PLANTED.append((owner, name, vars(owner).get(name)))
    setattr(owner, name, value)


def remove_faults() -> None:
    while PLANTED:
        owner, name, value = PLANTED.pop()
        if value is None:  # of a base class
            delattr(owner, name)
        else:
            setattr(owner, name, value)


def found_by(name: str, form: str = "bridge") -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        FAULTS[plant.__name__] = Fault(BEHAVIOURS[name], plant, form)
        return plant

    return register


@found_by("state_dicts.keys_and_values")
def another_default_type() -> None:
    kind = StateDictType.SHARDED_STATE_DICT
    settings = StateDictSettings(kind, ShardedStateDictConfig(), ShardedOptimStateDictConfig())
    change(state_dict_types, "default_settings", lambda: settings)


@found_by("trained_parameters.unused_parameters_of_used_units")
def no_gradients_of_zero() -> None:
    change(gradients, "_reduce", lambda group, reduce, **how: reduce())


@found_by("accumulation.left_over_gradients_are_dropped")
def unreduced_gradients_come_back() -> None:
    change(gradients, "_is_cleared", lambda parameter: False)


@found_by("optimizer_parameters.built_before_wrapping")
def older_optimizers_are_left() -> None:
    change(bridge, "replace_parameters", lambda successors: None)


@found_by("wrapping.module_wrap_policy")
def a_unit_too_many() -> None:
    def plan(root: nn.Module, *args: Any, **kwargs: Any) -> list[Unit]:
        name, child = next(iter(root.named_children()))
        return [Unit(name, child, {}), *plan_units(root, *args, **kwargs)]

    change(auto_wrap, "plan_units", plan)


IN_PLACE = "in place"


@found_by("outside_of_forward.weight_of_kept_units")
def shards_in_the_loss() -> None:
    show = torch_shown.show_sharded
    change(torch_shown, "show_sharded", lambda group, whole_attributes: show(group))


@found_by("outside_of_forward.call_of_a_flat_root", IN_PLACE)
def shards_of_the_root_in_the_loss() -> None:
    shards_in_the_loss()


@found_by("classes_of_units.own_methods_from_outside")
def methods_of_fsdp2_first() -> None:
    def method(self: Any, unit: Any, cls: type[Any]) -> Any:
        return getattr(FSDPModule, self._name).__get__(unit, cls)

    change(own_members._OwnFirst, "__get__", method)


@found_by("classes_of_units.own_parts", IN_PLACE)
def methods_of_fsdp2_first_in_place() -> None:
    methods_of_fsdp2_first()


@found_by("classes_of_units.delegating", IN_PLACE)
def the_core_is_asked_first() -> None:
    change(in_place_units, "_may_be_fsdp1s", lambda unit, name: False)


@found_by("classes_of_units.registered_by_a_keyword", IN_PLACE)
def classes_of_units_are_registered() -> None:
    patches.install()
    change(FSDPModule, "__init_subclass__", classmethod(_registered))


def _registered(cls: type[FSDPModule], **kwargs: Any) -> None:
    super(FSDPModule, cls).__init_subclass__(**kwargs)


@found_by("classes_of_units.base_by_class", IN_PLACE)
def units_have_a_class_of_their_own() -> None:
    class_of = in_place_units._class_of
    change(in_place_units, "_class_of", lambda sharded, keeps_name: class_of(sharded, False))


@found_by("parallel_optimizers.over_one_rank")
def parameters_of_parallel_models_are_written() -> None:
    def free(old: torch.Tensor) -> None:
        old.data = torch.empty(0, dtype=old.dtype)

    change(older_optimizers, "_free", free)


@found_by("order_of_execution.other_on_a_rank")
def ranks_are_not_compared() -> None:
    change(running, "_watch_order", lambda root, units: None)


@found_by("order_of_execution.other_later_with_checkpoints", IN_PLACE)
def checkpoints_count_as_forwards() -> None:
    change(torch_private, "is_recomputed", lambda unit: False)


@found_by("whole_parameters.the_wrapped_module_is_pickled", IN_PLACE)
def hooks_are_pickled() -> None:
    change(pickled, "_own_hooks", lambda hooks: hooks)


@found_by("programs.run_by_methods", IN_PLACE)
def inputs_of_inner_roots_are_not_cast() -> None:
    change(running, "_cast_as_root", lambda unit: None)


@found_by("trained_parameters.unused_parameters_of_used_units", IN_PLACE)
def no_gradients_of_zero_in_place() -> None:
    change(in_place, "QUIRKS", notes.QUIRKS - {"zero_gradients"})


@found_by("state_dicts.keys_and_values", IN_PLACE)
def sharded_state_dicts_in_place() -> None:
    change(in_place_units, "follow_default_type", lambda unit: None)


@found_by("optimizer_parameters.built_before_wrapping", IN_PLACE)
def older_optimizers_are_left_in_place() -> None:
    change(in_place, "replace_parameters", lambda successors, attributes: 0)


@found_by("wrapping.module_wrap_policy", IN_PLACE)
def a_unit_too_many_in_place() -> None:
    a_unit_too_many()


@found_by("precision_of_inputs.inputs_of_inner_units", IN_PLACE)
def inputs_of_units_are_cast_in_place() -> None:
    set_cast = torch_private.set_cast_forward_inputs
    change(torch_private, "set_cast_forward_inputs", lambda unit, cast: set_cast(unit, True))


@found_by("precision.batch_norms", IN_PLACE)
def batch_norms_in_low_precision_in_place() -> None:
    def plan(*args: Any, mixed_precision: Any, **kwargs: Any) -> list[Unit]:
        return plan_units(*args, mixed_precision=None, **kwargs)

    change(auto_wrap, "plan_units", plan)
    change(auto_wrap, "_exempt", lambda root, classes: None)


def constructed_with(then: Callable[[Any], None] = lambda model: None, **wrong: Any) -> None:
    """The bridge is constructed with other arguments than it is given, and something is done with it."""
    construct = bridge.FullyShardedDataParallel.__init__

    def changed(self: Any, module: nn.Module, *args: Any, **options: Any) -> None:
        construct(self, module, *args, **{**options, **wrong})
        then(self)

    change(bridge.FullyShardedDataParallel, "__init__", changed)


# What a translation could get wrong: the behaviour that finds it, and what the bridge is constructed with instead.
ARGUMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "wrong_strategy": (
        "training.full_shard",
        {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP},
    ),
    "missing_units": ("training.full_shard", {"auto_wrap_policy": None}),
    "root_resharded_after_forward": (
        "training.full_shard",
        {"then": lambda model: model.set_reshard_after_forward(True)},
    ),
    "missing_broadcast": ("initialization.states_of_rank_0", {"sync_module_states": False}),
    "buffers_not_cast": (
        "precision.buffers",
        {"mixed_precision": MixedPrecision(param_dtype=torch.bfloat16)},
    ),
    "nothing_ignored": ("ignored.ignored_modules", {"ignored_modules": None}),
}
for _name, (_behaviour, _wrong) in ARGUMENTS.items():
    FAULTS[_name] = Fault(BEHAVIOURS[_behaviour], partial(constructed_with, **_wrong), "bridge")


@found_by("initialization.meta_in_order")
def initialized_in_another_order() -> None:
    construct = bridge.FullyShardedDataParallel.__init__

    def root_first(self: Any, module: nn.Module, *args: Any, **options: Any) -> None:
        if initialize := options.pop("param_init_fn", None):
            for each in module.modules():
                initialize(each)
        construct(self, module, *args, **options)

    change(bridge.FullyShardedDataParallel, "__init__", root_first)


@found_by("accumulation.no_sync_before_the_last")
def synced_every_time() -> None:
    change(bridge.FullyShardedDataParallel, "no_sync", lambda model: nullcontext())


@found_by("clipping.norm_of_all_gradients")
def clipped_by_a_norm_of_its_own() -> None:
    def clip(model: nn.Module, limit: float, norm_type: float) -> torch.Tensor:
        gradients = [p.grad.to_local() for p in model.parameters() if p.grad is not None]
        total = torch.nn.utils.get_total_norm(gradients, norm_type)
        for gradient in gradients:
            gradient.mul_((limit / (total + 1e-6)).clamp(max=1.0))
        return total

    change(bridge.FullyShardedDataParallel, "clip_grad_norm_", clip)


# A program, a part of what the tool makes of it, and what a wrong translation would have there.
TEXTS = {
    "strategies_exchanged": (
        "settings_of_a_launcher",
        '"zero3": ShardingStrategy.FULL_SHARD',
        '"zero3": ShardingStrategy.SHARD_GRAD_OP',
    ),
    "no_units": ("settings_of_a_launcher", "in list(model.blocks)", "in []"),
    "not_broadcast": ("settings_of_a_launcher", "=args.sync", "=not args.sync"),
    "whole_norms": ("a_norm_by_hand", "local_shard(p.grad)", "p.grad.full_tensor()"),
    "wrap_forgotten": ("wrap_and_enable_wrap", "model.head = wrap(wrap(model.head))", "pass"),
}


# A quirk of FSDP1 that is switched off for a program that needs it.
for _fault, _program, _model, _quirk in (
    ("unused_forgotten", "a_layer_that_is_used_once", "net", "zero_gradients"),
    ("left_gathered", "evaluated_first", "model", "sharded_after_forward"),
    ("drawn_on_shards", "drawn_by_apply", "model", "whole_in_apply"),
):
    TEXTS[_fault] = (_program, f"like_fsdp1({_model})", f"like_fsdp1({_model}, {_quirk}=False)")


def migrated_to(right: str, wrong: str) -> None:
    migrate = programs.migrated

    def changed(source: str, form: str) -> str:
        after = migrate(source, form)
        assert right in after, after
        return after.replace(right, wrong)

    change(programs, "migrated", changed)


for _name, (_behaviour, *_texts) in TEXTS.items():
    plant = partial(migrated_to, *_texts)
    FAULTS[_name] = Fault(BEHAVIOURS[f"programs.{_behaviour}"], plant, IN_PLACE)


@found_by("whole_parameters.changes_are_written_back")
def changes_are_lost() -> None:
    summon = bridge.FullyShardedDataParallel.summon_full_params

    def without_writeback(module: nn.Module, **options: Any) -> Any:
        return summon(module, **{**options, "writeback": False})

    change(bridge.FullyShardedDataParallel, "summon_full_params", staticmethod(without_writeback))


@found_by("process_groups.hybrid_over_a_mesh_without_names", IN_PLACE)
def a_mesh_of_our_own() -> None:
    def build(
        strategy: Any, device_type: str, process_group: Any = None, device_mesh: Any = None
    ) -> Any:
        return init_device_mesh(device_type, (2, 2), mesh_dim_names=("replicate", "shard"))

    change(arguments, "build_mesh", build)


@found_by("older_optimizer_states.new_beside_units")
def groups_with_what_is_new() -> None:
    def groups(saved: Any, groups: Any, owners: Any, keys: Any) -> Any:
        every = [keys[p] for group in groups for p in group]
        return [{**each, "params": every} for each in saved]

    change(optimizer_state, "_groups_to_load", groups)


@found_by("writeback.data_by_name", IN_PLACE)
def data_of_names_is_taken() -> None:
    change(torch_shown, "shows_other_data", lambda group: False)


@found_by("writeback.data_by_name_before_forward")
def data_of_names_is_taken_by_a_forward() -> None:
    change(running, "require_data_before_forward", lambda unit, groups: None)


@found_by("writeback.data_of_every_parameter", IN_PLACE)
def data_is_taken_between_forward_and_backward() -> None:
    change(gradients, "require_data_of_forward", lambda unit, group: None)


@found_by("accumulation.norms_inside_of_no_sync")
def gradients_of_ones_inside_of_no_sync() -> None:
    change(gradients.NotReduced, "like", staticmethod(torch.ones_like))


@found_by("tensor_parallel.summoned")
def gathered_over_both_dimensions() -> None:
    change(tensor_parallel, "over_fsdp", lambda tensor: None)


@found_by("tensor_parallel.full_state_dicts", IN_PLACE)
def saved_whole_over_both_dimensions() -> None:
    change(tensor_parallel, "is_shown", lambda tensor: False)
