"""Gradients that are not reduced yet, prefetching, and optimizers that are older than their model, on one rank."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, init_device_mesh
from torch.utils.checkpoint import set_checkpoint_early_stop

from fsdp_migrate import runtime
from fsdp_migrate.runtime import FullyShardedDataParallel as FSDP
from fsdp_migrate.runtime import patches, torch_private

pytestmark = pytest.mark.usefixtures("one_rank")


def step(model: nn.Module) -> None:
    model(torch.ones(1, 2, dtype=next(model.parameters()).dtype)).sum().backward()


def gradients(model: nn.Module) -> list[Any]:
    """One number of each."""
    whole = [None if p.grad is None else p.grad.full_tensor() for p in model.parameters()]
    return [None if each is None else each.flatten()[0].item() for each in whole]


def pair() -> Any:
    return (torch.distributed.group.WORLD,) * 2


@pytest.mark.parametrize("make", [FSDP, fully_shard])
def test_backward_is_changed_once(make: Any) -> None:
    model = make(nn.Linear(2, 2))
    (group,) = torch_private.parameter_groups(model)
    calls = [group.post_backward]
    for _ in range(2):
        with runtime.no_sync(model):
            calls.append(group.post_backward)
    assert calls[1] is calls[2]
    assert (calls[0] is calls[1]) == (make is FSDP)  # changed from the start


def test_parts_that_took_no_part_have_no_gradients() -> None:
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = fully_shard(nn.Linear(2, 2, bias=False), reshard_after_forward=False)
            self.other = fully_shard(nn.Linear(2, 2, bias=False), reshard_after_forward=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.other(x)
            return self.used(x)

    model = fully_shard(Parts())
    with runtime.no_sync(model):
        step(model)
    model.other.reshard()
    assert [p.grad is None for p in model.parameters()] == [False, True]


@pytest.mark.parametrize(("factor", "expected"), [(0.5, 2.5), (0.0, 1.0)])
def test_gradients_that_were_written_to(factor: float, expected: float) -> None:
    model = FSDP(nn.Linear(2, 2))
    step(model)
    with model.no_sync():
        step(model)
    for parameter in model.parameters():
        parameter.grad.mul_(factor)
    step(model)
    assert gradients(model) == [expected, expected]


def test_frozen_parameters_and_other_dtypes() -> None:
    inner = nn.Linear(2, 2, dtype=torch.bfloat16)
    inner.weight.requires_grad_(False)
    inner.unused = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    model = FSDP(inner, use_orig_params=True)
    with model.no_sync():
        step(model)
    assert inner.weight.grad is None
    assert inner.bias.grad.dtype == torch.bfloat16
    step(model)
    assert gradients(model) == [None, 2, 0]


def test_parameters_are_sharded_after_a_backward_without_reduction() -> None:
    inner = nn.Sequential(
        FSDP(nn.Linear(2, 2), sharding_strategy="_HYBRID_SHARD_ZERO2", process_group=pair())
    )
    model = FSDP(inner, sharding_strategy="_HYBRID_SHARD_ZERO2", process_group=pair())
    with model.no_sync():
        step(model)
    assert all(isinstance(p, DTensor) for p in model.parameters())


def test_checkpoints_inside_of_checkpoints() -> None:
    def part() -> nn.Module:
        inner = nn.Sequential(*[checkpoint_wrapper(nn.Linear(2, 2)) for _ in range(2)])
        return checkpoint_wrapper(FSDP(inner))

    model = FSDP(nn.Sequential(part(), part()))
    with set_checkpoint_early_stop(False):  # a unit comes to the end of its second forward
        step(model)
    assert all(p.grad is not None for p in model.parameters())


def test_who_was_a_root() -> None:
    def kept(unit: Any) -> bool:
        (group,) = torch_private.parameter_groups(unit)
        return group.post_forward_mesh_info is None

    full, grad_op = FSDP(nn.Linear(2, 2)), FSDP(nn.Linear(2, 2), sharding_strategy="SHARD_GRAD_OP")
    for unit in (full, grad_op):
        assert unit.check_is_root()
        unit._is_root = True
        assert kept(unit)
        unit._is_root = False
    assert [kept(full), kept(grad_op)] == [False, True]


def test_who_keeps_parameters_after_forward() -> None:
    units = [
        FSDP(nn.Linear(2, 2)),
        FSDP(nn.Linear(2, 2), sharding_strategy="SHARD_GRAD_OP"),
        FSDP(nn.ReLU(), sharding_strategy="SHARD_GRAD_OP"),
        fully_shard(nn.Linear(2, 2), reshard_after_forward=True),
    ]
    keeps = [torch_private.keeps_unsharded_after_forward(unit) for unit in units]
    assert keeps == [False, True, False, False]


def test_prefetching_follows_the_first_forward() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)
            self.none = nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(self.b(self.none(self.a(x))))

    policy = runtime.ModuleWrapPolicy({nn.Linear, nn.Identity})
    model = FSDP(Twice(), auto_wrap_policy=policy, forward_prefetch=True)
    step(model)
    a, b = (unit._get_fsdp_state() for unit in (model.a, model.b))
    assert a._states_to_forward_prefetch == [b]
    assert b._states_to_forward_prefetch == []
    assert not model.a.module._forward_pre_hooks
    assert not model.module._forward_hooks


OLDER = """\
import sys
import torch.distributed as dist
from torch import nn, optim
from torch.distributed.device_mesh import init_device_mesh
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
models = [nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))]
optimizers = [optim.SGD(model.parameters(), lr=0.1) for model in models]
models[1][0].other_name = models[1][0].weight
assert "fsdp_migrate.runtime" not in sys.modules
from fsdp_migrate.runtime import FullyShardedDataParallel, fully_shard, like_fsdp1
models[0] = FullyShardedDataParallel(models[0], use_orig_params=True)
with like_fsdp1(models[1]):
    fully_shard(models[1][0], mesh=init_device_mesh("cpu", (1,)))
