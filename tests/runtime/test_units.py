"""Units of the bridge beside FSDP1's, on one rank: what they warn of, what they have, what they do with inputs."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.fsdp as fsdp
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from fsdp_migrate import runtime
from fsdp_migrate.runtime import FullyShardedDataParallel as Ours
from fsdp_migrate.runtime.auto_wrap import check_ties
from fsdp_migrate.runtime.ignored import Ignored
from fsdp_migrate.runtime.materialize import own_modules

from .units import unit

pytestmark = pytest.mark.usefixtures("one_rank")
HALF = runtime.MixedPrecision(param_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)


class Nothing(nn.Module):
    """Has no parameters."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.dtype = x.dtype
        return x


def test_replicas_of_one_rank_stay_replicas() -> None:
    """FSDP1 goes on without them, and does not synchronize gradients (pytorch#154888)."""
    groups = (dist.group.WORLD,) * 2
    model = unit(runtime, nn.Linear(2, 2), sharding_strategy="HYBRID_SHARD", process_group=groups)
    assert model.sharding_strategy == fsdp.ShardingStrategy.HYBRID_SHARD


def test_what_is_wrapped_is_found() -> None:
    def found(api: Any) -> Any:
        inner = nn.Sequential(nn.Linear(2, 2), unit(api, nn.Linear(2, 2)))
        inner[0] = inner[1]  # in two places
        inner.append(unit(api, checkpoint_wrapper(nn.Linear(2, 2))))
        model = unit(api, inner, cpu_offload=api.CPUOffload(offload_params=False))
        return (
            [name for name, _ in model.named_modules()],
            [name for name, _ in model.named_modules(remove_duplicate=False)],
            type(inner[2].module).__name__,
            model.cpu_offload.offload_params,
        )

    assert found(runtime) == found(fsdp)
    offloaded = unit(runtime, nn.Linear(2, 2), cpu_offload=runtime.CPUOffload(True))
    assert offloaded.cpu_offload == runtime.CPUOffload(True)


def test_a_subclass_is_one() -> None:
    class Own(Ours):
        pass

    assert issubclass(Own, Ours)
    half_made = Own.__new__(Own)
    nn.Module.__init__(half_made)
    assert not hasattr(half_made, "weight")


def test_torch_gets_names_without_wrappers() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rank = nn.Parameter(torch.ones(2))  # as attributes of a unit are called
            self.register_buffer("world_size", torch.ones(1))

    assert list(get_model_state_dict(unit(runtime, Named()))) == ["rank", "world_size"]
    inner = nn.Sequential(unit(runtime, nn.Linear(2, 2)), nn.Linear(2, 2))
    inner[1] = inner[0]
    model = unit(runtime, inner)
    asked: dict[str, Any] = {"__name__": "torch.distributed.checkpoint.state_dict"}
    exec(
        "def names(model): return [(n, type(m).__name__) for n, m in model.named_modules()]", asked
    )
    wrapper, names = "FullyShardedDataParallel", asked["names"](model)
    assert names == [("", wrapper), ("", "Sequential"), ("0", wrapper), ("0", "Linear")]


def test_a_unit_inside_of_another_model_is_no_root() -> None:
    inner = unit(runtime, Nothing(), mixed_precision=HALF)
    fully_shard(nn.Sequential(nn.Linear(2, 2), inner))(torch.ones(1, 2))
    assert inner.module.dtype == torch.float32


def test_a_part_may_be_of_fully_shard() -> None:
    model = unit(runtime, nn.Sequential(fully_shard(nn.Linear(2, 2)), nn.Linear(2, 2)))
    model(torch.ones(1, 2)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_options_are_compared_at_the_first_use_alone() -> None:
    model = unit(runtime, nn.Sequential(unit(runtime, nn.Linear(2, 2))))
    model.check_is_root()
    model.limit_all_gathers = False
    model(torch.ones(1, 2))


def test_prefetching() -> None:
    def lengths(**options: Any) -> list[tuple[int, int]]:
        policy = runtime.ModuleWrapPolicy({nn.Linear})
        inner = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        model = unit(runtime, inner, auto_wrap_policy=policy, **options)
        model(torch.ones(1, 2))
        states = [each._get_fsdp_state() for each in inner]
        lists = ((s._states_to_forward_prefetch, s._states_to_backward_prefetch) for s in states)
        return [(len(forward), len(backward)) for forward, backward in lists]

    assert lengths() == [(0, 0), (0, 0)]
    assert lengths(forward_prefetch=True) == [(1, 0), (0, 0)]
    assert lengths(backward_prefetch=None) == [(0, 1), (0, 1)]


def test_a_refusal_leaves_the_model_as_it_was() -> None:
    inner = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="is not a valid BackwardPrefetch"):
        unit(runtime, inner, backward_prefetch="NEVER")
    assert not isinstance(inner[0].weight, DTensor)


