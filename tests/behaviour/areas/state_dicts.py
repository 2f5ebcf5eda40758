"""`state_dict` and `load_state_dict`: whole states, their keys, and what loads them."""

import copy
import io
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)

from ..registry import holds
from . import common


def other(api: Any, **options: Any) -> Any:
    """A model with other values."""
    model = common.in_blocks(api, **options)
    with api.FSDP.summon_full_params(model), torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.125)
    return model


@holds()
def keys_and_values(api: Any) -> Any:
    """By default, and with FULL_STATE_DICT, `state_dict` gives whole tensors under the names of the wrapped model, without
    the buffers that do not persist."""
    results = []
    for use_orig_params in (True, False):
        model, plain = (
            common.in_blocks(api, use_orig_params=use_orig_params),
            common.net().state_dict(),
        )
        for state in (model.state_dict(), common.state_of(api, model, "FULL_STATE_DICT")):
            assert list(state) == list(plain)
            assert "cache" not in state
            assert all(torch.equal(state[name], plain[name]) for name in plain)
            results.append((type(state).__name__, common.cloned(state)))
    return results


@holds()
def no_shard(api: Any) -> Any:
    """NO_SHARD gives whole tensors, to all ranks, whatever the type and its settings, and a warning says so."""
    model = common.in_blocks(api, sharding_strategy=api.ShardingStrategy.NO_SHARD)
    states: list[Any] = []
    texts = common.said(lambda: states.append(model.state_dict()))
    with api.FSDP.state_dict_type(model, api.StateDictType.SHARDED_STATE_DICT):
        states.append(model.state_dict())
    config = api.FullStateDictConfig(rank0_only=True)
    with api.FSDP.state_dict_type(model, api.StateDictType.FULL_STATE_DICT, config):
        states.append(model.state_dict())
    assert [type(t).__name__ for t in states[1].values()] == ["Tensor"] * len(states[2])
    return [text for text in texts if "NO_SHARD" in text], states


@holds()
def a_plain_root(api: Any) -> Any:
    """A module that is no unit gives the whole tensors of the units in it, and takes them."""
    model, again = common.net(), common.net()
    for each in (model, again):
        for i, block in enumerate(each.blocks):
            each.blocks[i] = api.FSDP(block)
    losses = common.train(model, torch.optim.SGD(model.blocks.parameters(), lr=0.1))
    state = model.state_dict()
    again.load_state_dict(state)
    assert common.close(common.full(api, model), common.full(api, again))
    return losses, list(state), common.cloned(state)


@holds()
def loading(api: Any) -> Any:
    """`load_state_dict` brings back parameters and buffers, of a model that was trained."""
    for options in ({}, {"cpu_offload": api.CPUOffload(offload_params=True)}):
        model, again = common.in_blocks(api, **options), other(api, **options)
        common.train(model)
        model.scale.fill_(0.75)
        result = again.load_state_dict(model.state_dict())
        assert common.close(common.full(api, model), common.full(api, again))
        assert again.scale.tolist() == [0.75] * 3
    return str(result), common.full(api, again), common.train(again)


@holds()
def loading_after_backward(api: Any) -> Any:
    """A model that has gradients can save and load too."""
    model, again = common.in_blocks(api), other(api)
    for each in (model, again):
        each(*common.batches(1)).sum().backward()
    again.load_state_dict(model.state_dict())
    assert common.close(common.full(api, model), common.full(api, again))
    return common.full(api, again), again(*common.batches(1)).detach()


@holds()
def loading_into_another(api: Any) -> Any:
    """A model without FSDP takes the state, and gives one; so does a model of other units, and one that reads what
    `torch.save` wrote."""
    model, file = common.in_blocks(api), io.BytesIO()
    common.train(model)
    torch.save(model.state_dict(), file)
    file.seek(0)
    plain = common.net()
    plain.load_state_dict(model.state_dict())
    assert common.close(
        common.full(api, model), {n: p.detach() for n, p in plain.named_parameters()}
    )
    policy = api.wrap.always_wrap_policy
    for again, state in (
        (other(api), torch.load(file)),
        (other(api), plain.state_dict()),
        (api.FSDP(common.net(), auto_wrap_policy=policy), model.state_dict()),
    ):
        again.load_state_dict(state)
        assert common.close(common.full(api, model), common.full(api, again))
    return common.full(api, model)


