import torch


class Clipping:
    def __init__(self, optimizer, limit):
        self.optimizer, self.limit = optimizer, limit
        self.clip = torch.nn.utils.clip_grad_norm_  # FSDP302

    def step(self):
        for group in self.optimizer.param_groups:
            torch.nn.utils.clip_grad_norm_(group["params"], self.limit)  # FSDP302
        self.optimizer.step()
