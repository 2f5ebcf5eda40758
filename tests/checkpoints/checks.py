"""What state dicts are while a type is set. Each check runs on two ranks and asserts for itself."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.fsdp as fsdp
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
)
from torch.distributed.tensor import DTensor

from fsdp_migrate import runtime
from fsdp_migrate.runtime import FullyShardedDataParallel, StateDictType, state_dict_type

from ..equivalence.models import Block, ConvNet, Tied, Transformer
from ..equivalence.train import TORCH
from .fsdp1 import checkpoints_on_cpu

FULL, SHARDED = StateDictType.FULL_STATE_DICT, StateDictType.SHARDED_STATE_DICT
CHECKS: dict[str, Callable[[], Any]] = {}
States = dict[str, Any]


def check(function: Callable[[], Any]) -> Callable[[], Any]:
    CHECKS[function.__name__.replace("_", "-")] = function
    return function


def sharded(cls: type[nn.Module] = Transformer, seed: int = 0, **options: Any) -> nn.Module:
    torch.manual_seed(seed)
    policy = runtime.ModuleWrapPolicy({Block, nn.Conv2d})
    return FullyShardedDataParallel(cls(), auto_wrap_policy=policy, **options)


def fsdp1(cls: Any = Transformer, **options: Any) -> Any:
    torch.manual_seed(0)
    policy = TORCH.ModuleWrapPolicy({Block, nn.Conv2d})
    return fsdp.FullyShardedDataParallel(cls(), auto_wrap_policy=policy, **options)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def train(model: Any, optimizer: torch.optim.Optimizer, cls: Any = Transformer) -> list[float]:
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(*cls.batch(generator)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def whole(model: nn.Module) -> States:
    """What a model holds, whole, without any of the functions under test."""
    state = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    return {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()
        for name, value in named(state)
        if name != "cos"  # the one buffer that no state dict has
    }


def named(state: Any) -> list[tuple[str, Any]]:
    """The pairs of a dict, or of names and values, with the names of the model without wrappers."""
    pairs = state.items() if isinstance(state, dict) else state
    return [
        (n.replace("_fsdp_wrapped_module.", "").replace("_checkpoint_wrapped_module.", ""), value)
        for n, value in pairs
    ]


def is_whole(state: States, of: States) -> bool:
    """Whether every value is plain and what `of` has."""
    return all(
        not isinstance(value, DTensor) and torch.equal(value, of[name])
        for name, value in state.items()
    )


@check
def every_pair_of_offload_and_rank0_is_as_fsdp1_has_it() -> None:
    for offload in (False, True):
        for rank0_only in (False, True):
            with checkpoints_on_cpu():
                theirs = fsdp1(Tied, use_orig_params=True)
                config = fsdp.FullStateDictConfig(offload, rank0_only)
                kind = fsdp.StateDictType.FULL_STATE_DICT
                with fsdp.FullyShardedDataParallel.state_dict_type(theirs, kind, config):
                    expected = theirs.state_dict()
            model = sharded(Tied)
            for given in (config, runtime.FullStateDictConfig(offload, rank0_only)):
                with state_dict_type(model, FULL, given):
                    found = model.state_dict()
                assert list(found) == list(expected)
                assert is_whole(found, expected)
                assert bool(found) == (not rank0_only or dist.get_rank() == 0)
            del theirs
            gc.collect()


@check
def values_are_copies() -> None:
    model = sharded()
    optimizer = adam(model)
    for kind in (FULL, SHARDED):
        before = whole(model)
        with state_dict_type(model, kind):
            state = model.state_dict()
        assert all(
            isinstance(state[n], DTensor) == (kind == SHARDED)
            for n in ("embed.weight", "blocks.1.norm.bias")
        )
        train(model, optimizer)
        assert all(
            torch.equal(v.full_tensor() if kind == SHARDED and "scale" not in n else v, before[n])
            for n, v in state.items()
        )
        assert not torch.equal(whole(model)["embed.weight"], before["embed.weight"])


@check
def what_is_not_set_is_the_default_of_each() -> None:
    model = sharded()
    assert is_whole(model.state_dict(), whole(model))
    model.load_state_dict(whole(sharded(seed=1)))
    assert is_whole(whole(model), whole(sharded(seed=1)))
    plain = fsdp.fully_shard(Transformer())
    with state_dict_type(plain, FULL):
        pass
    assert isinstance(plain.state_dict()["embed.weight"], DTensor)
    with pytest.raises(RuntimeError, match="got mixed"):
        plain.load_state_dict(Transformer().state_dict())


@check
def loading_takes_whole_tensors_and_shards() -> None:
    source = sharded(Tied, seed=1)
    with state_dict_type(source, FULL):
        plain = source.state_dict()
    with state_dict_type(source, SHARDED, runtime.ShardedStateDictConfig(offload_to_cpu=True)):
        shards = source.state_dict()
    for state in (plain, shards):
        for kind in (FULL, SHARDED):
            for assign in (False, True):
                model = sharded(Tied)
                given = {name: value.clone() for name, value in state.items()}
                kept = dict(given)
                with state_dict_type(model, kind):
                    model.load_state_dict(given, assign=assign)
                assert is_whole(whole(model), plain)
                assert all(given[name] is kept[name] for name in kept)
                if not assign:  # which cuts ties, with or without sharding
                    again = sharded(Tied, seed=1)
                    assert train(model, adam(model)) == train(again, adam(again))
    with state_dict_type(model, FULL):
        with pytest.raises(RuntimeError, match="size mismatch"):
            model.load_state_dict({**plain, "norm.bias": plain["norm.bias"][:4]})
        with pytest.raises(RuntimeError, match=r"Missing key.*norm\.bias"):
            model.load_state_dict({k: v for k, v in plain.items() if k != "norm.bias"})
        missing = model.load_state_dict({}, strict=False).missing_keys
        assert [name for name, _ in named((n, None) for n in missing)] == list(plain)


@check
def shards_load_into_another_layout() -> None:
    source = sharded(seed=1)
    same = sharded(sharding_strategy=runtime.ShardingStrategy.NO_SHARD)
    with state_dict_type(source, SHARDED):
        shards = source.state_dict()
    with state_dict_type(same, SHARDED):
        same.load_state_dict(shards)
        plain = same.state_dict()
    assert is_whole(plain, whole(source))  # as FSDP1 has it where nothing is sharded
    with state_dict_type(same, FULL, runtime.FullStateDictConfig(rank0_only=True)):
        everywhere = same.state_dict()
    assert is_whole(everywhere, whole(source))  # on every rank, as FSDP1 has it there


@check
def a_meta_model_is_loaded_with_assign() -> None:
    source = sharded(seed=1)
    state = whole(source)
    with torch.device("meta"):
        model = Transformer()
    for block in model.blocks:
        fsdp.fully_shard(block)
    fsdp.fully_shard(model)
    with state_dict_type(model, FULL):
        model.load_state_dict(state, assign=True)
    model.cos = source.module.cos
    assert is_whole(whole(model), state)
    assert train(model, adam(model)) == train(source, adam(source))


class Holder(nn.Module):
    """What wraps a model, with state of its own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner = model
        self.own = nn.Parameter(torch.ones(3))