@holds()
def missing_and_unexpected_keys(api: Any) -> Any:
    """Missing and unexpected keys are an error, or with `strict=False` the result, by their clean names; a tensor of
    another shape is an error that names it."""
    model = common.in_blocks(api)
    state = {**model.state_dict(), "more": torch.ones(1)}
    del state["blocks.0.up.bias"], state["head.weight"]
    result = model.load_state_dict(state, strict=False)
    assert result.unexpected_keys == ["more"]
    assert result.missing_keys == ["blocks.0.up.bias", "head.weight"]
    texts = [common.error(lambda: model.load_state_dict(state))]
    assert "blocks.0.up.bias" in texts[0]
    other_shape = {**model.state_dict(), "head.bias": torch.ones(5)}
    texts.append(common.error(lambda: model.load_state_dict(other_shape)))
    assert "head.bias" in texts[1]
    return [text.split(":")[0] for text in texts]


@holds()
def prefixes(api: Any) -> Any:
    """`prefix` comes before every name; `destination` is filled and given back."""
    model, place = common.in_blocks(api), {"own": torch.ones(1)}
    state = model.state_dict(prefix="before.")
    assert all(name.startswith("before.") for name in state)
    assert model.state_dict(destination=place) is place
    return list(state), list(place)


@holds()
def the_state_of_a_unit(api: Any) -> Any:
    """A unit inside of a model has a state of its own, and takes it."""
    model, again = common.in_blocks(api), other(api)
    common.train(model)
    state = model.blocks[0].state_dict()
    assert list(state) == ["up.weight", "up.bias", "down.weight", "down.bias"]
    again.blocks[0].load_state_dict(state)
    return common.cloned(state), common.full(api, again)


@holds()
def the_state_of_the_wrapped_module(api: Any) -> Any:
    """`model.module.state_dict()` has the names of the parameters below the root, those of inner units whole."""
    model = common.in_blocks(api)
    state = model.module.state_dict()
    inner = {n: t.clone() for n, t in state.items() if n.startswith("blocks.")}
    assert len(inner) == 8
    return list(state), inner


@holds()
def ignored_parameters(api: Any) -> Any:
    """Ignored parameters and buffers are in the state as they are, in the same memory."""
    model = common.net()
    head = model.head
    model = common.in_blocks(api, model, ignored_modules=[head])
    for _ in range(2):
        state = model.state_dict()
        assert state["head.weight"].data_ptr() == head.weight.data_ptr()
        assert state["scale"].data_ptr() == model.scale.data_ptr()
    return list(state), state["head.weight"].clone()


@holds()
def the_state_is_a_copy(api: Any) -> Any:
    """What was saved does not change while the model trains on; it can be deep-copied and loaded again."""
    model = common.in_blocks(api)
    state = model.state_dict()
    saved, copied = common.cloned(state), copy.deepcopy(state)
    common.train(model)
    state, saved = ({n: t for n, t in s.items() if n != "scale"} for s in (state, saved))
    assert common.close(state, saved)
    model.load_state_dict(copied)
    assert common.close(common.full(api, model), common.initial())
    return saved, common.full(api, model)


@holds()
def saving_does_not_disturb(api: Any) -> Any:
    """Saving between forward and backward, and between steps, does not change the training."""
    model, plain = common.in_blocks(api), common.in_blocks(api)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for x in common.batches(2):
        optimizer.zero_grad()
        model.state_dict()
        loss = model(x).pow(2).mean()
        losses.append(loss.item())
        loss.backward()
        model.state_dict()
        optimizer.step()
    assert losses == common.train(plain)
    return losses, common.full(api, model)


@holds()
def optimizers_go_on_after_loading(api: Any) -> Any:
    """After loading, its own state or another, a model goes on training, with the same optimizer."""
    results = []
    for own in (True, False):
        model = common.in_blocks(api)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        losses = common.train(model, optimizer)
        model.load_state_dict((model if own else common.net()).state_dict())
        losses += common.train(model, optimizer)
        assert not common.close(common.full(api, model), common.initial())
        results.append((losses, common.full(api, model)))
    return results


