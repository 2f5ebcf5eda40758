"""The ways in which FSDP1 programs write a checkpoint and go on from one, each for any package with FSDP1's names."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict

from ..nets import Block, ConvNet, Tied, Transformer

Optimizer = torch.optim.Optimizer
Step = Callable[[Any, nn.Module, Optimizer, Path], None]


@dataclass(frozen=True)
class Way:
    """A model, what FSDP is given for it, its optimizer, and how both are saved and loaded."""

    save: Step
    load: Step
    model: type[Any] = Transformer
    options: Callable[[Any], dict[str, Any]] = lambda api: {"use_orig_params": True}
    optimizer: Callable[[nn.Module], Optimizer] = lambda model: torch.optim.Adam(
        model.parameters(), lr=0.01
    )
    freezes: bool = False

    def build(self, api: Any) -> tuple[nn.Module, Optimizer]:
        model = self.model()
        model.head.requires_grad_(not self.freezes)
        policy = api.wrap.ModuleWrapPolicy({Block, nn.Conv2d})
        model = api.FSDP(model, auto_wrap_policy=policy, **self.options(api))
        return model, self.optimizer(model)


def momentum(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def groups(model: nn.Module) -> Optimizer:
    norms = [p for n, p in model.named_parameters() if "norm" in n]
    rest = [p for n, p in model.named_parameters() if "norm" not in n]
    return torch.optim.AdamW([{"params": rest, "lr": 0.01}, {"params": norms, "weight_decay": 0.5}])


def flat(api: Any) -> dict[str, Any]:
    return {"use_orig_params": False}


def low(api: Any) -> dict[str, Any]:
    precision = api.MixedPrecision(torch.bfloat16, torch.float32, torch.bfloat16)
    return {"mixed_precision": precision, "use_orig_params": True}


def write(folder: Path, model: Any, optimizer: Any) -> None:
    if dist.get_rank() == 0:
        torch.save({"model": model, "optimizer": optimizer}, folder / "both.pt")


def in_a_context(api: Any, model: nn.Module, optimizer: Optimizer, folder: Path) -> None:
    configs = api.FullStateDictConfig(True, True), api.FullOptimStateDictConfig(True, True)
    with api.FSDP.state_dict_type(model, api.StateDictType.FULL_STATE_DICT, *configs):
        state = model.state_dict()
        states = api.FSDP.optim_state_dict(model, optimizer)
    write(folder, state, states)


def from_a_context(api: Any, model: nn.Module, optimizer: Optimizer, folder: Path) -> None:
    both = torch.load(folder / "both.pt")
    with api.FSDP.state_dict_type(model, api.StateDictType.FULL_STATE_DICT):
        model.load_state_dict(both["model"])
        states = api.FSDP.optim_state_dict_to_load(model, optimizer, both["optimizer"])
    optimizer.load_state_dict(states)


def by_a_type(api: Any, model: nn.Module, optimizer: Optimizer, folder: Path) -> None:
    configs = api.FullStateDictConfig(), api.FullOptimStateDictConfig(rank0_only=True)
    api.FSDP.set_state_dict_type(model, api.StateDictType.FULL_STATE_DICT, *configs)
    states = api.FSDP.optim_state_dict(model, optimizer, optimizer.state_dict())
    write(folder, model.state_dict(), states)


def on_the_first_rank(api: Any, model: nn.Module, optimizer: Optimizer, folder: Path) -> None:
    both = torch.load(folder / "both.pt")
    configs = api.FullStateDictConfig(), api.FullOptimStateDictConfig(rank0_only=True)
    api.FSDP.set_state_dict_type(model, api.StateDictType.FULL_STATE_DICT, *configs)
    model.load_state_dict(both["model"])
    own = both["optimizer"] if dist.get_rank() == 0 else None
    api.FSDP.optim_state_dict_to_load(model, optimizer, own, load_directly=True)


def by_older_functions(api: Any, model: nn.Module, optimizer: Optimizer, folder: Path) -> None:
    kind = api.StateDictType.FULL_STATE_DICT
    with api.FSDP.state_dict_type(model, kind, api.FullStateDictConfig(True, True)):
        state = model.state_dict()
    write(folder, state, api.FSDP.full_optim_state_dict(model, optimizer))


def from_older_functions(api: Any, model: nn.Module, optimizer: Optimizer, folder: Path) -> None:
    both = torch.load(folder / "both.pt")
    with api.FSDP.state_dict_type(model, api.StateDictType.FULL_STATE_DICT):
        model.load_state_dict(both["model"])
    states = api.FSDP.shard_full_optim_state_dict(both["optimizer"], model, optim=optimizer)
    optimizer.load_state_dict(states)


def in_shards(api: Any, model: nn.Module, optimizer: Optimizer, folder: Path) -> None:
    with api.FSDP.state_dict_type(model, api.StateDictType.SHARDED_STATE_DICT):
        states = api.FSDP.optim_state_dict(model, optimizer)
        dcp.save({"model": model.state_dict(), "optimizer": states}, checkpoint_id=folder)


def from_shards(api: Any, model: nn.Module, optimizer: Optimizer, folder: Path) -> None:
    with api.FSDP.state_dict_type(model, api.StateDictType.SHARDED_STATE_DICT):
        state = {"model": model.state_dict()}
        dcp.load(state, checkpoint_id=folder)
        model.load_state_dict(state["model"])
        reader = dcp.FileSystemReader(folder)
        saved = load_sharded_optimizer_state_dict(state["model"], "optimizer", reader)
        states = api.FSDP.optim_state_dict_to_load(model, optimizer, saved["optimizer"])
        optimizer.load_state_dict(states)


WAYS = {
    "context": Way(in_a_context, from_a_context, optimizer=groups),
    "ties": Way(in_a_context, from_a_context, Tied, optimizer=momentum),
    "batch-norm": Way(in_a_context, from_a_context, ConvNet, low),
    "type": Way(by_a_type, on_the_first_rank, freezes=True),
    "older": Way(by_older_functions, from_older_functions, options=flat, optimizer=momentum),
    "shards": Way(in_shards, from_shards, optimizer=groups),
    "shards-flat": Way(in_shards, from_shards, options=flat),
}


def forget_momentum(both: Any) -> None:
    for state in both["optimizer"]["state"].values():
        state["momentum_buffer"].zero_()


# What is done to a checkpoint of FSDP1's must show in the losses of whoever goes on from it.
FAULTS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "momentum": ("older", forget_momentum),
    "groups": ("context", lambda both: both["optimizer"]["param_groups"][0].update(lr=0.02)),
    "buffers": ("batch-norm", lambda both: both["model"]["mean"].zero_()),
}
