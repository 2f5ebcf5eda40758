"""State dicts that a program saves and loads, as the tool rewrites it: files of ranks, shared options, states in branches."""

from typing import Any

from ..registry import holds
from .uses import folder, run

RANK_FILES = """\
def build(seed=0):
    torch.manual_seed(seed)
    model = Transformer()
    model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=False)
    return model


def save(model, optimizer, path):
    with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
        torch.save(model.state_dict(), f"{path}/model-{dist.get_rank()}.pt")
    with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
        torch.save(optimizer.state_dict(), f"{path}/optimizer-{dist.get_rank()}.pt")


def load(model, optimizer, path, weights_only):
    with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
        state = torch.load(f"{path}/model-{dist.get_rank()}.pt", weights_only=weights_only)
        model.load_state_dict(state)
    states = torch.load(f"{path}/optimizer-{dist.get_rank()}.pt", weights_only=weights_only)
    optimizer.load_state_dict(states)


def misses(model, path, weights_only):
    state = torch.load(f"{path}/model-{dist.get_rank()}.pt", weights_only=weights_only)
    del state[next(iter(state))]
    try:
        with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
            model.load_state_dict(state)
    except Exception:
        return True
    return False


def run(path, weights_only):
    model, other = build(), build(seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    resumed = torch.optim.AdamW(other.parameters(), lr=0.01)
    data = batches(3)
    losses = [step(model, optimizer, data[0])]
    save(model, optimizer, path)
    load(other, resumed, path, weights_only)
    losses += [step(model, optimizer, each) for each in data[1:]]
    again = [step(other, resumed, each) for each in data[1:]]
    assert losses[1:] == again, (losses, again)
    return losses, misses(other, path, weights_only)
"""


@holds(torch=True, tolerance=1e-6)
def a_file_of_each_rank(api: Any) -> Any:
    """With LOCAL_STATE_DICT, and with `optimizer.state_dict()` of any type, each rank saves and loads a file of its own, and
    the training goes on as it would have; a missing key is an error."""
    is_fsdp1 = api.FSDP.__module__.startswith("torch.")
    return run(api, RANK_FILES, folder(), not is_fsdp1, bridge="torch")


POLICY = """\
policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)


def save(model, ema, optimizer):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):
        state = model.state_dict()
    with FSDP.state_dict_type(ema, StateDictType.FULL_STATE_DICT, policy):
        averaged = ema.state_dict()
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(True, True)):
        with FSDP.state_dict_type(ema, StateDictType.FULL_STATE_DICT, FullStateDictConfig(True, True)):
            both = [model.state_dict(), ema.state_dict()]
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy), FSDP.state_dict_type(
        ema, StateDictType.FULL_STATE_DICT, policy
    ):
        both += [model.state_dict(), ema.state_dict()]
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy, FullOptimStateDictConfig(True, True)):
        again, moments = model.state_dict(), FSDP.optim_state_dict(model, optimizer)
    return [state, averaged, *both, again], moments


def run():
    model, ema = build(), build(seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step(model, optimizer, batches(1)[0])
    states, moments = save(model, ema, optimizer)
    sums = [{name: tensor.sum().item() for name, tensor in sorted(state.items())} for state in states]
    assert sums[0] == sums[2] == sums[4] == sums[6] and sums[1] == sums[3] == sums[5]
    on_cpu = {tensor.device.type for state in states for tensor in state.values()}
    return sums, on_cpu, sorted(moments.get("state", {}))
"""


@holds(torch=True, tolerance=1e-6)
def one_configuration_of_several_contexts(api: Any) -> Any:
    """A configuration may be shared by contexts, and contexts of two models may be around one block."""
    return run(api, POLICY)


BRANCHES = """\
def load(model, optimizer, states, is_whole):
    if is_whole:
        states = FSDP.optim_state_dict_to_load(model, optimizer, states)
    optimizer.load_state_dict(states)


def in_a_context(model, optimizer, states):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        states = FSDP.optim_state_dict_to_load(model, optimizer, states)
    assert states is not None
    optimizer.load_state_dict(states)


def resumed(seed, how):
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = batches(3)
    first = step(model, optimizer, data[0])
    whole = copy.deepcopy(FSDP.full_optim_state_dict(model, optimizer, rank0_only=False))
    own = copy.deepcopy(optimizer.state_dict())
    step(model, optimizer, data[1])
    if how == "whole":
        load(model, optimizer, whole, True)
    elif how == "own":
        load(model, optimizer, own, False)
    else:
        in_a_context(model, optimizer, whole)
    return first, step(model, optimizer, data[2])


def run():
    found = [resumed(0, how) for how in ("whole", "own", "in a context")]
    assert found[0] == found[1] == found[2], found
    return found
"""


@holds(torch=True, tolerance=1e-5)
def states_that_one_branch_makes(api: Any) -> Any:
    """States that are made in one branch, or in a context, are loaded once behind it, and those of the other branch as well."""
    return run(api, BRANCHES)


OTHERS = """\
class Saver:
    def __init__(self, model, path):
        self.network, self.path = model, path

    def save(self):
        dcp.save({"model": self.network.state_dict()}, checkpoint_id=self.path)

    def load(self):
        state = {"model": self.network.state_dict()}
        dcp.load(state, checkpoint_id=self.path)
        self.network.load_state_dict(state["model"])


def run(path):
    model, other = build(), build(seed=1)
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        Saver(model, path).save()
    with FSDP.state_dict_type(other, StateDictType.SHARDED_STATE_DICT):
        Saver(other, path).load()
    batch = batches(1)[0]
    losses = model(*batch).float().pow(2).mean().item(), other(*batch).float().pow(2).mean().item()
    assert losses[0] == losses[1]
    return losses
"""


@holds(torch=True, tolerance=1e-6)
def shards_that_other_code_asks_for(api: Any) -> Any:
    """A context of SHARDED_STATE_DICT holds for code in other functions, too, which saves and loads shards."""
    return run(api, OTHERS, folder())


FOR_GOOD = """\
def run():
    model, other = build(), build(seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = batches(3)
    losses = [step(model, optimizer, data[0])]
    FSDP.set_state_dict_type(
        model,
        StateDictType.FULL_STATE_DICT,
        FullStateDictConfig(rank0_only=False),
        FullOptimStateDictConfig(rank0_only=False),
    )
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    states = copy.deepcopy(FSDP.optim_state_dict(model, optimizer))
    FSDP.set_state_dict_type(other, StateDictType.FULL_STATE_DICT)
    other.load_state_dict(state)
    resumed = torch.optim.AdamW(other.parameters(), lr=0.01)
    loaded = FSDP.optim_state_dict_to_load(other, resumed, states)
    resumed.load_state_dict(loaded)
    losses += [step(model, optimizer, each) for each in data[1:]]
    again = [step(other, resumed, each) for each in data[1:]]
    assert losses[1:] == again, (losses, again)
    return losses, len(state)
"""


@holds(torch=True, tolerance=1e-5)
def a_type_that_is_set_for_good(api: Any) -> Any:
    """After `set_state_dict_type` model and optimizer save and load whole states, and the training goes on as it would have."""
    return run(api, FOR_GOOD)
