"""What is checked without FSDP1 beside it: the runtime's own functions. Each check asserts for itself, on every rank."""

import dataclasses
import math
import warnings
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from fsdp_migrate import runtime
from fsdp_migrate.runtime import FullyShardedDataParallel, changed
from fsdp_migrate.runtime.gradients import is_unreduced

from .areas.common import Block, batches, net, train
from .areas.tensor_parallel import (
    by_rows,
    in_units,
    one_layer,
    parallel,
    trained,
    two_by_two,
    two_layers,
)

Check = Callable[[], None]
CHECKS: dict[str, tuple[int, Check]] = {}  # with the number of ranks


def check(ranks: int = 2) -> Callable[[Check], Check]:
    def register(function: Check) -> Check:
        CHECKS[function.__name__] = ranks, function
        return function

    return register


def tiny() -> nn.Module:
    """Row counts of 1, 2 and 3: some ranks get an empty shard."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1), nn.Linear(1, 2))


def same_on_all_ranks(tensor: torch.Tensor) -> bool:
    gathered = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, tensor.contiguous())
    return all(torch.equal(gathered[0], other) for other in gathered)


def whole_gradients(model: nn.Module) -> list[torch.Tensor]:
    found = [p.grad for p in model.parameters()]
    return [g.full_tensor() if isinstance(g, DTensor) else g.clone() for g in found]


def backward(model: nn.Module) -> nn.Module:
    model(*batches(1)).square().sum().backward()
    return model


@check()
def norms_with_empty_shards() -> None:
    model = backward(FullyShardedDataParallel(tiny()))
    whole = whole_gradients(model)
    for norm_type in (1.0, 2.0, 3.0, math.inf):
        expected = torch.linalg.vector_norm(torch.cat([g.flatten() for g in whole]), norm_type)
        norm = runtime.clip_grad_norm_(model, 1e9, norm_type)
        assert type(norm) is torch.Tensor
        assert torch.allclose(norm, expected, rtol=1e-6), (norm_type, norm, expected)
        assert same_on_all_ranks(norm)
    norm = runtime.clip_grad_norm_(model.parameters(), 0.1, 2)
    for before, after in zip(whole, whole_gradients(model), strict=True):
        assert torch.allclose(after, before * (0.1 / (norm + 1e-6)), rtol=1e-5, atol=1e-9)


@check()
def norms_where_a_rank_has_no_gradients() -> None:
    model = backward(FullyShardedDataParallel(tiny()))
    if dist.get_rank() == 1:
        model.zero_grad()
    norm = runtime.clip_grad_norm_(model, 1.0)
    assert norm > 0
    assert same_on_all_ranks(norm)


@check()
def no_sync_is_left_to_ddp() -> None:
    model = DistributedDataParallel(tiny())
    with runtime.no_sync(model):
        assert model.require_backward_grad_sync is False
    assert model.require_backward_grad_sync is True


@check()
def no_sync_reaches_units_of_a_plain_module() -> None:
    model = tiny()
    fully_shard(model[0])
    with runtime.no_sync(model):
        backward(model)
    assert is_unreduced(model[0].weight.grad)
    backward(model)
    assert not is_unreduced(model[0].weight.grad)


@check()
def cast_buffers_are_loaded() -> None:
    precision = runtime.MixedPrecision(param_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)
    for broadcast in (False, True):
        model = FullyShardedDataParallel(net(), mixed_precision=precision)
        model(*batches(1))
        options = StateDictOptions(full_state_dict=True)
        state = get_model_state_dict(model, options=options)
        state = {name: torch.full_like(value, 0.5) for name, value in state.items()}
        options.broadcast_from_rank0 = broadcast
        given = state if not broadcast or dist.get_rank() == 0 else {}
        set_model_state_dict(model, given, options=options)
        assert model.scale.dtype is torch.bfloat16
        assert (model.scale == 0.5).all()
        assert all((p.full_tensor() == 0.5).all() for p in model.parameters())


@check(ranks=4)
def hybrid_over_one_shard_synchronizes() -> None:
    """Where FSDP1 falls back to no communication at all (pytorch#154888)."""
    mesh = init_device_mesh("cpu", (4, 1), mesh_dim_names=("replicate", "shard"))
    model = FullyShardedDataParallel(tiny(), sharding_strategy="HYBRID_SHARD", device_mesh=mesh)
    assert all(map(same_on_all_ranks, whole_gradients(backward(model))))


@check(ranks=4)
def norms_of_tensor_parallel_models() -> None:
    """Over all ranks, as without sharding, with a word on it: FSDP1's were those of parts."""
    from in_place import BRIDGE, IN_PLACE  # ranks run in tests/, pytest does not

    for api, make in product((BRIDGE, IN_PLACE), (parallel, in_units, one_layer)):
        changed._SAID.clear()
        mesh = two_by_two()
        model: Any = make(api, mesh, sync_module_states=True)
        alone = net() if make is not one_layer else nn.Sequential(nn.Linear(4, 6, bias=False))
        with runtime.summon_full_params(model):
            values = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
        for parameter, value in zip(alone.parameters(), values, strict=True):
            parameter.data = value.clone()
        for each in (model, alone):
            each(torch.ones(2, 4)).square().sum().backward()
        expected = torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.1)
        with pytest.warns(runtime.ChangedFromFSDP1, match="FSDP302"):
            norm = model.clip_grad_norm_(0.1)
        assert torch.allclose(norm, expected, rtol=1e-5)
        for parameter, own in zip(model.parameters(), alone.parameters(), strict=True):
            assert torch.allclose(parameter.grad.full_tensor(), own.grad, rtol=1e-4, atol=1e-7)


