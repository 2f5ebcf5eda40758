"""The option types against torch's own."""

import copy
import dataclasses
import enum
import inspect
import pickle
import warnings
from typing import Any

import pytest
import torch
import torch.distributed.fsdp as fsdp
from torch.distributed.fsdp import api
from torch.nn.modules.batchnorm import _BatchNorm

from fsdp_migrate import runtime
from fsdp_migrate.runtime import api as options
from fsdp_migrate.runtime.arguments import _strategy_over
from fsdp_migrate.runtime.interface import Interface
from fsdp_migrate.runtime.running import Unit

ENUMS = ["ShardingStrategy", "BackwardPrefetch", "StateDictType"]
DATACLASSES = [
    "MixedPrecision",
    "CPUOffload",
    "StateDictConfig",
    "FullStateDictConfig",
    "LocalStateDictConfig",
    "ShardedStateDictConfig",
    "OptimStateDictConfig",
    "FullOptimStateDictConfig",
    "LocalOptimStateDictConfig",
    "ShardedOptimStateDictConfig",
    "StateDictSettings",
]


@pytest.mark.parametrize(
    ("strategy", "is_kept", "said"),
    [
        ("FULL_SHARD", False, "switching"),
        ("HYBRID_SHARD", True, "replicas"),
        ("NO_SHARD", True, ""),
    ],
)
def test_one_rank_to_shard_over(strategy: str, is_kept: bool, said: str) -> None:
    given = options.ShardingStrategy[strategy]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        taken = _strategy_over(1, given)
    assert taken is (given if is_kept else options.ShardingStrategy.NO_SHARD)
    assert [said in str(each.message) for each in caught] == [True] * bool(said)


def test_every_option_type_of_torch_exists() -> None:
    assert sorted(ENUMS + DATACLASSES) == sorted(api.__all__)


@pytest.mark.parametrize("name", ENUMS)
def test_enum_members_equal_torchs_and_only_those(name: str) -> None:
    theirs, ours = getattr(api, name), getattr(runtime, name)
    for mine in ours:
        for other in theirs:
            assert (mine == other) is (other == mine) is (mine.name == other.name)
    assert set(theirs) == set(ours)
    assert next(iter(ours)) != next(iter(ours)).value
    assert next(iter(ours)) != next(iter(ours)).name


@pytest.mark.parametrize("name", ENUMS)
def test_enums_are_used_in_every_way_that_programs_use_them(name: str) -> None:
    theirs, ours = getattr(api, name), getattr(runtime, name)
    assert list(ours.__members__) == list(theirs.__members__)
    for mine, other in zip(ours, theirs, strict=True):
        assert isinstance(mine, enum.Enum)
        assert ours[other.name] is ours(other.value) is ours(other) is getattr(ours, other.name)
        assert pickle.loads(pickle.dumps(mine)) is copy.deepcopy(mine) is mine
        assert other in {mine: 0}
        assert other in (mine,)
        assert mine in {other: 0}
        assert [f"{mine}", f"{mine!r}", format(mine)] == [f"{other}", f"{other!r}", format(other)]
    for wrong in ("ANOTHER", 99, None, object()):
        with pytest.raises(ValueError, match="is not a valid"):
            ours(wrong)


def test_members_of_different_enums_differ() -> None:
    assert runtime.StateDictType.FULL_STATE_DICT != runtime.ShardingStrategy.FULL_SHARD


def samples(module: Any, name: str) -> list[Any]:
    """The defaults, and an object in which every field has a value of its own."""
    cls = getattr(module, name)
    if name == "StateDictSettings":
        type_ = module.StateDictType.FULL_STATE_DICT
        return [cls(type_, module.FullStateDictConfig(), module.FullOptimStateDictConfig())]
    return [cls(), cls(*range(len(dataclasses.fields(cls))))]


