"""What shard_model refuses, and what it does on one rank."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.fsdp as fsdp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from fsdp_migrate import runtime
from fsdp_migrate.runtime import shard_model
from fsdp_migrate.runtime.mesh import compute_device

from ..equivalence.models import Block, Transformer

pytestmark = pytest.mark.usefixtures("one_rank")


def test_returns_the_module_itself_sharded() -> None:
    model = Transformer()
    assert shard_model(model) is model
    assert isinstance(model, FSDPModule)
    assert isinstance(model, Transformer)
    assert all(isinstance(p, DTensor) for p in model.parameters())


def test_works_in_a_partial() -> None:
    shard = partial(shard_model, auto_wrap_policy=runtime.ModuleWrapPolicy({Block}))
    model = shard(Transformer())
    assert [n for n, m in model.named_modules() if isinstance(m, FSDPModule)] == [
        "",
        "blocks.0",
        "blocks.1",
    ]


def test_accepts_positional_arguments_in_fsdp1s_order() -> None:
    policy = runtime.ModuleWrapPolicy({Block})
    model = shard_model(
        Transformer(), dist.group.WORLD, fsdp.ShardingStrategy.FULL_SHARD, None, policy
    )
    assert isinstance(model.blocks[0], FSDPModule)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sharding_strategy": "ZERO"}, "sharding_strategy='ZERO'"),
        ({"backward_prefetch": "NEVER"}, "backward_prefetch='NEVER'"),
        ({"cpu_offload": True}, "cpu_offload=True is not a CPUOffload"),
        ({"auto_wrap_policy": {nn.Linear}}, "is not a wrap policy"),
        (
            {"mixed_precision": fsdp.MixedPrecision(keep_low_precision_grads=True)},
            "keep_low_precision_grads=True has no equivalent",
        ),
        ({"ignored_modules": [], "ignored_states": []}, "either ignored_modules or ignored_states"),
        ({"ignored_modules": [nn.Parameter(torch.ones(1))]}, "ignored_modules expects modules"),
        ({"ignored_states": [nn.ReLU(), nn.Parameter(torch.ones(1))]}, "ignored_states expects"),
        ({"sharding_strategy": "HYBRID_SHARD"}, "needs process_group or device_mesh"),
        ({"device_id": "nowhere"}, "device_id='nowhere' is not a device of this machine"),
    ],
)
def test_refused_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shard_model(Transformer(), **options)


def test_refused_meshes() -> None:
    flat = init_device_mesh("cpu", (1,))
    square = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"))
    group = dist.group.WORLD
    for options, message in [
        ({"process_group": group, "device_mesh": flat}, "either process_group or device_mesh"),
        ({"device_mesh": square}, "device_mesh has 2 dimensions, but FULL_SHARD"),
        ({"process_group": (group, group)}, "process_group is a pair of groups"),
        ({"sharding_strategy": "HYBRID_SHARD", "device_mesh": flat}, "must have 2 dimensions"),
        ({"sharding_strategy": "HYBRID_SHARD", "process_group": group}, "must be the pair"),
    ]:
        with pytest.raises(ValueError, match=message):
            shard_model(Transformer(), **options)


def test_refused_modules() -> None:
    sharded = shard_model(Transformer())
    with pytest.raises(ValueError, match="sharded already"):
        shard_model(sharded)
    with pytest.raises(ValueError, match="module is a ModuleList, which has no forward"):
        shard_model(nn.ModuleList([nn.Linear(2, 2)]))
    partly = Transformer()
    fully_shard(partly.head)
    with pytest.raises(ValueError, match="a part is sharded already"):
        shard_model(partly, auto_wrap_policy=runtime.ModuleWrapPolicy({Block}))
    with pytest.raises(ValueError, match="ignored_modules holds a module that is sharded"):
        shard_model(partly, ignored_modules=[partly.head])


def test_arguments_that_a_unit_cannot_have_for_itself() -> None:
    policy = runtime.CustomPolicy(
        lambda m: {"ignored_modules": []} if isinstance(m, Block) else False
    )
    with pytest.raises(ValueError, match=r"'ignored_modules' for 'blocks.0'"):
        shard_model(Transformer(), auto_wrap_policy=policy)


def test_meta_module_without_reset_parameters() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self) -> torch.Tensor:
            return self.weight

    with torch.device("meta"):
        model = Bare()
    with pytest.raises(ValueError, match=r"Bare is on the meta device and has no reset_parameters"):
        shard_model(model)
    with pytest.raises(ValueError, match="param_init_fn='zeros' is not callable"):
        shard_model(model, param_init_fn="zeros")


def test_parameters_of_no_dimension() -> None:
    class Clip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.towers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
            self.scale = nn.Parameter(torch.ones([]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.towers[1](self.towers[0](x)) * self.scale

    model = Clip()
    with pytest.raises(ValueError, match=r"^scale: a parameter of no dimension"):
        shard_model(model, auto_wrap_policy=runtime.ModuleWrapPolicy({nn.Linear}))
    assert not any(isinstance(m, FSDPModule) for m in model.modules())
    shard_model(model, ignored_states=[model.scale])
    model(torch.ones(1, 2)).sum().backward()
    assert model.scale.grad is not None


def test_ignoring_the_model_itself_warns() -> None:
    model = Transformer()
    with pytest.warns(UserWarning, match="none of its parameters is sharded"):
        shard_model(model, ignored_modules=[model])
    assert not any(isinstance(p, DTensor) for p in model.parameters())


def test_full_precision_in_evaluation_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSDP_USE_FULL_PREC_IN_EVAL", "1")
    with pytest.warns(UserWarning, match="FSDP_USE_FULL_PREC_IN_EVAL"):
        shard_model(Transformer(), mixed_precision=runtime.MixedPrecision(torch.bfloat16))


def test_device_is_the_cpu_without_an_accelerator() -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    assert compute_device([]) == torch.device("cpu")
    assert compute_device([], torch.device("cpu")) == torch.device("cpu")
    assert compute_device([nn.Parameter(torch.ones(1, device="meta"))]) == torch.device("cpu")
    with pytest.raises(ValueError, match="device_id=0 is not a device of this machine"):
        compute_device([], 0)


@pytest.mark.parametrize(
    ("strategy", "kept", "root_decides"),
    [
        ("FULL_SHARD", False, True),
        ("SHARD_GRAD_OP", True, False),
        ("NO_SHARD", False, True),
        ("HYBRID_SHARD", False, True),
        ("_HYBRID_SHARD_ZERO2", True, False),
    ],
)
def test_resharding(strategy: str, kept: bool, root_decides: bool) -> None:
    policy = runtime.ModuleWrapPolicy({Block})
    model = shard_model(Transformer(), sharding_strategy=strategy, auto_wrap_policy=policy)
    states = [m._get_fsdp_state() for m in (model, model.blocks[0])]
    assert [s._auto_reshard_after_forward for s in states] == [root_decides] * 2
    assert all((s._fsdp_param_group.post_forward_mesh_info is None) is kept for s in states)
    with torch.no_grad():
        model(*Transformer.batch(torch.Generator()))
    assert isinstance(model.head.weight, DTensor) is False
    assert isinstance(model.blocks[0].mlp[0].weight, DTensor) is not kept


@pytest.mark.parametrize(("strategy", "dims"), [("FULL_SHARD", 1), ("NO_SHARD", 2)])
def test_meshes(strategy: str, dims: int) -> None:
    model = shard_model(Transformer(), sharding_strategy=strategy)
    mesh = model.head.weight.device_mesh
    assert mesh.ndim == dims
    assert mesh.mesh_dim_names == (("replicate", "shard") if dims == 2 else None)


def test_units_share_a_mesh() -> None:
    policy = runtime.ModuleWrapPolicy({Block})
    model = shard_model(Transformer(), sharding_strategy="NO_SHARD", auto_wrap_policy=policy)
    assert len({id(p.device_mesh) for p in model.parameters()}) == 1


def test_parts_without_parameters_are_not_units() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    shard_model(model, auto_wrap_policy=runtime.always_wrap_policy)
    assert [isinstance(m, FSDPModule) for m in (model, model[0], model[1])] == [True, True, False]


def test_inner_model_becomes_an_inner_unit() -> None:
    def casts(mixed_precision: Any) -> list[bool]:
        model = Transformer()
        shard_model(model.blocks[0], mixed_precision=mixed_precision)
        before = model.blocks[0]._get_fsdp_state()._mp_policy.cast_forward_inputs
        shard_model(model, mixed_precision=mixed_precision)
        after = model.blocks[0]._get_fsdp_state()._mp_policy.cast_forward_inputs
        return [before, after, model._get_fsdp_state()._mp_policy.cast_forward_inputs]

    low = torch.bfloat16
    assert casts(runtime.MixedPrecision(low)) == [True, False, True]
    assert casts(runtime.MixedPrecision(low, cast_forward_inputs=True)) == [True, True, True]
    assert casts(runtime.MixedPrecision(low, cast_root_forward_inputs=False)) == [False] * 3


def test_cast_buffers() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2), Transformer())
    runtime.cast_buffers(
        model, torch.bfloat16, ignored_modules=[model[2]], keep_classes=[nn.BatchNorm2d]
    )
    assert model[0].running_mean.dtype is torch.bfloat16
    assert model[0].num_batches_tracked.dtype is torch.int64
    assert model[2].cos.dtype is torch.float32
    assert model.state_dict()["0.running_mean"].dtype is torch.float32
    plain = copy.deepcopy(nn.Sequential(nn.BatchNorm1d(2)))
    runtime.cast_buffers(plain, torch.bfloat16, keep_classes=[nn.BatchNorm1d])
    assert plain[0].running_mean.dtype is torch.float32


def test_no_sync_refuses_a_plain_module() -> None:
    plain = nn.Linear(1, 1)
    with pytest.raises(TypeError, match="but got Linear"), runtime.no_sync(plain):
        pass


@pytest.mark.parametrize("norm_type", [1, 2.0, 3, "inf", float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_clipping_without_sharding_is_torchs(norm_type: Any, dtype: torch.dtype) -> None:
    def clipped(clip: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 2)).to(dtype)
        model(torch.ones(2, 5, dtype=dtype)).sum().backward()
        norm = clip(model.parameters(), 0.1, norm_type)
        return [norm, *[p.grad for p in model.parameters()]]

    ours, theirs = clipped(runtime.clip_grad_norm_), clipped(torch.nn.utils.clip_grad_norm_)
    assert all(map(torch.equal, ours, theirs))
    assert ours[0].dtype is dtype


def test_clipping_a_single_tensor_or_nothing() -> None:
    weight = nn.Parameter(torch.ones(4))
    assert runtime.clip_grad_norm_(weight, 1.0) == 0
    weight.grad = torch.full((4,), 2.0)
    assert runtime.clip_grad_norm_(weight, 1.0) == 4
    assert runtime.clip_grad_norm_([], 1.0) == 0
    assert torch.allclose(weight.grad.norm(), torch.tensor(1.0))