def test_ties() -> None:
    """What one unit shares, or no unit has, may be in two places."""
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    net[2].weight = net[0].weight
    check_ties(net, [net[1], net], Ignored(set(), set()))
    check_ties(net, [net[0], net], Ignored(set(), {net[0].weight}))
    message = r"'2\.weight' and '0\.weight' are the same parameter in two units"
    with pytest.raises(ValueError, match=message):
        check_ties(net, [net[0], net], Ignored(set(), set()))


def test_ties_are_looked_for_behind_what_is_ignored() -> None:
    inner = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    inner[1].bias = inner[0].bias
    ignored = [inner[0].weight, inner[1].weight]
    policy = runtime.ModuleWrapPolicy({nn.Linear})
    with pytest.raises(ValueError, match=r"'1\.bias' and '0\.bias' are the same parameter"):
        unit(runtime, inner, ignored_states=ignored, auto_wrap_policy=policy)
    inner = nn.Sequential(nn.Linear(2, 2))
    inner.own = inner[0].bias
    with pytest.raises(ValueError, match=r"^'own' and '0\.bias'"):
        unit(runtime, inner, auto_wrap_policy=policy)


class OnMeta(nn.Module):
    """A parameter and a buffer without values, which it fills."""

    def __init__(self) -> None:
        super().__init__()
        with torch.device("meta"):
            self.a = nn.Parameter(torch.empty(2))
            self.register_buffer("c", torch.empty(2))

    def reset_parameters(self) -> None:
        self.a.fill_(1)
        self.c.fill_(2)


def test_what_has_values_keeps_them() -> None:
    whole = OnMeta()
    model = unit(runtime, nn.Sequential(whole))
    assert isinstance(whole.a, DTensor)
    assert (model.module[0].c == 2).all()
    of_buffers = OnMeta()
    of_buffers.a = nn.Parameter(torch.ones(2))
    unit(runtime, of_buffers)
    assert not of_buffers.c.is_meta
    ignored = OnMeta()
    options = [{"ignored_modules": [ignored]}, {"ignored_states": [ignored.a]}]
    for given in options:
        real = nn.Linear(2, 2)
        if "ignored_states" in given:
            real.own = ignored.a
        before = real.weight.detach().clone()
        unit(runtime, nn.Sequential(real, *[ignored] * ("ignored_modules" in given)), **given)
        assert torch.equal(real.weight.full_tensor(), before)


def test_modules_in_two_places_are_one() -> None:
    inner = nn.Linear(2, 2)
    model = nn.Sequential(nn.Sequential(inner), nn.Sequential(inner))
    assert own_modules(model, ()) == [model, model[0], model[1], inner]


@pytest.mark.parametrize("cache", [False, True])
def test_autocast_keeps_casts_again_after_a_forward(cache: bool) -> None:
    model = Ours(nn.Linear(4, 4))
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=cache):
        model(torch.ones(2, 4))
        assert torch.is_autocast_cache_enabled() is cache
        with pytest.raises(RuntimeError):
            model(torch.ones(2, 3))
        assert torch.is_autocast_cache_enabled() is cache


def test_gradients_that_are_made_inside() -> None:
    def made(api: Any) -> Any:
        model = unit(api, nn.Linear(2, 2))
        with api.FullyShardedDataParallel.summon_full_params(model, with_grads=True):
            model.weight.grad = torch.ones(2, 2)
        return model.weight.grad is None

    assert made(runtime) == made(fsdp)


def test_changes_around_an_evaluation() -> None:
    """A root of ``fully_shard`` keeps what an evaluation has gathered."""
    model = fully_shard(nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        for value in (1.0, 2.0):
            model(torch.ones(1, 2))
            with runtime.summon_full_params(model, with_grads=True):
                model.weight.fill_(value)
                model(torch.ones(1, 2))
            assert isinstance(model.weight, DTensor)
            assert (model(torch.ones(1, 2)) == 2 * value).all()
