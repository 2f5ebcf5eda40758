"""FSDP1 and FSDP2 side by side, by a flag."""
import argparse
import functools
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel as FSDP, MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import StateDictType, FullStateDictConfig
from torch.distributed.tensor import DTensor


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.ff = nn.Linear(d, d)

    def forward(self, x):
        return x + self.ff(x).relu()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block(8) for _ in range(2))
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        for l in self.layers:
            x = l(x)
        return self.out(x)


def fsdp_version(model):
    if isinstance(model, FSDP):
        return 1
    elif isinstance(model, FSDPModule):
        return 2
    return 0


def clip_grad(model, max_norm):
    if fsdp_version(model) == 1:
        return model.clip_grad_norm_(max_norm)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def full_state(model):
    if fsdp_version(model) == 1:
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True, rank0_only=True)):
            return model.state_dict()
    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))


def shard(model, strategy):
    if strategy == "fsdp":
        return FSDP(
            model,
            auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
            mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, buffer_dtype=torch.float32),
            device_id=torch.cuda.current_device(),
            use_orig_params=True,
        )
    elif strategy == "fsdp2":
        mp = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for l in model.layers:
            fully_shard(l, mp_policy=mp)
        fully_shard(model, mp_policy=mp)
        return model
    raise NotImplementedError(f"Unknown strategy: {strategy}")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--strategy", default="fsdp")
    args = ap.parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    model = shard(Net().cuda(), args.strategy)
    print("R version", fsdp_version(model) if args.strategy == "fsdp2" else "")
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(dist.get_rank())
    for i in range(3):
        x = torch.randn(4, 8, generator=g).cuda()
        loss = model(x).float().pow(2).mean()
        loss.backward()
        n = clip_grad(model, 0.1)
        opt.step()
        opt.zero_grad()
        print(f"R {i} {loss.item():.6f} {n.item():.5f}")
    sd = full_state(model)
    print("R", {k: round(v.sum().item(), 4) for k, v in sd.items()})
    dist.destroy_process_group()


main()
