from contextlib import nullcontext
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

import checkpoint
from model import ConvBlock

PRECISION = {
    "bf16": MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, buffer_dtype=torch.float32),
    "fp32": None,
}


class Trainer:
    def __init__(self, cfg, model, callbacks):
        self.cfg, self.callbacks, self.history, self.step = cfg, callbacks, [], 0
        self.model = FullyShardedDataParallel(
            model,
            auto_wrap_policy=partial(transformer_auto_wrap_policy, transformer_layer_cls={ConvBlock}),
            mixed_precision=PRECISION[cfg.amp],
            backward_prefetch=BackwardPrefetch.BACKWARD_PRE,
            device_id=torch.cuda.current_device(),
            limit_all_gathers=True,
            use_orig_params=True,
            sync_module_states=False,
        )
        self.optim = torch.optim.AdamW(self._groups(), lr=cfg.lr)
        self.sched = torch.optim.lr_scheduler.ExponentialLR(self.optim, 0.9)

    def _groups(self):
        no_decay = [p for n, p in self.model.named_parameters() if "norm" in n or n.endswith("bias")]
        ids = set(map(id, no_decay))
        decay = [p for p in self.model.parameters() if id(p) not in ids]
        return [{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}]

    def batch(self, step, seed=0):
        g = torch.Generator().manual_seed(seed + 100 * step + dist.get_rank())
        b = {"tokens": torch.randint(1, 12, (2, 6), generator=g), "mask": torch.ones(2, 6), "mel": torch.randn(2, 6, 5, generator=g), "dur": torch.rand(2, 6, generator=g)}
        return {k: v.cuda(non_blocking=True) for k, v in b.items()}

    def fit(self):
        self.model.train()
        while self.step < self.cfg.max_steps:
            total = 0.0
            for micro in range(self.cfg.accum):
                sync = micro == self.cfg.accum - 1
                with (nullcontext if sync else self.model.no_sync)():
                    losses = self.model(self.batch(self.step, seed=micro))
                    loss = sum(losses.values()) / self.cfg.accum
                    loss.backward()
                    total += loss.item()
            norm = self.model.clip_grad_norm_(self.cfg.clip)
            self.optim.step()
            self.sched.step()
            self.optim.zero_grad()
            self.step += 1
            logs = {"loss": total, "norm": norm.item()}
            for cb in self.callbacks:
                cb.on_step(self, logs)
            self.history.append(logs)

    @torch.inference_mode()
    def validate(self):
        self.model.eval()
        out = sum(self.model(self.batch(77)).values()).item()
        self.model.train()
        return out

    def state_dict(self):
        model, optim = checkpoint.full_state(self.model, self.optim)
        return {"model": model, "optim": optim, "sched": self.sched.state_dict(), "step": self.step}

    def load(self, path):
        state = torch.load(path, map_location="cpu", weights_only=False)
        checkpoint.load_full_state(self.model, self.optim, state["model"], state["optim"])
        self.sched.load_state_dict(state["sched"])
        self.step = state["step"]
