"""What a program does with a model, as the tool rewrites it: by default, and in torch's words alone."""

import tempfile
from pathlib import Path
from textwrap import indent
from typing import Any

import torch.distributed as dist

import fsdp_migrate.migration  # noqa: F401  (imported once, before ranks are forked)
from fsdp_migrate.engine import analyse_source
from fsdp_migrate.settings import Options
from fsdp_migrate.source import Source

from ..registry import holds
from .common import by_rank_0

HEAD = """\
import copy
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    ShardedStateDictConfig,
    StateDictType,
)
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from nets import Block, Transformer


def build(seed=0) -> FSDP:
    torch.manual_seed(seed)
    model = Transformer()
    model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=True)
    return model


def step(model, optimizer, batch):
    loss = model(*batch).float().pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def batches(count):
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    return [Transformer.batch(generator) for _ in range(count)]


"""
FORMS = {
    "FullyShardAlone": "torch",
    "InPlace": "auto",
}  # by the constructor; else the program as it is


@by_rank_0
def migrated(source: str, form: str) -> str:
    """What the tool makes of a program; in torch's form nothing of this package is left."""
    file = Source(Path("program.py"), "program.py", source.encode())
    report = analyse_source(file, Options(form))
    assert not report.errors, report.errors
    after = report.changes[0].after.decode()
    assert form != "torch" or ("fsdp_migrate" not in after and "FSDP." not in after), after
    return after


def run(api: Any, body: str, *given: Any, bridge: str = "bridge") -> Any:
    """What the function `run` of a program returns.

    Args:
        bridge: the form of the program where it would be on the bridge.
    """
    source = f"{HEAD}{body}"
    form = FORMS.get(api.FSDP.__name__)
    if api.FSDP.__module__.startswith("fsdp_migrate"):
        form = bridge
    names: dict[str, Any] = {}
    exec(compile(migrated(source, form) if form else source, "program", "exec"), names)
    return names["run"](*given)


def folder() -> str:
    """A folder that all ranks share."""
    made = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(made)
    return str(made[0])


SAVING = """\
def run():
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = batches(3)
    step(model, optimizer, data[0])
    states = None
    with FSDP.state_dict_type(
        model,
        StateDictType.FULL_STATE_DICT,
        FullStateDictConfig(offload_to_cpu=True, rank0_only=True),
        FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=True),
    ):
        whole = model.state_dict()
        moments = FSDP.optim_state_dict(model, optimizer)
        if dist.get_rank() == 0:
            states = {name: tensor.clone() for name, tensor in whole.items()}
    if dist.get_rank() == 0:
        exp_avg = {name: moments["state"][name]["exp_avg"] for name in sorted(moments["state"])}
        groups = [sorted(group["params"]) for group in moments["param_groups"]]
        return states, exp_avg, groups
    return len(whole), len(moments)
"""


@holds(torch=True, tolerance=1e-6)
def saving_from_rank_0(api: Any) -> Any:
    """A context of FULL_STATE_DICT gives rank 0 whole tensors of model and optimizer on the CPU, the others none."""
    return run(api, SAVING)


LOADING = """\
def load(model, state):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        model.load_state_dict(state)


def refuses(model, state):
    try:
        load(model, state)
    except RuntimeError as error:
        return "issing" in str(error) or "nexpected" in str(error)
    return False


def run():
    model, other = build(), build(seed=1)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    first, *_ = state
    load(other, state)
    batch = batches(1)[0]
    losses = model(*batch).float().pow(2).mean().item(), other(*batch).float().pow(2).mean().item()
    assert losses[0] == losses[1]
    with_more = {**state, "more": torch.ones(1)}
    without = {name: tensor for name, tensor in state.items() if name != first}
    return losses, len(state), refuses(other, with_more), refuses(other, without)
"""


@holds(torch=True, tolerance=1e-6)
def loading_whole_tensors(api: Any) -> Any:
    """A context of FULL_STATE_DICT loads whole tensors, and missing and unexpected keys are errors."""
    found = run(api, LOADING)
    assert found[2:] == (True, True)
    return found


SHARDED = """\
def run(path):
    model, other = build(), build(seed=1)
    with FSDP.state_dict_type(
        model, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(offload_to_cpu=True)
    ):
        dcp.save({"model": model.state_dict()}, checkpoint_id=path)
    with FSDP.state_dict_type(other, StateDictType.SHARDED_STATE_DICT):
        state = {"model": other.state_dict()}
        dcp.load(state, checkpoint_id=path)
        other.load_state_dict(state["model"])
    batch = batches(1)[0]
    losses = model(*batch).float().pow(2).mean().item(), other(*batch).float().pow(2).mean().item()
    assert losses[0] == losses[1]
    return losses
"""


