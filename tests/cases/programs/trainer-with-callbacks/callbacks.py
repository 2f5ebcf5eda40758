import os

import torch
import torch.distributed as dist


class GradNormCallback:
    def on_step(self, trainer, logs):
        if dist.get_rank() == 0:
            print("R", trainer.step, logs)


class LRMonitor:
    def on_step(self, trainer, logs):
        logs["lr"] = [g["lr"] for g in trainer.optim.param_groups]


class CheckpointCallback:
    def __init__(self, folder, every):
        self.folder, self.every = folder, every
        os.makedirs(folder, exist_ok=True)

    def on_step(self, trainer, logs):
        if trainer.step % self.every == 0:
            state = trainer.state_dict()
            if dist.get_rank() == 0:
                torch.save(state, f"{self.folder}/last.pt")
            dist.barrier()
