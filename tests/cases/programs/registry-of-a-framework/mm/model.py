from collections import OrderedDict

import torch
import torch.nn as nn


class BaseModel(nn.Module):
    def train_step(self, data, optim_wrapper):
        with optim_wrapper.optim_context(self):
            losses = self._run_forward(data, mode="loss")
        parsed, log = self.parse_losses(losses)
        optim_wrapper.update_params(parsed)
        return log

    def parse_losses(self, losses):
        log = OrderedDict((k, v.mean()) for k, v in losses.items())
        loss = sum(v for k, v in log.items() if "loss" in k)
        log["loss"] = loss
        return loss, log

    def _run_forward(self, data, mode):
        return self(**data, mode=mode)

    def val_step(self, data):
        return self._run_forward(data, mode="predict")
