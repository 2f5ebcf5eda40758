"""`state_dict`, `load_state_dict` and the types of state dicts."""

from __future__ import annotations

import copy
import io
import shutil
import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh

from ..registry import cannot, holds
from .common import (
    Block,
    Tied,
    batches,
    blocks_by_hand,
    cloned,
    close,
    enter,
    error,
    full,
    in_blocks,
    initial,
    layers,
    net,
    said,
    state_of,
    train,
)


def other(api: Any, **options: Any) -> Any:
    """A model with other values."""
    model = in_blocks(api, **options)
    with api.FSDP.summon_full_params(model), torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.125)
    return model


def settings(found: Any) -> list[Any]:
    """A StateDictSettings as text: its type and its two configurations."""
    return [
        found.state_dict_type.name,
        repr(found.state_dict_config),
        repr(found.optim_state_dict_config),
    ]


@holds()
def keys_and_values(api: Any) -> Any:
    """By default, and with FULL_STATE_DICT, `state_dict` gives whole tensors under the names of the wrapped model, without
    the buffers that do not persist."""
    results = []
    for use_orig_params in (True, False):
        model, plain = in_blocks(api, use_orig_params=use_orig_params), net().state_dict()
        for state in (model.state_dict(), state_of(api, model, "FULL_STATE_DICT")):
            assert list(state) == list(plain)
            assert "cache" not in state
            assert all(torch.equal(state[name], plain[name]) for name in plain)
            results.append((type(state).__name__, cloned(state)))
    return results


@holds()
def no_shard(api: Any) -> Any:
    """NO_SHARD gives whole tensors, to all ranks, whatever the type and its settings, and a warning says so."""
    model = in_blocks(api, sharding_strategy=api.ShardingStrategy.NO_SHARD)
    states: list[Any] = []
    texts = said(lambda: states.append(model.state_dict()))
    with api.FSDP.state_dict_type(model, api.StateDictType.SHARDED_STATE_DICT):
        states.append(model.state_dict())
    config = api.FullStateDictConfig(rank0_only=True)
    with api.FSDP.state_dict_type(model, api.StateDictType.FULL_STATE_DICT, config):
        states.append(model.state_dict())
    assert [type(t).__name__ for t in states[1].values()] == ["Tensor"] * len(states[2])
    return [text for text in texts if "NO_SHARD" in text], states


@holds()
def rank0_only(api: Any) -> Any:
    """`rank0_only` gives rank 0 everything and the others nothing, but for what belongs to no unit."""
    config = api.FullStateDictConfig(rank0_only=True, offload_to_cpu=True)
    state = state_of(api, in_blocks(api), "FULL_STATE_DICT", config)
    assert (len(state) == 0) == (dist.get_rank() != 0)
    assert all(t.device.type == "cpu" for t in state.values())
    below = state_of(api, blocks_by_hand(api), "FULL_STATE_DICT", config)
    assert "stem.weight" in below
    return dict(state), sorted(below)


@holds()
def a_plain_root(api: Any) -> Any:
    """A module that is no unit gives the whole tensors of the units in it, and takes them."""
    model, again = net(), net()
    for each in (model, again):
        for i, block in enumerate(each.blocks):
            each.blocks[i] = api.FSDP(block)
    losses = train(model, torch.optim.SGD(model.blocks.parameters(), lr=0.1))
    state = model.state_dict()
    again.load_state_dict(state)
    assert close(full(api, model), full(api, again))
    return losses, list(state), cloned(state)


@holds()
def loading(api: Any) -> Any:
    """`load_state_dict` brings back parameters and buffers, of a model that was trained."""
    for options in ({}, {"cpu_offload": api.CPUOffload(offload_params=True)}):
        model, again = in_blocks(api, **options), other(api, **options)
        train(model)
        model.scale.fill_(0.75)
        result = again.load_state_dict(model.state_dict())
        assert close(full(api, model), full(api, again))
        assert again.scale.tolist() == [0.75] * 3
    return str(result), full(api, again), train(again)


@holds()
def loading_after_backward(api: Any) -> Any:
    """A model that has gradients can save and load too."""
    model, again = in_blocks(api), other(api)
    for each in (model, again):
        each(*batches(1)).sum().backward()
    again.load_state_dict(model.state_dict())
    assert close(full(api, model), full(api, again))
    return full(api, again), again(*batches(1)).detach()


