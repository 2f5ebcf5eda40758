"""A tiny GPT-2 with random weights, trained by Accelerate as its configuration says."""

from __future__ import annotations

import os
import sys

import torch

from fsdp_migrate.verify.recorder import emulate

emulate.install(2)  # Accelerate knows FSDP on accelerators only

from accelerate import Accelerator  # noqa: E402
from transformers import GPT2Config, GPT2LMHeadModel  # noqa: E402


class OnCPU(torch.nn.parallel.DistributedDataParallel):
    """It refuses numbers of devices for parameters on a CPU."""

    def __init__(self, module: torch.nn.Module, device_ids: object, output_device: object) -> None:
        super().__init__(module)


torch.nn.parallel.DistributedDataParallel = OnCPU
torch.manual_seed(0)
accelerator = Accelerator()
dropouts = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
sizes = {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 64, "n_positions": 16}
model = GPT2LMHeadModel(GPT2Config(**sizes, **dropouts))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer = accelerator.prepare(model, optimizer)
accelerator.print("classes", *(each.__name__ for each in type(model).__mro__))
torch.manual_seed(1 + accelerator.process_index)
for _ in range(5):
    tokens = torch.randint(64, (4, 16), device=accelerator.device)
    loss = model(tokens, labels=tokens).loss
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.print("loss", repr(accelerator.reduce(loss.detach(), "mean").item()))
sys.stdout.flush()
os._exit(0)  # a finished process of gloo may abort at interpreter exit
