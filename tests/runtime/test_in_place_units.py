"""Models that are sharded in place: which units they have, and what a unit is."""

import copy
import inspect
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from fsdp_migrate import runtime
from fsdp_migrate.runtime import changed
from fsdp_migrate.runtime import units as units_of

from .test_in_place import Block, Net, X, literal

pytestmark = [pytest.mark.usefixtures("one_rank"), pytest.mark.filterwarnings("ignore")]

# Units #


def test_units_have_fsdp1s_arguments() -> None:
    expected = inspect.signature(runtime.FullyShardedDataParallel).parameters.values()
    found = inspect.signature(units_of).parameters.values()
    assert [(p.name, p.default) for p in found] == [(p.name, p.default) for p in expected]


def test_units_come_innermost_first_with_what_fully_shard_needs() -> None:
    model = Net()
    precision = runtime.MixedPrecision(torch.bfloat16, torch.float32)
    given = {}
    for module, options in units_of(
        model,
        None,
        runtime.ShardingStrategy.SHARD_GRAD_OP,
        auto_wrap_policy=runtime.ModuleWrapPolicy({Block}),
        mixed_precision=precision,
        ignored_states=[model.stem.bias],
    ):
        given[module] = options
        fully_shard(module, **options)
    assert list(given) == [*model.blocks, model]
    inner = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    assert given[model.blocks[0]]["mp_policy"] == inner
    assert given[model]["mp_policy"] == replace(inner, cast_forward_inputs=True)
    assert len({id(options["mesh"]) for options in given.values()}) == 1
    assert all(options["reshard_after_forward"] is False for options in given.values())
    assert given[model]["ignored_params"] == {model.stem.bias}
    assert type(model).__name__ == "FSDPNet"
    assert not isinstance(model, runtime.FullyShardedDataParallel)


def test_options_that_are_not_needed_are_left_out() -> None:
    (_, options), *_ = [(m, o) for m, o in units_of(nn.Linear(2, 2)) if fully_shard(m, **o)]
    assert list(options) == ["mesh"]


def test_errors_come_before_the_first_unit() -> None:
    with pytest.raises(ValueError, match="requires explicit specification"):
        units_of(Net(), sharding_strategy=runtime.ShardingStrategy.HYBRID_SHARD)
    with pytest.raises(ValueError, match="already have FSDP applied"):
        units_of(literal(), auto_wrap_policy=runtime.ModuleWrapPolicy({Block}))
    model = Net()
    model.blocks[0].used.weight.requires_grad_(False)
    with pytest.raises(ValueError, match="requires_grad=True and False"):
        units_of(model, auto_wrap_policy=runtime.ModuleWrapPolicy({Block}))


def test_a_unit_that_was_not_sharded_is_said() -> None:
    with pytest.raises(RuntimeError, match=r"fully_shard\(module, \*\*options\)"):
        list(units_of(Net()))


def test_what_is_sharded_already_is_left_out() -> None:
    assert list(units_of(literal())) == []


def test_containers_belong_to_the_unit_around_them() -> None:
    model = nn.Sequential(nn.ModuleList([nn.Linear(2, 2)]), nn.Linear(2, 2))
    policy = runtime.ModuleWrapPolicy({nn.ModuleList})
    with pytest.warns(runtime.ChangedFromFSDP1, match="0 is not sharded by itself.*FSDP007"):
        found = [m for m, o in units_of(model, auto_wrap_policy=policy) if fully_shard(m, **o)]
    assert found == [model]
    assert isinstance(model[0][0].weight, DTensor)


def test_a_container_as_the_model() -> None:
    blocks = nn.ModuleList([Block(), Block()])
    policy = runtime.ModuleWrapPolicy({Block})
    found = [m for m, o in units_of(blocks, auto_wrap_policy=policy) if fully_shard(m, **o)]
    assert found == list(blocks)
    model = nn.ModuleList([Block()])
    with pytest.raises(ValueError, match="containers"), runtime.like_fsdp1(model):
        [fully_shard(m, **o) for m, o in units_of(model)]


def test_buffers_and_prefetching_without_like_fsdp1() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model.register_buffer("scale", torch.ones(1))
    for module, options in units_of(
        model,
        auto_wrap_policy=runtime.ModuleWrapPolicy({nn.Linear}),
        mixed_precision=runtime.MixedPrecision(buffer_dtype=torch.bfloat16),
        forward_prefetch=True,
    ):
        fully_shard(module, **options)
    assert model.scale.dtype is torch.bfloat16
    assert model.state_dict()["scale"].dtype is torch.float32
    model(X)
    first, second = (layer._get_fsdp_state() for layer in model)
    assert first._states_to_forward_prefetch == [second]
    assert len(model._forward_hooks) == 1, "only FSDP2's own is left"


# What a unit is #


