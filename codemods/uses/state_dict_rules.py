"""The rules on the types of state dicts, with their examples."""

from __future__ import annotations

from fsdp_migrate.codemods.rule import Example, Rule, bridged

CONTEXT = Rule(
    "FSDP331",
    "state-dict-context",
    "a state-dict context becomes get_model_state_dict",
    """With FULL_STATE_DICT FSDP1 gathers the whole state dict inside the context. `get_model_state_dict` with
`full_state_dict=True` does so without a context; `cpu_offload=True` in addition is FSDP1's
`offload_to_cpu=True, rank0_only=True`: rank 0 gets the tensors on the CPU, the others an empty dict. With SHARDED_STATE_DICT
every rank has its shards, as DTensors; where nothing is sharded (NO_SHARD, one rank) the values are DTensors as well, which
torch.distributed.checkpoint writes as it writes tensors. All of this is collective, as it was: all ranks must call it.

The context goes where its type and configuration are known and its body holds nothing but calls that take the type as an
option and calls that have no way to the model. A context stays where it
holds `FSDP.optim_state_dict`, where its model is given to a function, where `rank0_only` would
mean another rank (a process group, hybrid sharding), and where `offload_to_cpu` or `rank0_only` is set alone, which no option
says. Loading a whole state dict stays, too: `set_model_state_dict` with `full_state_dict=True` fills in missing keys from the
model without an error and puts DTensors into the dict that it is given (`_load_model_state_dict` in
torch/distributed/checkpoint/state_dict.py).""",
    (
        Example(
            "saving from rank 0",
            """\
import torch
from torch.distributed.fsdp import (
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    StateDictType,
)


def save(model, rank, path):
    policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):
        # gathered on rank 0
        state = model.state_dict()
        if rank == 0:
            torch.save(state, path)
""",
            """\
import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
)


def save(model, rank, path):
    # gathered on rank 0
    state = get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    if rank == 0:
        torch.save(state, path)
""",
        ),
        Example(
            "shards, loaded",
            """\
import torch.distributed._shard.checkpoint as dcp
import torch.distributed.fsdp as fsdp


def load(model, path):
    with fsdp.FullyShardedDataParallel.state_dict_type(
        model, fsdp.StateDictType.SHARDED_STATE_DICT
    ):
        state = {"model": model.state_dict()}
        dcp.load(state, checkpoint_id=path)
        model.load_state_dict(state["model"])
""",
            """\
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    set_model_state_dict,
)


def load(model, path):
    state = {"model": get_model_state_dict(model)}
    dcp.load(state, checkpoint_id=path)
    set_model_state_dict(model, state["model"])
""",
        ),
        bridged(
            "a trainer that has the model",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
    trainer.save_model()
""",
            message="trainer.save_model",
        ),
    ),
)
SET_TYPE = Rule(
    "FSDP332",
    "set-state-dict-type",
    "the runtime keeps the state-dict type that a program sets",
    """It says what every later `state_dict()` of the model returns and every `load_state_dict()` takes, wherever that is
called. The runtime's class has it, with FSDP1's default: FULL_STATE_DICT. `get_model_state_dict` and its relatives take the
type as an option instead and go by no type that was set.""",
    (
        bridged(
            "a type for what follows",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
before = FSDP.get_state_dict_type(model)
""",
            message="from here on",
        ),
    ),
)