@holds()
def tied_parameters(api: Any) -> Any:
    """Tied parameters are in the state under both names, and load."""
    torch.manual_seed(1)
    model, again = common.in_blocks(api, common.Tied()), common.in_blocks(api, common.Tied())
    state = model.state_dict()
    assert torch.equal(state["embed.weight"], state["out.weight"])
    again.load_state_dict(state)
    assert common.close(common.full(api, model), common.full(api, again))
    return common.cloned(state)


@holds()
def shared_modules(api: Any) -> Any:
    """A module that is registered twice in a unit, and a parameter that is, are there under both names."""

    shared = common.layers(lambda m, x: m.second(m.first(x)), first=(4, 4))
    shared.second = shared.first
    shared.one = shared.two = nn.Parameter(torch.ones(3))
    state = api.FSDP(shared).state_dict()
    assert torch.equal(state["first.weight"], state["second.weight"])
    assert torch.equal(state["one"], state["two"])
    return common.cloned(state)


@holds()
def activation_checkpoints(api: Any) -> Any:
    """Activation checkpoint wrappers do not show in the names, whether they were put on before or after."""
    names = []
    for after in (False, True):
        model = common.net()
        if after:
            model = common.in_blocks(api, model)
        apply_activation_checkpointing(model, check_fn=lambda m: type(m) is nn.Linear)
        if not after:
            model = common.in_blocks(api, model)
        state = model.state_dict()
        assert list(state) == list(common.net().state_dict())
        model.load_state_dict(state)
        names.append(list(state))
    return names


@holds()
def a_model_without_units(api: Any) -> Any:
    """A model without units has no type; setting one gives back none."""
    model = common.net()
    assert api.FSDP.get_state_dict_type(model) is None
    before = api.FSDP.set_state_dict_type(model, api.StateDictType.SHARDED_STATE_DICT)
    return before.state_dict_type, {n: type(t).__name__ for n, t in model.state_dict().items()}


@holds()
def torchs_state_dict_functions(api: Any) -> Any:
    """`get_model_state_dict` gives clean names and whole tensors, or without options shards, of which the type differs, and
    `set_model_state_dict` takes them."""
    model = common.in_blocks(api)
    common.train(model)
    for options in (None, StateDictOptions(full_state_dict=True)):
        again = other(api)
        state = get_model_state_dict(model, options=options)
        assert list(state) == list(common.net().state_dict())
        saved = common.cloned(state)
        set_model_state_dict(again, state, options=options)  # of FSDP2 it changes what it is given
        assert common.close(common.full(api, model), common.full(api, again))
    return saved


@holds()
def hooks_of_the_wrapped_module(api: Any) -> Any:
    """A subclass of a module that changes its own state dict is asked."""

    class Renaming(common.Block):
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
    model = common.in_blocks(api)

    def add(module: nn.Module, state: Any, prefix: str, metadata: Any) -> None:
        state[prefix + "hooked"] = torch.ones(1)

    model.module.head.register_state_dict_post_hook(add)
    state = model.state_dict()
    assert "head.hooked" in state
    return sorted(state)


@holds()
def parts_that_are_skipped(api: Any) -> Any:
    """A part that is attached after wrapping keeps its own entry."""
    model = common.net()
    head = model.head
    del model.head
    wrapped = common.in_blocks(api, model)
    wrapped.module.head = head
    return sorted(wrapped.state_dict()), common.train(wrapped)


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
        assert common.close(common.full(api, model), common.full(api, again))
        with api.FSDP.summon_full_params(again), torch.no_grad():
            for parameter in again.parameters():
                parameter.zero_()
    return common.full(api, model)


@holds()
def one_rank(api: Any) -> Any:
    """Over a group of one rank whole and sharded states are whole tensors, and load."""
    types = api.StateDictType
    mine = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    model, again = common.in_blocks(api, process_group=mine), other(api, process_group=mine)
    common.train(model)
    kinds = []
    for kind in (types.FULL_STATE_DICT, types.SHARDED_STATE_DICT):
        with api.FSDP.state_dict_type(model, kind), api.FSDP.state_dict_type(again, kind):
            state = model.state_dict()
            again.load_state_dict(state)
        kinds.append({type(t).__name__ for t in state.values()})
        assert common.close(common.full(api, model), common.full(api, again))
    assert kinds == [{"Tensor"}, {"Tensor"}]
    return common.full(api, again)