def test_a_unit_is_of_its_class_by_name_and_of_fsdp1s_by_isinstance() -> None:
    model = literal()
    assert str(type(model)) == str(Net)
    assert repr(model) == repr(Net())
    assert isinstance(model, Net)
    assert isinstance(model, FSDPModule)
    assert isinstance(model, runtime.FullyShardedDataParallel)
    assert not isinstance(fully_shard(Net()), runtime.FullyShardedDataParallel)
    assert runtime.FullyShardedDataParallel.fsdp_modules(model) == [model, *model.blocks]
    assert list(inspect.signature(model.blocks[0].forward).parameters) == ["x", "scale"]
    assert type(literal(nn.Sequential(Block(), Block()))[:1]) is nn.Sequential
    with pytest.raises(TypeError, match="cannot copy"):
        copy.deepcopy(model)


def test_an_encoder_layer_keeps_its_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()
    calls = []
    fast = torch._transformer_encoder_layer_fwd
    monkeypatch.setattr(
        torch, "_transformer_encoder_layer_fwd", lambda *a: (calls.append(1), fast(*a))[1]
    )
    with runtime.like_fsdp1(layer):
        fully_shard(layer)
    with torch.no_grad():
        layer(torch.ones(1, 3, 4))
    assert calls


def test_hooks_of_before_run_with_whole_parameters() -> None:
    model = nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(4, 4)))
    expected = model(X)
    with runtime.like_fsdp1(model):
        fully_shard(model[0])
        fully_shard(model)
    torch.testing.assert_close(model(X), expected)


def test_a_forward_of_the_object_itself_gathers() -> None:
    model = Net()
    model.forward = lambda x: model.stem(x)  # type: ignore[method-assign]
    expected = model(X)
    literal(model)
    assert torch.equal(model(X), expected)
    model(X).sum().backward()


def test_a_forward_that_is_compiled_inside_of_a_compiled_model() -> None:
    class Compiled(Block):
        forward = torch.compile(Block.forward, backend="eager")

    model = nn.Sequential(Compiled())
    expected = model(X)
    assert torch.equal(torch.compile(literal(model), backend="eager")(X), expected)


NO_UNIT = (
    "the model is not sharded by itself.*the modules in it are still sharded by themselves.*FSDP007"
)


@pytest.mark.parametrize(
    "model",
    [
        nn.ModuleList([Block(), Block()]),
        nn.ModuleDict({"a": Block()}),
        nn.ModuleList([nn.ModuleList([Block()])]),
    ],
)
def test_a_container_of_units_says_that_there_is_none_around_them(model: nn.Module) -> None:
    changed._SAID.clear()
    with pytest.warns(runtime.ChangedFromFSDP1, match=NO_UNIT) as warned:
        by_units(model, auto_wrap_policy=runtime.ModuleWrapPolicy({Block}))
    assert not [
        each for each in warned if "belong to the unit that contains it" in str(each.message)
    ]
    assert not isinstance(model, FSDPModule)


class Guarded(nn.Module):
    """Watches its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.weight = nn.Parameter(torch.ones(2))

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.weight


def by_units(model: nn.Module, **options: object) -> None:
    for module, given in units_of(model, **options):
        fully_shard(module, **given)


def by_torchs_words(model: nn.Module, mixed_precision: runtime.MixedPrecision) -> None:
    with runtime.like_fsdp1(model):
        fully_shard(model, mp_policy=MixedPrecisionPolicy(mixed_precision.param_dtype))


def by_both(model: nn.Module, **options: object) -> None:
    with runtime.like_fsdp1(model):
        by_units(model, **options)


@pytest.mark.parametrize(
    "shard", [runtime.FullyShardedDataParallel, by_units, by_torchs_words, by_both]
)
@pytest.mark.parametrize(
    ("name", "needs"),
    [("FSDP_USE_FULL_PREC_IN_EVAL", torch.bfloat16), ("FSDP_USE_UNSAFE_SETATTR", None)],
)
def test_variables_without_effect_are_told(
    shard: Callable[..., object],
    name: str,
    needs: torch.dtype | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed._SAID.clear()
    shard(Guarded(), mixed_precision=runtime.MixedPrecision(torch.bfloat16))
    assert [each for each in changed.said() if each["code"] == "FSDP217"] == []
    monkeypatch.setenv(name, "1")
    model = nn.Linear(2, 2) if needs is None else Guarded()
    shard(model, mixed_precision=runtime.MixedPrecision(None))  # nothing is changed for it
    assert [each for each in changed.said() if each["code"] == "FSDP217"] == []
    shard(Guarded(), mixed_precision=runtime.MixedPrecision(needs))
    told = [each["message"] for each in changed.said() if each["code"] == "FSDP217"]
    assert len(told) == 1
    assert name in told[0]


@pytest.mark.parametrize("name", ["local_shards", "metadata", "sharding_spec"])
def test_parts_of_sharded_tensors_say_what_to_ask(name: str) -> None:
    model = literal()
    value = next(iter(model.parameters()))
    assert isinstance(value, DTensor)
    assert not hasattr(value, name)
    for tensor in (value, value.detach(), next(iter(model.state_dict().values()), value)):
        if isinstance(tensor, DTensor):
            with pytest.raises(runtime.UnsupportedInFSDP2, match=f"{name} is a method of.*FSDP524"):
                getattr(tensor, name)
