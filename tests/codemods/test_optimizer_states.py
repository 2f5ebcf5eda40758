"""FSDP1's functions for optimizer states, in the forms in which programs call them."""

from __future__ import annotations

import pytest

from .test_examples import analyse
from .test_state_dict_types import calls

HEAD = """\
import torch.distributed as dist
from torch.distributed.fsdp import (
    FullOptimStateDictConfig, FullStateDictConfig, FullyShardedDataParallel as FSDP, ShardedOptimStateDictConfig, StateDictType
)
model = FSDP(model)
"""
FULL = "options=StateDictOptions(full_state_dict=True)"
ON_RANK_0 = "options=StateDictOptions(full_state_dict=True, cpu_offload=True)"
BROADCAST = "options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)"


def under(kind: str, body: str) -> str:
    return f"with FSDP.state_dict_type(model, StateDictType.{kind}):\n    {body}\n"


PLAIN = {
    "by keyword": (
        "s = FSDP.full_optim_state_dict(optim=o, model=model, rank0_only=True)\n",
        f"get_optimizer_state_dict(model, o, {ON_RANK_0})",
    ),
    "through the model": (
        "s = model.full_optim_state_dict(model, o)\n",
        f"get_optimizer_state_dict(model, o, {ON_RANK_0})",
    ),
    "shards": (
        "s = FSDP.sharded_optim_state_dict(model, o)\n",
        "get_optimizer_state_dict(model, o, options=StateDictOptions(cpu_offload=True))",
    ),
    "shards that stay": (
        under(
            "SHARDED_STATE_DICT, None, ShardedOptimStateDictConfig(offload_to_cpu=False)",
            "s = FSDP.optim_state_dict(model, o)",
        ),
        "get_optimizer_state_dict(model, o)",
    ),
    "whole, on the device": (
        under(
            "FULL_STATE_DICT, FullStateDictConfig(), FullOptimStateDictConfig(False, False)",
            "s = FSDP.optim_state_dict(model, o)",
        ),
        f"get_optimizer_state_dict(model, o, {FULL})",
    ),
    "the configuration by keyword alone": (
        under(
            "FULL_STATE_DICT, optim_state_dict_config=FullOptimStateDictConfig(rank0_only=True)",
            "s = FSDP.optim_state_dict(model, o)",
        ),
        f"get_optimizer_state_dict(model, o, {ON_RANK_0})",
    ),
    "a result under another name": (
        "def load(s):\n    s = FSDP.optim_state_dict_to_load(model, o, s)\n    print(1)\n    o.load_state_dict(s)\n",
        f"set_optimizer_state_dict(model, o, s, {FULL})",
    ),
    "loaded behind the context": (
        under("FULL_STATE_DICT", "r = FSDP.optim_state_dict_to_load(model, o, s)")
        + "o.load_state_dict(r)\n",
        f"set_optimizer_state_dict(model, o, s, {FULL})",
    ),
    "loaded from rank 0": (
        under(
            "FULL_STATE_DICT, None, FullOptimStateDictConfig(rank0_only=True)",
            "o.load_state_dict(FSDP.optim_state_dict_to_load(model, o, s))",
        ),
        f"set_optimizer_state_dict(model, o, s, {BROADCAST})",
    ),
    "loaded as shards": (
        under(
            "SHARDED_STATE_DICT", "o.load_state_dict(FSDP.optim_state_dict_to_load(model, o, s))"
        ),
        "set_optimizer_state_dict(model, o, s)",
    ),
    "flattened": (
        "o.load_state_dict(FSDP.flatten_sharded_optim_state_dict(s, model, o))\n",
        "set_optimizer_state_dict(model, o, s)",
    ),
    "the states first": (
        "o.load_state_dict(FSDP.optim_state_dict_to_load(s, model, o))\n",
        f"set_optimizer_state_dict(model, o, s, {FULL})",
    ),
    "by keyword, in any order": (
        "o.load_state_dict(state_dict=FSDP.optim_state_dict_to_load(optim_state_dict=s, optim=o, model=model))\n",
        f"set_optimizer_state_dict(model, o, s, {FULL})",
    ),
    "loaded directly": (
        "FSDP.optim_state_dict_to_load(model, o, s, load_directly=True)\n",
        f"set_optimizer_state_dict(model, o, s, {FULL})",
    ),
    "scattered, with nothing on the other ranks": (
        "r = FSDP.scatter_full_optim_state_dict(s if x else None, model)\no.load_state_dict(r)\n",
        f"set_optimizer_state_dict(model, o, s if x else None, {BROADCAST})",
    ),
    "sharded by each rank": (
        "o.load_state_dict(FSDP.shard_full_optim_state_dict(full_optim_state_dict=s, model=model, optim=o))\n",
        f"set_optimizer_state_dict(model, o, s, {FULL})",
    ),
}


@pytest.mark.parametrize(("text", "wanted"), PLAIN.values(), ids=PLAIN)
def test_states_become_one_call(text: str, wanted: str) -> None:
    report, after = analyse(HEAD + text)
    assert "FSDP." not in after
    assert "o.load_state_dict" not in after
    assert not [finding for finding in report.findings if finding.action.value == "manual"]
    assert wanted in calls(after), after