@check
def a_wrapper_around_the_model_gives_what_is_set() -> None:
    model = sharded()
    holder = Holder(model)
    expected = {f"inner.{name}": value for name, value in whole(model).items()}
    with state_dict_type(holder, FULL):
        state = holder.state_dict()
        assert is_whole(state, {**expected, "own": torch.ones(3)})
        assert is_whole(model.blocks[0].state_dict(prefix="inner.blocks.0."), expected)
        other = Holder(sharded(seed=1))
    with state_dict_type(other.inner, FULL):
        other.load_state_dict(state)
    assert is_whole(whole(other.inner), whole(model))
    config = runtime.FullStateDictConfig(rank0_only=True)
    with state_dict_type(model, FULL, config):
        assert list(holder.state_dict()) == (list(state) if dist.get_rank() == 0 else ["own"])


@check
def activation_checkpointing_leaves_no_names() -> None:
    expected = whole(sharded())
    outer, inner = sharded(), Transformer()
    apply_activation_checkpointing(outer, check_fn=lambda m: isinstance(m, Block))
    for number, block in enumerate(inner.blocks):
        inner.blocks[number] = checkpoint_wrapper(block)
        fsdp.fully_shard(inner.blocks[number])
    fsdp.fully_shard(inner)
    for model in (outer, inner):
        with state_dict_type(model, FULL):
            model.load_state_dict(expected)
            state = model.state_dict()
        assert state.keys() == expected.keys()
        assert is_whole(state, expected)
        optimizer = adam(model)
        train(model, optimizer)
        saved = runtime.optim_state_dict(model, optimizer)
        assert saved["state"].keys() == expected.keys() - {"scale"}
        optimizer.load_state_dict(runtime.optim_state_dict_to_load(model, optimizer, saved))


class Renamed(Transformer):
    """Its file has other names, in a part and at the top."""

    def __init__(self) -> None:
        super().__init__()
        for module, old, new in ((self.blocks[0], "norm.", "ln."), (self, "head.", "lm_head.")):
            module.register_state_dict_post_hook(self.rename(old, new))
            module.register_load_state_dict_pre_hook(self.rename(new, old))

    @staticmethod
    def rename(old: str, new: str) -> Callable[..., None]:
        def hook(module: nn.Module, state: States, prefix: str, *_: Any) -> None:
            for key in [key for key in state if key.startswith(prefix + old)]:
                state[prefix + new + key.removeprefix(prefix + old)] = state.pop(key)

        return hook