@holds()
def loading_into_another(api: Any) -> Any:
    """A model without FSDP takes the state, and gives one; so does a model of other units, and one that reads what
    `torch.save` wrote."""
    model, file = in_blocks(api), io.BytesIO()
    train(model)
    torch.save(model.state_dict(), file)
    file.seek(0)
    plain = net()
    plain.load_state_dict(model.state_dict())
    assert close(full(api, model), {n: p.detach() for n, p in plain.named_parameters()})
    policy = api.wrap.always_wrap_policy
    for again, state in (
        (other(api), torch.load(file)),
        (other(api), plain.state_dict()),
        (api.FSDP(net(), auto_wrap_policy=policy), model.state_dict()),
    ):
        again.load_state_dict(state)
        assert close(full(api, model), full(api, again))
    return full(api, model)


@holds()
def missing_and_unexpected_keys(api: Any) -> Any:
    """Missing and unexpected keys are an error, or with `strict=False` the result, by their clean names; a tensor of
    another shape is an error that names it."""
    model = in_blocks(api)
    state = {**model.state_dict(), "more": torch.ones(1)}
    del state["blocks.0.up.bias"], state["head.weight"]
    result = model.load_state_dict(state, strict=False)
    assert result.unexpected_keys == ["more"]
    assert result.missing_keys == ["blocks.0.up.bias", "head.weight"]
    texts = [error(lambda: model.load_state_dict(state))]
    assert "blocks.0.up.bias" in texts[0]
    other_shape = {**model.state_dict(), "head.bias": torch.ones(5)}
    texts.append(error(lambda: model.load_state_dict(other_shape)))
    assert "head.bias" in texts[1]
    return [text.split(":")[0] for text in texts]


@holds()
def prefixes(api: Any) -> Any:
    """`prefix` comes before every name; `destination` is filled and given back."""
    model, place = in_blocks(api), {"own": torch.ones(1)}
    state = model.state_dict(prefix="before.")
    assert all(name.startswith("before.") for name in state)
    assert model.state_dict(destination=place) is place
    return list(state), list(place)


@holds()
def the_state_of_a_unit(api: Any) -> Any:
    """A unit inside of a model has a state of its own, and takes it."""
    model, again = in_blocks(api), other(api)
    train(model)
    state = model.blocks[0].state_dict()
    assert list(state) == ["up.weight", "up.bias", "down.weight", "down.bias"]
    again.blocks[0].load_state_dict(state)
    return cloned(state), full(api, again)


@holds()
def the_state_of_the_wrapped_module(api: Any) -> Any:
    """`model.module.state_dict()` has the names of the parameters below the root, those of inner units whole."""
    model = in_blocks(api)
    state = model.module.state_dict()
    inner = {n: t.clone() for n, t in state.items() if n.startswith("blocks.")}
    assert len(inner) == 8
    return list(state), inner


@holds()
def ignored_parameters(api: Any) -> Any:
    """Ignored parameters and buffers are in the state as they are, in the same memory."""
    model = net()
    head = model.head
    model = in_blocks(api, model, ignored_modules=[head])
    for _ in range(2):
        state = model.state_dict()
        assert state["head.weight"].data_ptr() == head.weight.data_ptr()
        assert state["scale"].data_ptr() == model.scale.data_ptr()
    return list(state), state["head.weight"].clone()


@holds()
def the_state_is_a_copy(api: Any) -> Any:
    """What was saved does not change while the model trains on; it can be deep-copied and loaded again."""
    model = in_blocks(api)
    state = model.state_dict()
    saved, copied = cloned(state), copy.deepcopy(state)
    train(model)
    state, saved = ({n: t for n, t in s.items() if n != "scale"} for s in (state, saved))
    assert close(state, saved)
    model.load_state_dict(copied)
    assert close(full(api, model), initial())
    return saved, full(api, model)


@holds()
def saving_does_not_disturb(api: Any) -> Any:
    """Saving between forward and backward, and between steps, does not change the training."""
    model, plain = in_blocks(api), in_blocks(api)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for x in batches(2):
        optimizer.zero_grad()
        model.state_dict()
        loss = model(x).pow(2).mean()
        losses.append(loss.item())
        loss.backward()
        model.state_dict()
        optimizer.step()
    assert losses == train(plain)
    return losses, full(api, model)


