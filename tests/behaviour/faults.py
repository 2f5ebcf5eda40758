"""Faults planted in the bridge and in `like_fsdp1`, each with a behaviour that must find it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from fsdp_migrate.runtime import (
    auto_wrap,
    bridge,
    gradients,
    in_place,
    in_place_units,
    state_dict_types,
    torch_private,
)
from fsdp_migrate.runtime.api import (
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictSettings,
    StateDictType,
)
from fsdp_migrate.runtime.plan import Unit, plan_units

from . import areas  # noqa: F401  (registers the behaviours)
from .registry import BEHAVIOURS, Behaviour

Plant = Callable[[], None]


@dataclass(frozen=True)
class Fault:
    """``plant()`` changes the runtime for the rest of a process."""

    behaviour: Behaviour
    plant: Plant
    form: str


FAULTS: dict[str, Fault] = {}


def change(owner: Any, name: str, value: Any) -> None:
    """Sets what the bridge must have by this name: a fault that changes nothing proves nothing."""
    assert hasattr(owner, name), name
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


@found_by("training.unused_parameters_of_used_units")
def no_gradients_of_zero() -> None:
    change(gradients, "_reduce", lambda group, reduce, **how: reduce())


@found_by("accumulation.left_over_gradients_are_dropped")
def unreduced_gradients_come_back() -> None:
    change(gradients, "_is_cleared", lambda parameter: False)


@found_by("optimizers.built_before_wrapping")
def older_optimizers_are_left() -> None:
    change(bridge, "replace_parameters", lambda successors: None)


@found_by("wrapping.module_wrap_policy")
def a_unit_too_many() -> None:
    def plan(root: nn.Module, *args: Any, **kwargs: Any) -> list[Unit]:
        name, child = next(iter(root.named_children()))
        return [Unit(name, child, {}), *plan_units(root, *args, **kwargs)]

    change(auto_wrap, "plan_units", plan)


IN_PLACE = "in place"


@found_by("training.unused_parameters_of_used_units", IN_PLACE)
def no_gradients_of_zero_in_place() -> None:
    change(gradients, "keeps", lambda unit, quirk: quirk != "zero_gradients")


@found_by("state_dicts.keys_and_values", IN_PLACE)
def sharded_state_dicts_in_place() -> None:
    change(in_place_units, "follow_default_type", lambda unit: None)


@found_by("optimizers.built_before_wrapping", IN_PLACE)
def older_optimizers_are_left_in_place() -> None:
    change(in_place, "replace_parameters", lambda successors, attributes: 0)


@found_by("wrapping.module_wrap_policy", IN_PLACE)
def a_unit_too_many_in_place() -> None:
    a_unit_too_many()


@found_by("precision.inputs_of_inner_units", IN_PLACE)
def inputs_of_units_are_cast_in_place() -> None:
    set_cast = torch_private.set_cast_forward_inputs
    change(torch_private, "set_cast_forward_inputs", lambda unit, cast: set_cast(unit, True))


@found_by("precision.batch_norms", IN_PLACE)
def batch_norms_in_low_precision_in_place() -> None:
    def plan(*args: Any, mixed_precision: Any, **kwargs: Any) -> list[Unit]:
        return plan_units(*args, mixed_precision=None, **kwargs)

    change(auto_wrap, "plan_units", plan)
    change(auto_wrap, "_exempt", lambda root, classes: None)


@found_by("whole_parameters.changes_are_written_back")
def changes_are_lost() -> None:
    summon = bridge.FullyShardedDataParallel.summon_full_params

    def without_writeback(module: nn.Module, **options: Any) -> Any:
        return summon(module, **{**options, "writeback": False})

    bridge.FullyShardedDataParallel.summon_full_params = staticmethod(without_writeback)
