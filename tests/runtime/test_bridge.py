"""What the bridge refuses, and what can be seen of it on one rank."""

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.fsdp as fsdp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
)
from torch.distributed.tensor import DTensor

from fsdp_migrate import runtime
from fsdp_migrate.runtime import FullyShardedDataParallel as FSDP
from fsdp_migrate.runtime import torch_private

from ..nets import Block, Transformer

pytestmark = pytest.mark.usefixtures("one_rank")


def blocks(model: nn.Module | None = None, **options: Any) -> FSDP:
    """A model of which each block is a unit."""
    policy = runtime.ModuleWrapPolicy({Block})
    return FSDP(model or Transformer(), auto_wrap_policy=policy, **options)


def run(model: nn.Module) -> torch.Tensor:
    return model(*Transformer.batch(torch.Generator().manual_seed(0)))


def test_a_model_may_have_a_module_of_its_own() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.module(x)

    model = FSDP(Outer())
    assert isinstance(model.module.module, nn.Linear)
    assert list(model.state_dict()) == ["module.weight", "module.bias"]
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    assert list(whole) == ["module.weight", "module.bias"]
    set_model_state_dict(model, whole)
    model(torch.ones(1, 2)).sum().backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.step()
    state = get_optimizer_state_dict(model, optimizer)
    assert list(state["state"]) == ["module.weight", "module.bias"]


def test_a_unit_that_was_a_root_may_be_part_of_another() -> None:
    model = blocks()
    inner = model.blocks[0]
    with FSDP.summon_full_params(inner, writeback=False):
        assert inner._is_root
        inner._is_root = False
    run(model).sum().backward()
    assert model.check_is_root()
    assert not inner.check_is_root()
    groups = torch_private.parameter_groups(inner)
    assert all(
        group.post_forward_mesh_info is not None for group in groups
    )  # it frees as any other


def test_methods_of_the_class_take_a_compiled_model_for_its_unit() -> None:
    """Only the root casts inputs here: what `torch.compile` makes of it must not become the root in its place."""
    inner = FSDP(nn.Linear(4, 4), mixed_precision=runtime.MixedPrecision(torch.bfloat16))
    model = FSDP(nn.Sequential(inner), mixed_precision=runtime.MixedPrecision(torch.bfloat16))
    compiled = torch.compile(model, backend="eager")
    for use in (
        lambda: FSDP.clip_grad_norm_(compiled, 1.0),
        lambda: FSDP.no_sync(compiled).__enter__(),
        lambda: FSDP.check_is_root(compiled),
    ):
        use()
        assert compiled(torch.ones(2, 4)).dtype == torch.bfloat16


def test_parameters_used_in_some_micro_batches_are_reduced_together() -> None:
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList([nn.Linear(2, 2, bias=False) for _ in range(3)])

        def forward(self, x: torch.Tensor, part: int) -> torch.Tensor:
            return self.parts[part](x)

    precision = runtime.MixedPrecision(torch.bfloat16, torch.float32)
    model = FSDP(Parts(), mixed_precision=precision, use_orig_params=True)
    with model.no_sync():
        model(torch.ones(1, 2), 0).sum().backward()
    model(torch.ones(1, 2), 1).sum().backward()
    gradients = [p.grad.full_tensor() for p in model.parameters()]
    assert [set(g.flatten().tolist()) for g in gradients] == [{1.0}, {1.0}, {0.0}]


def test_what_fsdp2_does_not_have_is_refused_by_name() -> None:
    model = FSDP(nn.Linear(2, 2))
    with pytest.raises(runtime.UnsupportedInFSDP2, match="fsdp-migrate explain FSDP361") as e:
        model.register_comm_hook(None, print)
    assert e.value.code == "FSDP361"
    assert not hasattr(model, "_handle")
    with pytest.raises(runtime.UnsupportedInFSDP2, match="explain FSDP366"):
        _ = model._handle
    with pytest.raises(AttributeError, match="has no attribute 'nowhere'"):
        _ = model.nowhere
    with pytest.raises(TypeError, match="cannot copy"):
        copy.deepcopy(model)


def test_parameters_are_sharded_whenever_a_program_looks() -> None:
    model = blocks(sharding_strategy="_HYBRID_SHARD_ZERO2", process_group=(dist.group.WORLD,) * 2)
    sharded = list(model.parameters())
    with torch.no_grad():
        run(model)
    assert list(map(id, model.module.parameters())) == list(map(id, sharded))
    loss = run(model).sum()
    assert list(map(id, model.parameters())) == list(map(id, sharded))
    assert list(map(id, model.module.parameters())) == list(map(id, sharded))
    loss.backward()
    assert list(map(id, model.module.parameters())) == list(map(id, sharded))