@check(ranks=4)
def states_of_tensor_parallel_models_load() -> None:
    """What is whole over FSDP's ranks, or over all of them, goes into models and optimizers; FSDP1 took no optimizer's."""
    from in_place import BRIDGE, IN_PLACE  # ranks run in tests/, pytest does not

    for api, make in product((BRIDGE, IN_PLACE), (parallel, in_units, one_layer)):
        mesh = two_by_two()
        model: Any = make(api, mesh)
        optimizer = trained(model, mesh)
        states = api.FSDP.optim_state_dict(model, optimizer)
        again = torch.optim.Adam(model.parameters(), lr=0.05)
        again.load_state_dict(api.FSDP.optim_state_dict_to_load(model, again, states))
        for parameter, state in optimizer.state.items():
            assert torch.equal(
                again.state[parameter]["exp_avg"].to_local(), state["exp_avg"].to_local()
            )
        state = model.state_dict()
        whole = {k: v.full_tensor() if isinstance(v, DTensor) else v for k, v in state.items()}
        before = [p.to_local().clone() for p in model.parameters()]
        for given in (state, whole):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.to_local().zero_()
            model.load_state_dict(given)
            now = [p.to_local() for p in model.parameters()]
            assert all(map(torch.equal, before, now))


@check(ranks=4)
def forward_inside_of_summon_under_tensor_parallelism() -> None:
    """Runs on the whole parameters, with what is changed there; FSDP1's gathered them again, or failed."""
    from in_place import BRIDGE, IN_PLACE  # ranks run in tests/, pytest does not

    for api, make in product((BRIDGE, IN_PLACE), (one_layer, by_rows, two_layers, in_units)):
        mesh = two_by_two()
        model: Any = make(api, mesh)
        x = torch.ones(2, 4)
        before = model(x)
        with runtime.summon_full_params(model):
            same = model(x)
            for parameter in model.parameters():
                parameter.data.mul_(0.5)
            inside = model(x)
        assert torch.allclose(before, same)
        assert not torch.allclose(before, inside)
        assert torch.allclose(inside, model(x))


@check()
def broadcast_gives_every_rank_the_first_ones_states() -> None:
    model = net()
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data.fill_(dist.get_rank())
    fully_shard(model.stem)  # a unit below keeps what it has
    runtime.broadcast_module_states(model)
    assert model.stem.bias.full_tensor().tolist() == [0, 0, 0, 1, 1, 1]
    others = [p for p in model.parameters() if not isinstance(p, DTensor)]
    assert all((tensor == 0).all() for tensor in (*others, *model.buffers()))


@check()
def broadcast_refuses_meta_tensors() -> None:
    with torch.device("meta"):
        model = tiny()
    with pytest.raises(ValueError, match="meta device"):
        runtime.broadcast_module_states(model)


@check()
def a_change_that_fsdp1_would_not_show_is_told() -> None:
    """After an evaluation the root's parameters stay gathered, and FSDP1 shows what it gathered."""
    from in_place import BRIDGE, IN_PLACE  # ranks run in tests/, pytest does not

    for api, when in product((BRIDGE, IN_PLACE), ("state_dict", "apply")):
        changed._SAID.clear()
        model: Any = api.FSDP(net(), use_orig_params=True)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("error")
            model(torch.ones(2, 4))
            model.state_dict()  # nothing was changed
            model(torch.ones(2, 4))
            model.head.bias.mul_(0.5)
        read = model.state_dict if when == "state_dict" else partial(model.apply, id)
        with pytest.warns(runtime.ChangedFromFSDP1, match="was changed after a forward"):
            read()


@check()
def older_optimizers_train_parallel_parameters() -> None:
    """Where FSDP1 trains nothing of them, with a warning."""
    from in_place import BRIDGE, IN_PLACE  # ranks run in tests/, pytest does not

    from .areas.parallel_optimizers import parallel

    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
    for api in (BRIDGE, IN_PLACE):
        changed._SAID.clear()
        net = parallel(mesh)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        older = [*net.parameters()]
        with pytest.warns(
            runtime.ChangedFromFSDP1, match="an optimizer that was created before sharding"
        ):
            model: Any = api.FSDP(net, device_mesh=mesh["dp"], use_orig_params=True)
        assert [*model.parameters()] == optimizer.param_groups[0]["params"]
        later = torch.optim.SGD(older, lr=0.1)
        assert later.param_groups[0]["params"] == optimizer.param_groups[0]["params"]
        with pytest.raises(runtime.StaleParameter):
            older[0].sum()