# What is done with the result, or with the call, is more than the two functions of torch do.
RUNTIME = {
    "a group": "s = FSDP.optim_state_dict(model, o, group=g)\n",
    "states of its own": "s = FSDP.optim_state_dict(model, o, states)\n",
    "every rank": "s = FSDP.full_optim_state_dict(model, o, rank0_only=False)\n",
    "perhaps every rank": "s = FSDP.full_optim_state_dict(model, o, rank0_only=x)\n",
    "parameters of the optimizer": "s = FSDP.full_optim_state_dict(model, o, p)\n",
    "every rank, by default": "s = FSDP.optim_state_dict(model, o)\n",
    "a type of the run": "with FSDP.state_dict_type(model, kind):\n    s = FSDP.optim_state_dict(model, o)\n",
    "keys": "s = FSDP.rekey_optim_state_dict(s, kind, model)\n",
    "starred": "s = FSDP.optim_state_dict(*pair)\n",
    "not called": "get = FSDP.optim_state_dict\n",
    "a result that is kept": "r = FSDP.optim_state_dict_to_load(model, o, s)\nkeep(r)\no.load_state_dict(r)\n",
    "a result that may be loaded": "r = FSDP.optim_state_dict_to_load(model, o, s)\nif x:\n    o.load_state_dict(r)\n",
    "another optimizer": "r = FSDP.optim_state_dict_to_load(model, o, s)\nother.load_state_dict(r)\n",
    "another optimizer at once": "other.load_state_dict(FSDP.optim_state_dict_to_load(model, o, s))\n",
    "the optimizer in between": (
        "r = FSDP.optim_state_dict_to_load(model, o, s)\no = make()\no.load_state_dict(r)\n"
    ),
    "a way out in between": (
        "def load():\n    r = FSDP.optim_state_dict_to_load(model, o, s)\n    if x:\n        return\n    o.load_state_dict(r)\n"
    ),
    "read the next time round": (
        "for i in x:\n    print(r)\n    r = FSDP.optim_state_dict_to_load(model, o, s)\n    o.load_state_dict(r)\n"
    ),
    "a named optimizer": (
        "o.load_state_dict(FSDP.optim_state_dict_to_load(model, o, s, is_named_optimizer=True))\n"
    ),
    "scattered to nowhere": "r = FSDP.scatter_full_optim_state_dict(s, model)\n",
}


@pytest.mark.parametrize("text", RUNTIME.values(), ids=RUNTIME)
def test_anything_else_is_the_runtimes(text: str) -> None:
    _, after = analyse(HEAD + text)
    assert "FSDP." not in after
    assert "fsdp_migrate.runtime" in after
    assert "get_optimizer_state_dict(" not in after
    assert "set_optimizer_state_dict(" not in after


RANKS = {
    "dist.get_rank() == 0": True,
    "0 == dist.get_rank()": True,
    "not dist.get_rank()": True,
    "dist.get_rank() == 0 and x": True,
    "dist.get_rank() == 0 or x": False,
    "dist.get_rank() == 1": False,
    "dist.get_rank(group) == 0": False,
    "rank == 0": False,
    "local_rank == 0": False,
}


@pytest.mark.parametrize(("test", "alone"), RANKS.items(), ids=RANKS)
def test_states_that_rank_0_alone_reads(test: str, alone: bool) -> None:
    """Only what is certainly the rank among all processes says that the others need no states."""
    body = f"    s = FSDP.optim_state_dict(model, o)\n    if {test}:\n        keep(s)\n"
    _, after = analyse(f"{HEAD}def save(rank, local_rank, x):\n{body}")
    assert (f"get_optimizer_state_dict(model, o, {ON_RANK_0})" in calls(after)) is alone
    _, after = analyse(f"{HEAD}def save(rank, local_rank, x):\n{body}    print(s)\n")
    assert "get_optimizer_state_dict" not in after


ADAM = "torch.optim.Adam(model.parameters())"
ORIGINAL = {
    ("use_orig_params=True", ADAM): True,
    ("use_orig_params=False", ADAM): False,
    ("use_orig_params=x", ADAM): False,
    ("use_orig_params=True", "torch.optim.SGD(model.parameters())"): False,
    ("use_orig_params=True", "make(model)"): False,
}


@pytest.mark.parametrize(("given", "plain"), ORIGINAL.items(), ids=map(" ".join, ORIGINAL))
def test_torchs_own_function_is_for_what_it_loads_right(
    given: tuple[str, str], plain: bool
) -> None:
    """Not for flat parameters, which share a `step`, nor for optimizers that may have no states."""
    argument, optimizer = given
    text = HEAD.replace("FSDP(model)", f"FSDP(model, {argument})")
    _, after = analyse(
        f"import torch\n{text}o = {optimizer}\no.load_state_dict(FSDP.optim_state_dict_to_load(model, o, s))\n"
    )
    start = "from torch.distributed.checkpoint.state_dict import"
    of_torch = any(
        line.startswith(start)
        and "set_optimizer_state_dict" in after.split(start)[1].split("from ")[0]
        for line in after.splitlines()
    )
    assert of_torch is plain