@check
def hooks_that_rename_keep_working() -> None:
    model = sharded(Renamed)
    torch.manual_seed(0)
    expected = Renamed().state_dict()
    assert "lm_head.weight" in expected
    assert "blocks.0.ln.weight" in expected
    with state_dict_type(model, FULL):
        state = model.state_dict()
    assert state.keys() == expected.keys()
    assert is_whole(state, expected)
    other = sharded(Renamed, seed=1)
    with state_dict_type(other, FULL):
        other.load_state_dict(state)
    assert is_whole(whole(other), whole(model))


@check
def buffers_have_their_own_dtype_in_the_state_dict() -> None:
    mixed = runtime.MixedPrecision(torch.bfloat16, torch.float32, torch.bfloat16)
    model = sharded(ConvNet, mixed_precision=mixed)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), ConvNet)
    assert model.module.mean.dtype == torch.bfloat16
    for kind in (FULL, SHARDED):
        with state_dict_type(model, kind):
            state = model.state_dict()
        assert {v.dtype for v in state.values()} == {torch.float32, torch.int64}
        assert model.module.mean.dtype == torch.bfloat16


@check
def parameters_that_a_forward_left_gathered_do_no_harm() -> None:
    model, state = sharded(), whole(sharded(seed=1))
    with state_dict_type(model, FULL):
        for _ in range(2):
            with torch.no_grad():
                model(*Transformer.batch(torch.Generator()))
            model.load_state_dict(state)
        with torch.no_grad():
            model(*Transformer.batch(torch.Generator()))
        assert is_whole(model.state_dict(), state)


@check
def a_failing_body_restores_the_type() -> None:
    model, second = sharded(), sharded(seed=1)
    default = runtime.get_state_dict_type(model)
    assert default == fsdp.StateDictSettings(
        fsdp.StateDictType.FULL_STATE_DICT,
        fsdp.FullStateDictConfig(),
        fsdp.FullOptimStateDictConfig(),
    )
    config = runtime.ShardedStateDictConfig(offload_to_cpu=True)
    assert runtime.set_state_dict_type(model, SHARDED, config) == default
    with state_dict_type(model, FULL):
        assert runtime.get_state_dict_type(model).state_dict_type == FULL
        assert runtime.get_state_dict_type(second) == default
        assert is_whole(second.state_dict(), whole(second))  # a second model has its own
    with pytest.raises(ZeroDivisionError), state_dict_type(model, FULL):
        assert is_whole(model.state_dict(), whole(model)) / 0
    settings = runtime.get_state_dict_type(model)
    assert settings.state_dict_type == SHARDED
    assert settings.state_dict_config is config
    refused = pytest.raises(runtime.UnsupportedInFSDP2, match="LOCAL_STATE_DICT")
    with state_dict_type(model, StateDictType.LOCAL_STATE_DICT), refused:
        model.state_dict()
    assert runtime.get_state_dict_type(model) == settings
    runtime.set_state_dict_type(model.blocks[0], FULL)
    with pytest.raises(AssertionError, match="same state dict settings"):
        runtime.get_state_dict_type(model)
    previous = runtime.set_state_dict_type(second, SHARDED)
    runtime.set_state_dict_type(
        second,
        previous.state_dict_type,
        previous.state_dict_config,
        previous.optim_state_dict_config,
    )
    assert is_whole(second.state_dict(), whole(second))


@check
def torchs_functions_follow_their_own_options() -> None:
    model = sharded(Tied)
    optimizer = adam(model)
    train(model, optimizer, Tied)
    holder = Holder(model)
    expected = whole(model)
    full = StateDictOptions(full_state_dict=True)
    rank0 = runtime.FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    for settings in ((FULL, rank0), (SHARDED, None)):
        runtime.set_state_dict_type(model, *settings)
        assert is_whole(get_model_state_dict(model, options=full), expected)
        assert isinstance(get_model_state_dict(model)["embed.weight"], DTensor)
        assert isinstance(get_model_state_dict(holder)["inner.embed.weight"], DTensor)
        states = get_optimizer_state_dict(model, optimizer)["state"]
        assert isinstance(states["embed.weight"]["exp_avg"], DTensor)
        other = sharded(Tied, seed=1)
        runtime.set_state_dict_type(other, *settings)
        set_model_state_dict(other, get_model_state_dict(model, options=full), options=full)
        assert is_whole(whole(other), expected)
        set_model_state_dict(other, get_model_state_dict(sharded(Tied)))
        assert is_whole(whole(other), whole(sharded(Tied)))


