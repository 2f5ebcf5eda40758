"""Faults planted in the bridge itself, each of which a comparison must find."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch import nn

from fsdp_migrate.runtime import (
    StateDictType,
    api,
    arguments,
    auto_wrap,
    gradients,
    state_dict_types,
)
from fsdp_migrate.runtime.plan import Unit, plan_units

from .cases import strategy
from .checks import CHECKS
from .silent import ROWS, check_row
from .train import Case, compare, differences, run_fsdp1, run_ours


def sharded_by_default() -> api.StateDictSettings:
    return api.StateDictSettings(
        StateDictType.SHARDED_STATE_DICT,
        api.ShardedStateDictConfig(),
        api.ShardedOptimStateDictConfig(),
    )


def one_unit_more(module: nn.Module, policy: Any, **options: Any) -> list[Unit]:
    found = plan_units(module, policy, **options)
    return [Unit("blocks.0.mlp", module.blocks[0].mlp, {}), *found]


def nothing(*_: Any) -> None:
    pass


def row(name: str) -> Callable[[], None]:
    (found,) = [each for each in ROWS if each.name == name]
    return lambda: check_row(found)


def units_are_fsdp1s() -> None:
    case = Case("fault", strategy("FULL_SHARD"))
    assert differences(case, compare(run_fsdp1(case), run_ours(case)), bitwise=True) == []


# Where it is, what takes its place, and what must fail then.
FAULTS: dict[str, tuple[Any, str, Any, Callable[[], None]]] = {
    "wrong-default-type": (
        state_dict_types,
        "default_settings",
        sharded_by_default,
        row("state-dict"),
    ),
    "no-zero-gradients": (
        arguments,
        "reduce_as_fsdp1",
        nothing,
        row("unused-parameters-under-weight-decay"),
    ),
    "unsynchronized-gradients-kept": (
        gradients,
        "_is_cleared",
        lambda parameter: False,
        row("unsynchronized-gradients-left-over"),
    ),
    "optimizer-not-re-pointed": (arguments, "replace_parameters", nothing, row("optimizer-first")),
    "one-unit-too-many": (auto_wrap, "plan_units", one_unit_more, units_are_fsdp1s),
}


@contextlib.contextmanager
def planted(module: Any, name: str, fault: Any) -> Iterator[None]:
    right = getattr(module, name)
    setattr(module, name, fault)
    try:
        yield
    finally:
        setattr(module, name, right)


def is_found(fault: str) -> None:
    module, name, wrong, check = FAULTS[fault]
    check()
    with planted(module, name, wrong), pytest.raises(AssertionError):
        check()


for _fault in FAULTS:
    CHECKS[f"fault-in-the-bridge-{_fault}"] = ((2,), lambda fault=_fault: is_found(fault))