@pytest.mark.parametrize("name", DATACLASSES)
def test_dataclasses_are_used_in_every_way_that_programs_use_them(name: str) -> None:
    for mine, other in zip(samples(runtime, name), samples(api, name), strict=True):
        assert mine == other
        assert other == mine
        assert copy.deepcopy(mine) == pickle.loads(pickle.dumps(mine)) == mine
        assert repr(mine) == repr(other)
        first = dataclasses.fields(mine)[0].name
        changed = dataclasses.replace(mine, **{first: "changed"})
        assert changed != mine
        assert changed != other
        assert other != changed
        assert changed == dataclasses.replace(other, **{first: "changed"})
        assert list(vars(mine)) == list(vars(other))
        assert type(mine).__hash__ is type(other).__hash__
        assert type(mine).__match_args__ == type(other).__match_args__


@pytest.mark.parametrize("name", DATACLASSES)
def test_dataclasses_take_torchs_arguments(name: str) -> None:
    theirs, ours = (inspect.signature(getattr(m, name)).parameters for m in (api, runtime))
    assert list(ours) == list(theirs)
    for parameter, given in ours.items():
        assert given.kind is theirs[parameter].kind
        assert given.default == theirs[parameter].default


def test_configurations_of_different_classes_differ() -> None:
    assert runtime.StateDictConfig() != runtime.FullStateDictConfig()
    assert runtime.StateDictConfig() != api.ShardedStateDictConfig()
    assert runtime.CPUOffload() != False  # noqa: E712


@pytest.mark.parametrize("name", ENUMS)
def test_members_are_read_from_any_spelling(name: str) -> None:
    ours = getattr(runtime, name)
    for member in ours:
        assert all(
            ours(given) is member
            for given in (member, getattr(api, name)[member.name], member.name)
        )


def test_torchs_mixed_precision_is_read_field_by_field() -> None:
    theirs = fsdp.MixedPrecision(
        torch.bfloat16,
        torch.float32,
        torch.float16,
        False,
        True,
        False,
        (_BatchNorm, torch.nn.GELU),
    )
    ours = options.as_mixed_precision(theirs)
    assert type(ours) is runtime.MixedPrecision
    assert repr(ours) == repr(theirs)
    assert options.as_mixed_precision(None) is None


def test_mixed_precision_of_an_older_torch() -> None:
    class Old:
        param_dtype = reduce_dtype = buffer_dtype = torch.float16

    expected = runtime.MixedPrecision(torch.float16, torch.float16, torch.float16)
    assert options.as_mixed_precision(Old()) == expected


@pytest.mark.parametrize("value", [torch.bfloat16, True, fsdp.MixedPrecisionPolicy()])
def test_something_else_than_mixed_precision(value: object) -> None:
    with pytest.raises(ValueError, match=r"mixed_precision=.* is not a MixedPrecision"):
        options.as_mixed_precision(value)


def test_the_bridge_has_fsdp1s_signature() -> None:
    theirs = inspect.signature(fsdp.FullyShardedDataParallel).parameters
    ours = inspect.signature(runtime.FullyShardedDataParallel).parameters
    assert list(ours) == list(theirs)
    for name, parameter in ours.items():
        assert parameter.kind is theirs[name].kind
        # Enum members of either side are equal.
        assert parameter.default == theirs[name].default


def public(cls: type) -> set[str]:
    return {name for name in vars(cls) if not name.startswith("_")}


def test_the_bridge_has_fsdp1s_methods_with_their_arguments() -> None:
    theirs, ours = fsdp.FullyShardedDataParallel, runtime.FullyShardedDataParallel
    names = public(theirs) - {
        "named_buffers",
        "named_parameters",
    }  # Module's, over names of its own
    assert names <= public(ours) | public(Interface) | public(Unit)
    for name in names - {"module"}:
        expected = inspect.signature(getattr(theirs, name)).parameters
        found = inspect.signature(getattr(ours, name)).parameters
        assert [(p.name, p.kind, p.default) for p in found.values()] == [
            (p.name, p.kind, p.default) for p in expected.values()
        ], name
        static = [
            isinstance(inspect.getattr_static(cls, name), staticmethod) for cls in (theirs, ours)
        ]
        assert static[0] is static[1], name


def test_submodules_are_modules() -> None:
    assert inspect.ismodule(runtime.wrap)
    assert callable(runtime.wrap.wrap)
    assert runtime.fully_shard is fsdp.fully_shard
    with pytest.raises(AttributeError, match="no attribute 'nowhere'"):
        _ = runtime.nowhere