@holds(torch=True, tolerance=1e-6)
def shards_in_a_checkpoint(api: Any) -> Any:
    """A context of SHARDED_STATE_DICT saves and loads by torch.distributed.checkpoint."""
    return run(api, SHARDED, folder())


RESUMED = """\
def run():
    model, other = build(), build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = batches(3)
    first = step(model, optimizer, data[0])
    state = copy.deepcopy(FSDP.full_optim_state_dict(model, optimizer, rank0_only=False))
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    with FSDP.state_dict_type(other, StateDictType.FULL_STATE_DICT):
        other.load_state_dict(weights)
    resumed = torch.optim.AdamW(other.parameters(), lr=0.01)
    loaded = FSDP.optim_state_dict_to_load(other, resumed, state)
    resumed.load_state_dict(loaded)
    losses = [step(model, optimizer, each) for each in data[1:]]
    again = [step(other, resumed, each) for each in data[1:]]
    assert losses == again
    return first, losses
"""


@holds(torch=True, tolerance=1e-5)
def resuming_an_optimizer(api: Any) -> Any:
    """Whole states of an optimizer, loaded into another one, let the training go on as it would have."""
    return run(api, RESUMED)


ACCUMULATING = {
    "chosen": """\
with model.no_sync() if not last else nullcontext():
    model(*batch).float().pow(2).mean().backward()
""",
    "chosen the other way": """\
with torch.enable_grad(), nullcontext() if last else model.no_sync():
    model(*batch).float().pow(2).mean().backward()
""",
    "a variable": """\
context = model.no_sync if not last else nullcontext
with context():
    model(*batch).float().pow(2).mean().backward()
""",
    "always": """\
if last:
    model(*batch).float().pow(2).mean().backward()
else:
    with model.no_sync():
        model(*batch).float().pow(2).mean().backward()
""",
    "handed on": """\
contexts = [model.no_sync, nullcontext]
with contexts[last]():
    model(*batch).float().pow(2).mean().backward()
""",
}
ACCUMULATED = """\
def run():
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for number, batch in enumerate(batches(3)):
            last = number == 2
{block}
        norm = model.clip_grad_norm_(0.5)
        losses.append(float(norm))
        losses.append(model.clip_grad_norm_(100.0).item())
        optimizer.step()
        optimizer.zero_grad()
    return losses
"""


@holds(torch=True, tolerance=1e-5)
def gradients_are_kept_in_every_spelling(api: Any) -> Any:
    """`no_sync` keeps gradients until the last batch, however it is written, and the norm is that of all of them."""
    found = {}
    for name, block in ACCUMULATING.items():
        found[name] = run(api, ACCUMULATED.format(block=indent(block, " " * 12)))
    assert len({tuple(norms) for norms in found.values()}) == 1
    return found


READING = """\
def run():
    model = build()
    batch = batches(1)[0]
    with FSDP.summon_full_params(model, writeback=False):
        loss = model(*batch).float().pow(2).mean().item()
    with FSDP.summon_full_params(model):
        pass
    with FSDP.summon_full_params(model, writeback=False):
        sums = {name: parameter.detach().sum().item() for name, parameter in model.named_parameters()}
    inner = model.module
    return loss, len(sums), sorted(sums.values()), type(inner).__name__.removeprefix("FSDP")
"""


@holds(torch=True, tolerance=1e-6)
def whole_parameters_are_read(api: Any) -> Any:
    """`summon_full_params` shows whole parameters, and a model may be called in it."""
    return run(api, READING)


SCALED = """\
def run():
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = ShardedGradScaler(device="cpu", init_scale=2.0**10, growth_interval=2)
    scales = []
    for number, batch in enumerate(batches(4)):
        loss = model(*batch).float().pow(2).mean()
        if number == 1 and dist.get_rank() == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
    return scales
"""


@holds(torch=True)
def a_scaler_skips_on_all_ranks(api: Any) -> Any:
    """`ShardedGradScaler` skips a step on all ranks where one has infinite gradients."""
    scales = run(api, SCALED)
    assert scales[1] < scales[0]
    return scales