for model, optimizer in zip(models, optimizers):
    assert optimizer.param_groups[0]["params"] == list(model.parameters())
assert models[1][1].weight.numel() == 4  # which is not sharded
"""


def test_an_optimizer_that_is_older_than_the_runtime(fresh: Callable[[str], None]) -> None:
    fresh(OLDER)


def test_an_older_optimizer() -> None:
    inner = nn.Linear(2, 2, dtype=torch.bfloat16)
    old = list(inner.parameters())
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1, momentum=0.9)
    step(inner)
    optimizer.step()
    optimizer.state[old[0]]["step"] = 3
    model = FSDP(inner, use_orig_params=True)
    new = list(model.parameters())
    assert optimizer.state[new[0]]["step"] == 3
    assert repr(old[0]) == "a parameter that sharding has replaced"
    with torch._C.DisableTorchFunctionSubclass():  # whose functions it refuses
        assert old[0].grad is None
    named = torch.optim.SGD([("weight", old[0]), ("bias", old[1])], lr=0.1)
    assert named.param_groups[0]["params"] == new
    for wrong, error in (({"lr": 0.1}, KeyError), ({"params": set(new)}, TypeError)):
        with pytest.raises(error):
            torch.optim.SGD([wrong], lr=0.1)


@pytest.mark.parametrize(
    ("options", "kinds", "expected"),
    [
        ({"foreach": None}, "both", False),
        ({"foreach": None}, "sharded", None),
        ({"foreach": None}, "plain", None),
        ({"foreach": None, "fused": True}, "both", None),
        ({"foreach": True}, "both", True),
        ({}, "both", "nothing"),
    ],
)
def test_mixed_parameters_are_stepped_singly(
    options: dict[str, Any], kinds: str, expected: Any
) -> None:
    plain = nn.Parameter(torch.empty(2))
    mesh = init_device_mesh("cpu", (1,))
    sharded = DTensor.from_local(torch.empty(2), mesh, [Shard(0)], run_check=False)
    chosen = {"plain": [plain], "sharded": [sharded]}.get(kinds, [plain, sharded])
    group = {"params": chosen, **options}
    optimizer: Any = SimpleNamespace(param_groups=[group])
    patches._before_step(optimizer, (), {})
    assert group.get("foreach", "nothing") == expected
    patches._after_step(optimizer, (), {})
    assert group == {"params": chosen, **options}, "a state dict saves what the program gave"
