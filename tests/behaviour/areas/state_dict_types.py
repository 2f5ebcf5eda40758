"""The types of state dicts, whole and sharded, and their checkpoints."""

import shutil
import tempfile
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh

from ..registry import cannot, holds
from .common import blocks_by_hand, close, enter, error, full, in_blocks, state_of, train
from .state_dicts import other


def settings(found: Any) -> list[Any]:
    """A StateDictSettings as text: its type and its two configurations."""
    return [
        found.state_dict_type.name,
        repr(found.state_dict_config),
        repr(found.optim_state_dict_config),
    ]


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