@holds()
def optimizers_go_on_after_loading(api: Any) -> Any:
    """After loading, its own state or another, a model goes on training, with the same optimizer."""
    results = []
    for own in (True, False):
        model = in_blocks(api)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        losses = train(model, optimizer)
        model.load_state_dict((model if own else net()).state_dict())
        losses += train(model, optimizer)
        assert not close(full(api, model), initial())
        results.append((losses, full(api, model)))
    return results


@holds()
def tied_parameters(api: Any) -> Any:
    """Tied parameters are in the state under both names, and load."""
    torch.manual_seed(1)
    model, again = in_blocks(api, Tied()), in_blocks(api, Tied())
    state = model.state_dict()
    assert torch.equal(state["embed.weight"], state["out.weight"])
    again.load_state_dict(state)
    assert close(full(api, model), full(api, again))
    return cloned(state)


@holds()
def shared_modules(api: Any) -> Any:
    """A module that is registered twice in a unit, and a parameter that is, are there under both names."""

    shared = layers(lambda m, x: m.second(m.first(x)), first=(4, 4))
    shared.second = shared.first
    shared.one = shared.two = nn.Parameter(torch.ones(3))
    state = api.FSDP(shared).state_dict()
    assert torch.equal(state["first.weight"], state["second.weight"])
    assert torch.equal(state["one"], state["two"])
    return cloned(state)


@holds()
def activation_checkpoints(api: Any) -> Any:
    """Activation checkpoint wrappers do not show in the names, whether they were put on before or after."""
    names = []
    for after in (False, True):
        model = net()
        if after:
            model = in_blocks(api, model)
        apply_activation_checkpointing(model, check_fn=lambda m: type(m) is nn.Linear)
        if not after:
            model = in_blocks(api, model)
        state = model.state_dict()
        assert list(state) == list(net().state_dict())
        model.load_state_dict(state)
        names.append(list(state))
    return names


@holds()
def sharded_type(api: Any) -> Any:
    """SHARDED_STATE_DICT has the same names and shapes, and loads."""
    model, again = in_blocks(api), other(api)
    train(model)
    state = state_of(api, model, "SHARDED_STATE_DICT")
    with api.FSDP.state_dict_type(again, api.StateDictType.SHARDED_STATE_DICT):
        result = again.load_state_dict(state)
    assert close(full(api, model), full(api, again))
    return (
        str(result),
        [(n, tuple(t.size()), str(t.dtype)) for n, t in state.items()],
        full(api, again),
    )


@holds()
def sharded_type_below_a_plain_root(api: Any) -> Any:
    """SHARDED_STATE_DICT of a module that is no unit shards the units in it only."""
    model = blocks_by_hand(api)
    with api.FSDP.state_dict_type(model, api.StateDictType.SHARDED_STATE_DICT):
        state = model.state_dict()
        model.load_state_dict(state)
    kinds = {n: type(t).__name__ for n, t in state.items()}
    assert kinds["stem.weight"] == "Tensor"
    assert kinds["blocks.0.up.weight"] != "Tensor"
    return list(state), full(api, model)


@holds()
def sharded_type_with_a_mesh(api: Any) -> Any:
    """With a device mesh the shards are DTensors."""
    model = in_blocks(api, device_mesh=init_device_mesh("cpu", (2,)))
    state = state_of(api, model, "SHARDED_STATE_DICT")
    wholes = {n: t.full_tensor() for n, t in state.items() if n != "scale"}
    assert close(wholes, full(api, model))
    found = {n: (type(t).__name__, str(getattr(t, "placements", ""))) for n, t in state.items()}
    return found, wholes


@cannot("FSDP2 shards by DTensor, which has replaced ShardedTensor in torch's checkpoints")
def sharded_type_without_a_mesh(api: Any) -> Any:
    """Without a device mesh the shards are ShardedTensors."""
    model = in_blocks(api)
    with api.FSDP.state_dict_type(model, api.StateDictType.SHARDED_STATE_DICT):
        return {name: type(t).__name__ for name, t in model.state_dict().items()}


@holds()
def local_type_may_be_set(api: Any) -> Any:
    """A model on which LOCAL_STATE_DICT is set saves in the context of another type."""
    model, types = in_blocks(api), api.StateDictType
    api.FSDP.set_state_dict_type(model, types.LOCAL_STATE_DICT)
    with api.FSDP.state_dict_type(model, types.FULL_STATE_DICT):
        state = model.state_dict()
        model.load_state_dict(state)
    return state, settings(api.FSDP.get_state_dict_type(model))


