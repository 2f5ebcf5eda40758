"""What FSDP1 and FSDP2 programs write on two ranks: every kind of checkpoint, of one training."""

import copy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from nets import Block, Transformer
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    LocalStateDictConfig,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictType,
    fully_shard,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

CONFIGS: dict[str, tuple[StateDictType, Any, Any]] = {
    # Nothing is offloaded: on a CPU FSDP1's own offloading aliases what it gathers.
    "full": (
        StateDictType.FULL_STATE_DICT,
        FullStateDictConfig(),
        FullOptimStateDictConfig(offload_to_cpu=False),
    ),
    "sharded": (
        StateDictType.SHARDED_STATE_DICT,
        ShardedStateDictConfig(),
        ShardedOptimStateDictConfig(offload_to_cpu=False),
    ),
}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int) -> list[float]:
    """The losses of each step."""
    generator = torch.Generator().manual_seed(seed + dist.get_rank())
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(*Transformer.batch(generator)).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def build_fsdp2(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Transformer()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model, adam(model)


def write(folder: Path) -> dict[str, list[float]]:
    """Writes all checkpoints; the losses that each FSDP1 program goes on to."""
    continued = {}
    for flavour in ("orig", "flat"):
        torch.manual_seed(0)
        model = FSDP(
            Transformer(),
            auto_wrap_policy=ModuleWrapPolicy({Block}),
            use_orig_params=flavour == "orig",
        )
        optimizer = adam(model)
        train(model, optimizer, 3, 100)
        _save(folder, flavour, model, optimizer)
        continued[flavour] = train(model, optimizer, 3, 200)
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    meshed = FSDP(Transformer(), auto_wrap_policy=ModuleWrapPolicy({Block}), device_mesh=mesh)
    with FSDP.state_dict_type(meshed, *CONFIGS["sharded"]):
        _save_rank(folder / "ranks-mesh", meshed.state_dict())
    FSDP.set_state_dict_type(meshed, *CONFIGS["full"])
    _save_once(folder / "mesh.pt", meshed.state_dict())
    modern, _ = build_fsdp2(1)
    _save_rank(folder / "ranks-fsdp2", modern.state_dict())
    whole = get_model_state_dict(modern, options=StateDictOptions(full_state_dict=True))
    _save_once(folder / "fsdp2.pt", whole)
    _save_once(folder / "numbered.pt", numbered())
    dist.barrier()
    return continued


def numbered() -> dict[str, Any]:
    """What a program without FSDP writes: the optimizer numbers the parameters."""
    torch.manual_seed(2)
    model = Transformer()
    optimizer = adam(model)
    train(model, optimizer, 2, 300)
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def _save(folder: Path, flavour: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with FSDP.state_dict_type(model, *CONFIGS["full"]):
        whole = {
            "model": model.state_dict(),
            "optimizer": FSDP.optim_state_dict(model, optimizer),
            "epoch": 3,
        }
        _save_once(folder / f"full-{flavour}.pt", whole)
    with FSDP.state_dict_type(model, *CONFIGS["sharded"]):
        shards = {
            "model": model.state_dict(),
            "optimizer": FSDP.optim_state_dict(model, optimizer),
            "epoch": 3,
        }
        dcp.save(copy.copy(shards), checkpoint_id=folder / f"dcp-{flavour}")
        _save_rank(folder / f"ranks-{flavour}", shards)
        half = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        _save_rank(folder / f"half-{flavour}", half)
    with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT, LocalStateDictConfig()):
        _save_rank(folder / f"local-{flavour}", model.state_dict())
    _save_rank(folder / f"optimizer-{flavour}", optimizer.state_dict())


def _save_rank(folder: Path, state: Any) -> None:
    folder.mkdir(exist_ok=True)
    torch.save(state, folder / f"model_rank{dist.get_rank()}.pt")


def _save_once(file: Path, state: Any) -> None:
    if dist.get_rank() == 0:
        torch.save(state, file)