def states_equal(ours: States, theirs: States) -> bool:
    return ours.keys() == theirs.keys() and all(
        ours[name].keys() == theirs[name].keys()
        and all(torch.equal(ours[name][key], theirs[name][key]) for key in ours[name])
        for name in ours
    )


@check
def optimizer_states_are_as_fsdp1_has_them() -> None:
    torch_fsdp = fsdp.FullyShardedDataParallel
    with checkpoints_on_cpu():
        theirs = fsdp1(use_orig_params=True)
        their_optimizer = adam(theirs)
        train(theirs, their_optimizer)
    model = sharded()
    optimizer = adam(model)
    train(model, optimizer)
    for rank0_only in (False, True):
        config = runtime.FullOptimStateDictConfig(rank0_only=rank0_only)
        runtime.set_state_dict_type(model, FULL, None, config)
        their_config = fsdp.FullOptimStateDictConfig(rank0_only=rank0_only)
        with checkpoints_on_cpu():
            kind = fsdp.StateDictType.FULL_STATE_DICT
            torch_fsdp.set_state_dict_type(theirs, kind, None, their_config)
            expected = [
                torch_fsdp.optim_state_dict(theirs, their_optimizer),
                torch_fsdp.full_optim_state_dict(theirs, their_optimizer, rank0_only=rank0_only),
            ]
        found = [
            runtime.optim_state_dict(model, optimizer),
            runtime.full_optim_state_dict(model, optimizer, rank0_only=rank0_only),
        ]
        for ours, other in zip(found, expected, strict=True):
            assert ours.keys() == other.keys()
            assert bool(ours) == (not rank0_only or dist.get_rank() == 0)
            if ours:
                assert states_equal(ours["state"], other["state"])
                assert ours["param_groups"] == other["param_groups"]
    if dist.get_rank() == 0:
        torch.manual_seed(0)
        plain = Transformer()
        ours = theirs_rekeyed = found[0]
        for key_type in ("PARAM_ID", "PARAM_NAME"):
            kind = getattr(runtime.OptimStateKeyType, key_type)
            ours = runtime.rekey_optim_state_dict(ours, kind, plain)
            kind = getattr(TORCH_KEY_TYPE, key_type)
            theirs_rekeyed = torch_fsdp.rekey_optim_state_dict(theirs_rekeyed, kind, plain)
            assert ours["state"].keys() == theirs_rekeyed["state"].keys()
            assert ours["param_groups"] == theirs_rekeyed["param_groups"]
    del theirs, their_optimizer
    gc.collect()


TORCH_KEY_TYPE = fsdp.fully_sharded_data_parallel.OptimStateKeyType


@check
def converting_optimizer_states_changes_nothing() -> None:
    model = sharded()
    optimizer = adam(model)
    saved = runtime.optim_state_dict(model, optimizer)
    assert saved["state"] == {}
    assert not optimizer.state  # torch's functions step here
    train(model, optimizer)
    for kind in (FULL, SHARDED):
        runtime.set_state_dict_type(model, kind)
        saved = runtime.optim_state_dict(model, optimizer)
        kept = copy.deepcopy(saved)
        train(model, optimizer)
        runtime.optim_state_dict_to_load(model, optimizer, saved, load_directly=True)
        train(model, optimizer)
        assert saved["param_groups"] == kept["param_groups"]
        for name, state in saved["state"].items():
            for key, value in state.items():
                same = value == kept["state"][name][key]
                assert bool((same.full_tensor() if isinstance(same, DTensor) else same).all())
        assert optimizer.state[model.norm.bias]["step"] == saved["state"]["norm.bias"]["step"] + 2


@check
def only_the_first_rank_needs_what_is_scattered() -> None:
    model = sharded()
    optimizer = adam(model)
    train(model, optimizer)
    saved = runtime.full_optim_state_dict(model, optimizer)
    assert bool(saved) == (dist.get_rank() == 0)
    expected = {name: dict(optimizer.state[p]) for name, p in named(model.named_parameters())}
    for group in (None, dist.new_group()):
        loaded = runtime.scatter_full_optim_state_dict(
            saved or None, model, optim=optimizer, group=group
        )
        optimizer.load_state_dict(loaded)
        for name, parameter in named(model.named_parameters()):
            for key, value in optimizer.state[parameter].items():
                assert value.device == parameter.device
                assert torch.equal(
                    value.to_local() if isinstance(value, DTensor) else value,
                    expected[name][key].to_local() if key != "step" else expected[name][key],
                )
    with pytest.raises(ValueError, match="has no 'state'"):
        runtime.scatter_full_optim_state_dict(None, model, optim=optimizer)
