from contextlib import contextmanager

import torch


class OptimWrapper:
    def __init__(self, optimizer, accumulative_counts=1, clip_grad=None):
        self.optimizer, self._accumulative_counts, self.clip = optimizer, accumulative_counts, clip_grad
        self._inner_count = 0
        self.message = {}

    def update_params(self, loss):
        loss = loss / self._accumulative_counts
        loss.backward()
        self._inner_count += 1
        if self.should_update():
            if self.clip:
                self._clip_grad()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def _clip_grad(self):
        params = [p for g in self.optimizer.param_groups for p in g["params"] if p.requires_grad and p.grad is not None]
        if params:
            self.message["grad_norm"] = torch.nn.utils.clip_grad_value_(params, **self.clip)

    def should_update(self):
        return self._inner_count % self._accumulative_counts == 0

    def should_sync(self):
        return (self._inner_count + 1) % self._accumulative_counts == 0

    @contextmanager
    def optim_context(self, model):
        if not self.should_sync() and hasattr(model, "no_sync"):
            with model.no_sync():
                yield
        else:
            yield