@cannot("FSDP2 has no flat parameters, of which these state dicts are made", refusal="FSDP334")
def local_type(api: Any) -> Any:
    """LOCAL_STATE_DICT gives this rank's part of each flat parameter."""
    model = in_blocks(api, use_orig_params=False)
    with api.FSDP.state_dict_type(model, api.StateDictType.LOCAL_STATE_DICT):
        return list(model.state_dict())


@holds()
def a_type_lasts_for_its_context(api: Any) -> Any:
    """After the context each unit has the type and configuration from before."""
    model, types = in_blocks(api), api.StateDictType
    found = [settings(api.FSDP.get_state_dict_type(model))]
    with api.FSDP.state_dict_type(model, types.SHARDED_STATE_DICT):
        found.append(settings(api.FSDP.get_state_dict_type(model)))
        found.append(settings(api.FSDP.get_state_dict_type(model.blocks[0])))
    found.append(settings(api.FSDP.get_state_dict_type(model)))
    assert found[0] == found[3] != found[1]
    return found


@holds()
def setting_a_type(api: Any) -> Any:
    """`set_state_dict_type` lasts until it is set again, and gives back what there was."""
    model, types = in_blocks(api), api.StateDictType
    config = api.FullStateDictConfig(rank0_only=True, offload_to_cpu=True)
    optimizer_config = api.FullOptimStateDictConfig(rank0_only=True, offload_to_cpu=True)
    found = [settings(api.FSDP.set_state_dict_type(model, types.SHARDED_STATE_DICT))]
    before = api.FSDP.set_state_dict_type(model, types.FULL_STATE_DICT, config, optimizer_config)
    found.append(settings(before))
    found.append(settings(api.FSDP.get_state_dict_type(model)))
    assert found[0][0] == "FULL_STATE_DICT"
    assert found[1][0] == "SHARDED_STATE_DICT"
    return found, sorted(model.state_dict())


@holds()
def types_on_instances(api: Any) -> Any:
    """The methods about types can be called on a model too, with the model as the argument."""
    model, types = in_blocks(api), api.StateDictType
    with model.state_dict_type(model, types.SHARDED_STATE_DICT):
        inside = settings(model.get_state_dict_type(model))
    model.set_state_dict_type(model, types.FULL_STATE_DICT)
    return inside, settings(model.get_state_dict_type(model))


@holds()
def a_type_for_part_of_a_model(api: Any) -> Any:
    """A type can be set for one unit; then the model as a whole has none, which is an error."""
    model, types = in_blocks(api), api.StateDictType
    api.FSDP.set_state_dict_type(model.blocks[0], types.SHARDED_STATE_DICT)
    own = settings(api.FSDP.get_state_dict_type(model.blocks[0]))
    return (
        own,
        error(lambda: api.FSDP.get_state_dict_type(model)).split(":")[0],
        error(lambda: api.FSDP.set_state_dict_type(model, types.FULL_STATE_DICT)),
    )


@holds()
def the_wrong_configuration(api: Any) -> Any:
    """A configuration of another type is an error."""
    model, types = in_blocks(api), api.StateDictType
    wrong = api.ShardedStateDictConfig()
    for_optimizers = api.ShardedOptimStateDictConfig()
    texts = [
        error(lambda: enter(api.FSDP.state_dict_type(model, types.FULL_STATE_DICT, wrong))),
        error(
            lambda: enter(
                api.FSDP.state_dict_type(model, types.FULL_STATE_DICT, None, for_optimizers)
            )
        ),
    ]
    assert "Expected state_dict_config of type" in texts[0]
    assert "Expected optim_state_dict_config of type" in texts[1]
    return [text.split(" of type")[0] for text in texts]


@holds()
def a_model_without_units(api: Any) -> Any:
    """A model without units has no type; setting one gives back none."""
    model = net()
    assert api.FSDP.get_state_dict_type(model) is None
    before = api.FSDP.set_state_dict_type(model, api.StateDictType.SHARDED_STATE_DICT)
    return before.state_dict_type, {n: type(t).__name__ for n, t in model.state_dict().items()}


@holds()
def torchs_state_dict_functions(api: Any) -> Any:
    """`get_model_state_dict` gives clean names and whole tensors, or without options shards, of which the type differs, and
    `set_model_state_dict` takes them."""
    model = in_blocks(api)
    train(model)
    for options in (None, StateDictOptions(full_state_dict=True)):
        again = other(api)
        state = get_model_state_dict(model, options=options)
        assert list(state) == list(net().state_dict())
        saved = cloned(state)
        set_model_state_dict(again, state, options=options)  # of FSDP2 it changes what it is given
        assert close(full(api, model), full(api, again))
    return saved