@check()
def ranks_in_another_order_raise_with_original_parameters() -> None:
    """Where FSDP1 fails with a KeyError, on its way to this error."""
    from in_place import BRIDGE, IN_PLACE  # ranks run in tests/, pytest does not

    from .areas.order_of_execution import SAME, SWAPPED, Ordered, in_detail

    for api in (BRIDGE, IN_PLACE):
        model: Any = api.FSDP(
            Ordered(), auto_wrap_policy=runtime.ModuleWrapPolicy({Block}), use_orig_params=True
        )
        order = (SAME, SWAPPED)[dist.get_rank()]
        with (
            in_detail(),
            pytest.raises(RuntimeError, match="rank 0 is all-gathering parameters for"),
        ):
            model(torch.ones(2, 4), order)


@check()
def gradients_that_fsdp1_did_not_drop_are_told() -> None:
    """It adds to those of before where a unit stays gathered, and `zero_grad` comes after forward."""
    from in_place import BRIDGE, IN_PLACE  # ranks run in tests/, pytest does not

    cases = product((BRIDGE, IN_PLACE), ("SHARD_GRAD_OP", "FULL_SHARD"), (True, False))
    for (api, strategy, original), drops in product(cases, ("before", "after")):
        changed._SAID.clear()
        model: Any = api.FSDP(net(), sharding_strategy=strategy, use_orig_params=original)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in batches(2):
            if drops == "before":
                optimizer.zero_grad()
            loss = model(x).square().mean()
            if drops == "after":
                optimizer.zero_grad()
            loss.backward()
        is_told = strategy == "SHARD_GRAD_OP" and original and drops == "after"
        assert [each["code"] for each in changed.said()] == ["FSDP102"] * is_told


@check()
def compiling_first_or_last_trains_the_same() -> None:
    """And breaks graphs where `fully_shard` alone does."""
    from in_place import ALONE, BRIDGE, IN_PLACE  # ranks run in tests/, pytest does not

    losses, breaks = [], []
    forms = (ALONE, BRIDGE, IN_PLACE)
    for api, when in ((ALONE, "never"), *product(forms, ("first", "last"))):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        model: nn.Module = net()
        if when == "first":
            model = torch.compile(model, backend="eager")
        model = api.FSDP(
            model, auto_wrap_policy=runtime.ModuleWrapPolicy({Block}), use_orig_params=True
        )
        assert sum(isinstance(each, FSDPModule) for each in model.modules()) == 3
        if when == "last":
            model = torch.compile(model, backend="eager")
        losses.append(train(model))
        breaks.append(torch._dynamo.utils.counters["graph_break"].total())
    assert all(each == losses[0] for each in losses)
    assert breaks[1:3] == breaks[3:5] == breaks[5:]


@check()
def a_compiled_model_in_place_trains_the_same() -> None:
    """Its units gather, torch's own layers among them."""
    from in_place import IN_PLACE  # ranks run in tests/, pytest does not

    policy = runtime.ModuleWrapPolicy({Block, nn.Linear})
    model, compiled = (IN_PLACE.FSDP(net(), auto_wrap_policy=policy) for _ in range(2))
    torch._dynamo.reset()
    assert train(torch.compile(compiled, backend="eager")) == train(model)


@check()
def local_shards_are_views_of_what_they_are_of() -> None:
    model = fully_shard(nn.Linear(6, 5))
    local = runtime.local_shard(model.weight.data)
    assert type(local) is torch.Tensor
    sizes = [0, 0]
    dist.all_gather_object(sizes, local.numel())
    assert sum(sizes) == model.weight.numel()
    local.fill_(3)
    assert (model.weight.full_tensor() == 3).all()
    tensor = torch.ones(2)
    assert runtime.local_shard(tensor) is tensor


@check()
def a_batch_norm_in_low_precision_is_refused() -> None:
    policy = MixedPrecisionPolicy(torch.bfloat16)

    def shard(prepare: Callable[[nn.Module], object]) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        prepare(model[1])
        with runtime.like_fsdp1(model):
            fully_shard(model[0], mp_policy=dataclasses.replace(policy, cast_forward_inputs=False))
            fully_shard(model, mp_policy=policy)

    shard(runtime.run_in_full_precision)
    with pytest.raises(ValueError, match="FSDP213"):
        shard(id)


@check()
def nothing_is_called_deprecated() -> None:
    """FSDP1's own advice to leave it is not repeated: the program has done so."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        for strategy in (runtime.ShardingStrategy.FULL_SHARD, runtime.ShardingStrategy.NO_SHARD):
            model = FullyShardedDataParallel(tiny(), sharding_strategy=strategy)
            optimizer = torch.optim.Adam(model.parameters())
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            with runtime.state_dict_type(model, runtime.StateDictType.FULL_STATE_DICT):
                model.load_state_dict(model.state_dict())
            given = list(model.parameters())
            state = runtime.full_optim_state_dict(model, optimizer, given, rank0_only=False)
            runtime.shard_full_optim_state_dict(state, model, given)
            runtime.rekey_optim_state_dict(state, runtime.OptimStateKeyType.PARAM_ID, model, given)
