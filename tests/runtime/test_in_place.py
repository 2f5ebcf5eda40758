"""Models that are sharded in place: what they keep of FSDP1, what may be switched off, and what is counted."""

import inspect
import json
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from fsdp_migrate import runtime

pytestmark = [pytest.mark.usefixtures("one_rank"), pytest.mark.filterwarnings("ignore")]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return x + scale * self.used(x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(self.stem(x))

    def asks_itself(self) -> bool:
        return hasattr(self, "rank")


X = torch.ones(2, 4)


def literal(model: Any = None, **switches: bool) -> Any:
    model = model or Net()
    with runtime.like_fsdp1(model, **switches):
        for module in reversed(list(model.modules())):
            if isinstance(module, Block):
                fully_shard(module)
        fully_shard(model)
    return model


def acted() -> dict[str, Any]:
    """What the last ``like_fsdp1`` did."""
    found: dict[str, Any] = runtime.in_place.records()[-1]["acted"]
    return found


# The wrapped module #


def test_the_view_is_the_model_without_fsdp1() -> None:
    model = literal()
    view = model.module
    assert type(view) is Net
    assert view is model.module is model._fsdp_wrapped_module
    assert view is not model
    assert not runtime.is_sharded(view)
    assert not hasattr(view, "module")
    assert not hasattr(view, "no_sync")
    assert view.blocks[0] is model.blocks[0]
    assert {type(v) for v in view.state_dict().values()} == {torch.Tensor}
    view.load_state_dict(view.state_dict())
    view.extra = 1
    assert model.extra == 1


def test_loops_that_unwrap_end() -> None:
    model: Any = literal()
    while hasattr(model, "module"):
        model = model.module
    assert type(model) is Net
    model = literal()
    while isinstance(model, (DistributedDataParallel, runtime.FullyShardedDataParallel)):
        model = model.module
    assert type(model) is Net


def test_an_attribute_of_the_model_comes_first() -> None:
    model = Net()
    model.module = nn.Linear(4, 4)
    model.rank = "mine"  # type: ignore[assignment]
    literal(model)
    assert isinstance(model.module, nn.Linear)
    assert model.rank == "mine"


def test_the_models_own_methods_do_not_see_fsdp1() -> None:
    model = literal()
    assert hasattr(model, "rank")
    assert not model.asks_itself()


# FSDP1's methods and attributes #


def test_attributes_of_a_literal_call() -> None:
    model = Net()
    with runtime.like_fsdp1(model):
        fully_shard(model, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    assert model.sharding_strategy is runtime.ShardingStrategy.NO_SHARD  # one rank
    assert model.mixed_precision.param_dtype is torch.bfloat16
    assert (model.rank, model.world_size, model.compute_device.type) == (0, 1, "cpu")
    assert not model.cpu_offload.offload_params
    assert model.training_state.name == "IDLE"
    assert model.check_is_root()


# Any form #


def test_unwrap_and_is_sharded() -> None:
    plain, ours = Net(), literal()
    bridge = runtime.FullyShardedDataParallel(Net())
    ddp = DistributedDataParallel(Net())
    own = Net()
    own.module = nn.Linear(1, 1)
    assert runtime.unwrap(plain) is plain
    assert runtime.unwrap(ours) is ours
    assert runtime.unwrap(own) is own
    assert runtime.unwrap(bridge) is bridge.module
    assert runtime.unwrap(ddp) is ddp.module
    for wrapped in (ours, bridge, ddp):
        assert runtime.unwrap(torch.compile(wrapped)) is runtime.unwrap(wrapped)
    assert [runtime.is_sharded(each) for each in (plain, ours, own, bridge, ddp, fully_shard(Net()))] == [
        False, True, False, True, False, True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "make",
    [
        Net,
        literal,
        lambda: runtime.FullyShardedDataParallel(Net()),
        lambda: DistributedDataParallel(Net(), find_unused_parameters=True),
    ],
)
def test_functions_take_every_form(make: Any) -> None:
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters())
    with runtime.no_sync(model):
        model(X).sum().backward()
    model(X).sum().backward()
    assert runtime.clip_grad_norm_(model, 1.0).item() > 1
    optimizer.step()
    with runtime.summon_full_params(model):
        assert {type(p) for p in model.parameters()} == {nn.Parameter}
    with runtime.state_dict_type(model, runtime.StateDictType.FULL_STATE_DICT):
        assert {type(v) for v in model.state_dict().values()} == {torch.Tensor}
        state = runtime.optim_state_dict(model, optimizer)
    optimizer.load_state_dict(runtime.optim_state_dict_to_load(model, optimizer, state))


def test_what_holds_a_model_and_answers_for_it_is_clipped_as_the_model() -> None:
    class Policy:
        def __getattr__(self, name: str) -> Any:
            return getattr(model, name)

    fully_shard(model := Net())
    model(X).sum().backward()
    assert runtime.clip_grad_norm_(Policy(), 1.0).item() > 1  # type: ignore[arg-type]
    assert runtime.clip_grad_norm_(model, 1.0).item() == pytest.approx(1)


# Switches and counts #


def test_what_acted_is_counted_by_place() -> None:
    model = Net()
    model.stem.weight.no_decay = True  # type: ignore[attr-defined]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    literal(model)
    model(X).sum().backward()
    model.stem.bias.data = torch.ones(4)
    model.load_state_dict(model.state_dict())
    model.no_sync()
    record = runtime.in_place.records()[-1]
    assert record["place"].startswith(f"{__file__}:")
    assert record["switched_off"] == []
    json.dumps(record)
    found = record["acted"]
    assert found["zero_gradients"]["count"] == 4
    assert "blocks.0.unused.weight" in found["zero_gradients"]["examples"]
    assert found["older_optimizers"]["count"] == 10
    assert found["parameter_attributes"]["examples"] == ["weight.no_decay"]
    assert optimizer.param_groups[0]["params"] == list(model.parameters())
    assert found["data_writes"]["count"] == 1
    assert found["whole_state_dicts"] == {"count": 2, "examples": ["saved", "loaded"]}
    assert found["interface"]["examples"] == ["no_sync"]


def test_parameters_from_before_are_counted_in_an_optimizer_of_after() -> None:
    model = nn.Linear(4, 4)
    groups = [{"params": [*model.parameters()]}]
    with runtime.like_fsdp1(model):
        fully_shard(model)
    optimizer = torch.optim.SGD(groups, lr=0.1)
    assert optimizer.param_groups[0]["params"] == [*model.parameters()]
    assert acted()["older_optimizers"]["count"] == 2


def test_a_program_that_needs_nothing_counts_nothing() -> None:
    model = nn.Linear(4, 4)
    with runtime.like_fsdp1(model):
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(X).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert acted() == {}


def test_each_quirk_can_be_switched_off() -> None:
    parameters = inspect.signature(runtime.like_fsdp1).parameters.values()
    off = {each.name: False for each in parameters if isinstance(each.default, bool)}
    model = Net()
    model.stem.weight.no_decay = True  # type: ignore[attr-defined]
    literal(model, **off)
    assert runtime.in_place.records()[-1]["switched_off"] == sorted(off)
    assert type(model).__name__ == "FSDPNet"
    assert not hasattr(model.stem.weight, "no_decay")
    assert not hasattr(model, "no_sync")
    model(X).sum().backward()
    assert model.blocks[0].unused.weight.grad is None
    assert {type(v) for v in model.state_dict().values()} == {DTensor}
    before = model.stem.bias.to_local().clone()
    model.stem.bias.data = torch.full((4,), 9.0)
    assert torch.equal(model.stem.bias.to_local(), before)
    seen: list[Any] = []
    model.apply(lambda m: seen.extend(m.parameters(recurse=False)))
    assert DTensor in set(map(type, seen))
    with torch.no_grad():
        model(X)
    assert not isinstance(model.stem.weight, DTensor)
    assert acted() == {}


@pytest.mark.parametrize("original", [False, True])
def test_parameters_keep_attributes_where_fsdp1_kept_the_parameters(original: bool) -> None:
    model = nn.Linear(4, 4)
    model.weight.no_decay = True  # type: ignore[attr-defined]
    with runtime.like_fsdp1(model):
        for module, options in runtime.units(model, use_orig_params=original):
            fully_shard(module, **options)
    assert hasattr(model.weight, "no_decay") == original


def test_models_without_like_fsdp1_are_left_alone() -> None:
    literal()
    plain = fully_shard(nn.Linear(4, 4))
    assert type(plain).__name__ == "FSDPLinear"
    assert {type(v) for v in plain.state_dict().values()} == {DTensor}  # type: ignore[attr-defined]
    assert not hasattr(plain, "sharding_strategy")


def test_after_an_error_nothing_is_kept() -> None:
    model = Net()

    def shard() -> None:
        with runtime.like_fsdp1(model):
            fully_shard(model)
            raise KeyError("stop")

    with pytest.raises(KeyError):
        shard()
    assert not isinstance(model, runtime.FullyShardedDataParallel)


class Hiding(Net):
    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(4, 4)

    def clip_grad_norm_(self, limit: float) -> torch.Tensor:
        return torch.tensor(-1.0)


@pytest.mark.parametrize("inside", [False, True])
def test_names_that_the_wrapper_hid_are_warned_of(inside: bool) -> None:
    model = nn.Sequential(Hiding()) if inside else Hiding()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with runtime.like_fsdp1(model):
            for block in model.modules() if inside else ():
                if isinstance(block, Hiding):
                    fully_shard(block)
            fully_shard(model)
    said = [str(each.message) for each in caught if "FSDP005" in str(each.message)]
    assert len(said) == (
        not inside
    )  # FSDP1 put a wrapper around that one as well, and nobody asks it
    assert inside or "Hiding defines module and clip_grad_norm_ itself" in said[0]


# torch #

_UNTOUCHED = """
import sys, torch, torch.distributed as dist
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_pre_hooks as hooks

def classes():
    return [dict(vars(c)) for c in (DTensor, Optimizer, FSDPModule, torch.nn.Module, torch.Tensor)], dict(hooks)

before = classes()
assert "fsdp_migrate.runtime" not in sys.modules
from fsdp_migrate import runtime
assert classes() == before
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for module, options in runtime.units(torch.nn.Linear(2, 2)):
    fully_shard(module, **options)
assert classes() == before
"""


def test_importing_the_runtime_and_units_change_nothing_in_torch(
    fresh: Callable[[str], None],
) -> None:
    fresh(_UNTOUCHED)


def test_buffers_are_cast_by_the_first_forward() -> None:
    model: Any = nn.Linear(4, 4)
    model.register_buffer("scale", torch.ones(1))
    with runtime.like_fsdp1(model, buffer_dtype=torch.bfloat16):
        fully_shard(model)
    assert model.mixed_precision.buffer_dtype == torch.bfloat16
    model(X)
    assert model.scale.dtype is torch.bfloat16
    assert model.state_dict()["scale"].dtype is torch.float32