@holds()
def hooks_of_the_wrapped_module(api: Any) -> Any:
    """A subclass of a module that changes its own state dict is asked."""

    class Renaming(Block):
        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            found = super().state_dict(*args, **kwargs)
            found[kwargs.get("prefix", "") + "version"] = torch.tensor(2)
            return found

    torch.manual_seed(1)
    model = api.FSDP(Renaming(4))
    return sorted(model.state_dict())


@holds()
def registered_hooks(api: Any) -> Any:
    """State dict hooks that are registered on units and on modules in them run."""
    model = in_blocks(api)

    def add(module: nn.Module, state: Any, prefix: str, metadata: Any) -> None:
        state[prefix + "hooked"] = torch.ones(1)

    model.module.head.register_state_dict_post_hook(add)
    state = model.state_dict()
    assert "head.hooked" in state
    return sorted(state)


@holds()
def deprecation(api: Any) -> Any:
    """`state_dict_type` and `set_state_dict_type` warn that they are deprecated."""
    model, types = in_blocks(api), api.StateDictType
    return said(lambda: api.FSDP.set_state_dict_type(model, types.FULL_STATE_DICT))


@holds()
def parts_that_are_skipped(api: Any) -> Any:
    """A part that is attached after wrapping keeps its own entry."""
    model = net()
    head = model.head
    del model.head
    wrapped = in_blocks(api, model)
    wrapped.module.head = head
    return sorted(wrapped.state_dict()), train(wrapped)


@holds(ranks=4)
def from_four_ranks_to_two(api: Any) -> Any:
    """A state of four ranks loads into a model over two."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model = in_blocks(api)
    state = model.state_dict()
    again = other(api, process_group=pairs[dist.get_rank() // 2])
    again.load_state_dict(state)
    assert close(full(api, model), full(api, again))
    return full(api, again)


@holds(ranks=4)
def small_parameters_over_four_ranks(api: Any) -> Any:
    """Parameters with fewer rows than there are ranks are saved and loaded, whole and in shards."""
    torch.manual_seed(1)
    types = api.StateDictType
    model = api.FSDP(nn.Sequential(nn.Linear(4, 1), nn.Linear(1, 3)))
    again = api.FSDP(nn.Sequential(nn.Linear(4, 1), nn.Linear(1, 3)))
    for kind in (types.FULL_STATE_DICT, types.SHARDED_STATE_DICT):
        with api.FSDP.state_dict_type(model, kind), api.FSDP.state_dict_type(again, kind):
            again.load_state_dict(model.state_dict())
        assert close(full(api, model), full(api, again))
        with api.FSDP.summon_full_params(again), torch.no_grad():
            for parameter in again.parameters():
                parameter.zero_()
    return full(api, model)


@holds()
def one_rank(api: Any) -> Any:
    """Over a group of one rank whole and sharded states are whole tensors, and load."""
    types = api.StateDictType
    mine = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    model, again = in_blocks(api, process_group=mine), other(api, process_group=mine)
    train(model)
    kinds = []
    for kind in (types.FULL_STATE_DICT, types.SHARDED_STATE_DICT):
        with api.FSDP.state_dict_type(model, kind), api.FSDP.state_dict_type(again, kind):
            state = model.state_dict()
            again.load_state_dict(state)
        kinds.append({type(t).__name__ for t in state.values()})
        assert close(full(api, model), full(api, again))
    assert kinds == [{"Tensor"}, {"Tensor"}]
    return full(api, again)


@holds()
def distributed_checkpoints(api: Any) -> Any:
    """Sharded states are saved and loaded with torch.distributed.checkpoint."""
    types = api.StateDictType
    model, again = in_blocks(api), other(api)
    train(model)
    place = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(place)
    with api.FSDP.state_dict_type(model, types.SHARDED_STATE_DICT):
        dcp.save({"model": model.state_dict()}, checkpoint_id=place[0])
    with api.FSDP.state_dict_type(again, types.SHARDED_STATE_DICT):
        state = {"model": again.state_dict()}
        dcp.load(state, checkpoint_id=place[0])
        again.load_state_dict(state["model"])
    if dist.get_rank() == 0:
        shutil.rmtree(place[0])
    assert close(full(api, model), full(api, again))
    return full(api, again)