def test_parameters_that_were_replaced_cannot_be_used() -> None:
    plain = nn.Linear(3, 2)
    old = list(plain.parameters())
    optimizer = torch.optim.AdamW([{"params": old[:1], "weight_decay": 0.5}, {"params": old[1:]}])
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    plain(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    old[1].no_decay = True  # type: ignore[attr-defined]
    model = FSDP(plain, use_orig_params=True)
    new = list(model.parameters())
    assert [getattr(p, "no_decay", False) for p in new] == [False, True]
    assert [p for group in optimizer.param_groups for p in group["params"]] == new
    assert isinstance(optimizer.state[new[0]]["exp_avg"], DTensor)
    before = new[0].full_tensor().clone()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    schedule.step()
    assert not torch.equal(new[0].full_tensor(), before)
    for use in (lambda p: p.grad, lambda p: p + 1, lambda p: p.numel()):
        with pytest.raises(runtime.StaleParameter, match="was replaced"):
            use(old[0])
    later = torch.optim.SGD([{"params": old}], lr=0.1)
    assert later.param_groups[0]["params"] == new


def test_a_forward_inside_summon_sees_what_was_changed() -> None:
    model = FSDP(nn.Linear(2, 2, bias=False))
    with FSDP.summon_full_params(model), torch.no_grad():
        model.weight.fill_(1)
        assert (model(torch.ones(1, 2)) == 2).all()


def test_gradients_that_are_not_reduced_cannot_be_stepped_on() -> None:
    model = FSDP(nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.no_sync():
        model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(RuntimeError, match="outside no_sync"):
        optimizer.step()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sharding_strategy": "ZERO"}, "'ZERO' is not a valid ShardingStrategy"),
        ({"backward_prefetch": "NEVER"}, "'NEVER' is not a valid BackwardPrefetch"),
        (
            {"mixed_precision": fsdp.MixedPrecision(keep_low_precision_grads=True)},
            "keep_low_precision_grads=True has no equivalent",
        ),
        ({"ignored_modules": [], "ignored_states": []}, "both ignored_modules and ignored_states"),
        ({"ignored_modules": [nn.Parameter(torch.ones(1))]}, "ignored_modules expects nn.Module"),
        ({"ignored_states": [nn.ReLU(), nn.Parameter(torch.ones(1))]}, "ignored_states expects"),
        ({"sharding_strategy": "HYBRID_SHARD"}, "requires explicit specification of process group"),
        ({"device_id": "nowhere"}, "device_id='nowhere' is not a device of this machine"),
    ],
)
def test_refused_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FSDP(Transformer(), **options)


def test_a_pair_of_groups_and_a_unit_frozen_in_part_are_refused() -> None:
    with pytest.raises(ValueError, match="process_group is a pair of groups"):
        FSDP(Transformer(), process_group=(dist.group.WORLD, dist.group.WORLD))
    mixed = nn.Linear(2, 2)
    mixed.bias.requires_grad_(False)
    with pytest.raises(ValueError, match="uniform `requires_grad`"):
        FSDP(mixed)


def test_arguments_that_a_unit_cannot_have_for_itself() -> None:
    policy = runtime.CustomPolicy(
        lambda m: {"ignored_modules": []} if isinstance(m, Block) else False
    )
    with pytest.raises(ValueError, match=r"'ignored_modules' for the unit 'blocks.0'"):
        FSDP(Transformer(), auto_wrap_policy=policy)


def test_full_precision_in_evaluation_warns_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    precision = runtime.MixedPrecision(torch.bfloat16)
    FSDP(Transformer(), mixed_precision=precision)
    monkeypatch.setenv("FSDP_USE_FULL_PREC_IN_EVAL", "1")
    FSDP(Transformer())
    assert not [each for each in recwarn if "FULL_PREC" in str(each.message)]
    with pytest.warns(UserWarning, match="FSDP_USE_FULL_PREC_IN_EVAL"):
        FSDP(Transformer(), mixed_precision=precision)


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
    model = blocks(sharding_strategy=strategy)
    states = [m._get_fsdp_state() for m in (model, model.blocks[0])]
    assert [s._auto_reshard_after_forward for s in states] == [root_decides] * 2
    assert all((s._fsdp_param_group.post_forward_mesh_info is None) is kept for s in states)
    with torch.no_grad():
        model(*Transformer.batch(torch.Generator()))
    assert [s._fsdp_param_group.is_unsharded for s in states] == [True, kept]
    assert all(isinstance(p, DTensor) for p in model.module.parameters())


def test_cast_buffers() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2))
    runtime.cast_buffers(model, torch.bfloat16)
    assert model[0].running_mean.dtype is torch.bfloat16
    assert model[0].num_batches_tracked.dtype is torch.int64
    assert model.state_dict()["0.running_mean"].dtype is torch.float32


def test_no_sync_of_a_module_that_reduces_nothing_is_empty() -> None:
    plain = nn.Linear(1, 1)
    with runtime.no_sync(plain):
        plain(torch.ones(1, 1)).sum().backward()
    assert plain.weight.grad is not None


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
