"""What the runtime says where only the run shows that a construct means something else: once a place, with its rule."""

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from fsdp_migrate import runtime
from fsdp_migrate.runtime import ChangedFromFSDP1, changed

pytestmark = pytest.mark.usefixtures("one_rank")
# a program may have it before the runtime watches it
clip_grad_norm_ = torch.nn.utils.clip_grad_norm_


@pytest.fixture(autouse=True)
def nothing_said() -> None:
    changed._SAID.clear()


def bridge() -> Any:
    return runtime.FullyShardedDataParallel(
        nn.Linear(4, 3), sharding_strategy="NO_SHARD", device_id=torch.device("cpu")
    )


def in_place() -> Any:
    model = nn.Linear(4, 3)
    with runtime.like_fsdp1(model):
        fully_shard(model)
    return model


def trained(model: Any) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return optimizer


def texts(call: Callable[[], Any]) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [each for each in caught if each.category is ChangedFromFSDP1]


@pytest.mark.parametrize("sharded", [bridge, in_place])
def test_torchs_clipping(sharded: Callable[[], Any]) -> None:
    model = sharded()
    trained(model)

    def clip_twice() -> None:
        for _ in range(2):
            clip_grad_norm_(model.parameters(), 1.0)

    (warning,) = texts(clip_twice)
    line = clip_twice.__code__.co_firstlineno + 2
    assert (warning.filename, warning.lineno) == (__file__, line)
    assert str(warning.message).endswith(
        "which is smaller: check max_norm (fsdp-migrate explain FSDP302)"
    )
    assert changed.said()[-1]["code"] == "FSDP302"
    assert changed.said()[-1]["place"] == f"{__file__}:{line}"
    assert not texts(clip_twice)


def test_the_methods_of_fsdp1_and_plain_models_are_silent() -> None:
    model, plain = bridge(), nn.Linear(4, 3)
    trained(model), trained(plain)
    assert not texts(lambda: model.clip_grad_norm_(1.0))
    assert not texts(lambda: runtime.clip_grad_norm_(model, 1.0))
    assert not texts(lambda: clip_grad_norm_(plain.parameters(), 1.0))


@pytest.mark.parametrize("make", [bridge, in_place])
@pytest.mark.parametrize(
    "call",
    [
        lambda p: dist.all_reduce(p.grad),
        lambda p: dist.all_reduce(p.grad.norm() ** 2),
        lambda p: dist.broadcast(p.detach(), 0),
        lambda p: dist.all_gather([torch.empty(1)], p.detach()),
        lambda p: dist.all_gather_into_tensor(torch.empty(1), p.detach()),
        lambda p: dist.reduce(p.grad, 0),
    ],
)
def test_collectives_of_dtensors(make: Callable[[], Any], call: Callable[[Any], Any]) -> None:
    model = make()
    trained(model)
    with pytest.raises(runtime.UnsupportedInFSDP2, match=r"local_shard.*explain FSDP508") as raised:
        call(model.weight)
    assert raised.value.code == "FSDP508"
    dist.all_reduce(runtime.local_shard(model.weight.grad))


@pytest.mark.parametrize("make", [bridge, in_place])
def test_a_file_of_one_rank(make: Callable[[], Any], tmp_path: Path) -> None:
    model = make()
    optimizer = trained(model)
    stale = copy.deepcopy(optimizer.state_dict())
    for state in stale["state"].values():
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = torch.zeros(state[name].numel())
    torch.save(stale, tmp_path / "rank0.pt")
    (warning,) = texts(lambda: optimizer.load_state_dict(torch.load(tmp_path / "rank0.pt")))
    assert "the loaded states of 2 parameters are plain tensors" in str(warning.message)
    assert "checkpoint convert" in str(warning.message)
    assert "FSDP335" in str(warning.message)
    with pytest.raises(RuntimeError):
        optimizer.step()


@pytest.mark.parametrize("make", [bridge, in_place])
def test_what_loads_is_silent(make: Callable[[], Any]) -> None:
    model = make()
    optimizer = trained(model)
    state = runtime.optim_state_dict(model, optimizer)
    assert not texts(lambda: optimizer.load_state_dict(optimizer.state_dict()))
    assert not texts(
        lambda: runtime.optim_state_dict_to_load(model, optimizer, state, load_directly=True)
    )
    other = trained(nn.Linear(4, 3))
    assert not texts(lambda: other.load_state_dict(other.state_dict()))


def test_one_switch() -> None:
    model = bridge()
    trained(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", ChangedFromFSDP1)
        clip_grad_norm_(model.parameters(), 1.0)
    assert not caught


_LOW = {"param_dtype": torch.bfloat16}


def low_on_bridge(**given: Any) -> Any:
    return runtime.FullyShardedDataParallel(
        nn.Linear(4, 3),
        use_orig_params=True,
        mixed_precision=runtime.MixedPrecision(**given),
        device_id=torch.device("cpu"),
    )


def low_in_place(**given: Any) -> Any:
    model = nn.Linear(4, 3)
    with runtime.like_fsdp1(model):
        fully_shard(model, mp_policy=MixedPrecisionPolicy(**given))
    return model


@pytest.mark.parametrize("sharded", [low_on_bridge, low_in_place])
@pytest.mark.parametrize(
    ("given", "used", "is_said"),
    [(_LOW, False, True), (_LOW, True, False), ({"reduce_dtype": torch.bfloat16}, False, False)],
    ids=["unused", "used", "in float32"],
)
def test_a_forward_that_no_backward_uses(
    sharded: Callable[..., Any], given: dict[str, Any], used: bool, is_said: bool
) -> None:
    """Under FSDP1 the backward of the next one left no gradients."""
    model, x = sharded(**given), torch.ones(2, 4)
    first = model(x).sum()
    second = model(x).sum()
    loss = first + second if used else second
    found = texts(loss.backward)
    assert [("had no backward" in str(each.message)) for each in found] == [True] * is_said
    assert not texts(model(x).sum().backward)
    with torch.no_grad():
        model(x)
    assert not texts(model(x).sum().backward)


@pytest.mark.parametrize("sharded", [low_on_bridge, low_in_place])
def test_gradients_of_no_sync_were_not_lost(sharded: Callable[..., Any]) -> None:
    model, x = sharded(**_LOW), torch.ones(2, 4)
    model(x)
    with runtime.no_sync(model):
        assert not texts(model(x).sum().backward)
    assert not texts(model(x).sum().backward)
