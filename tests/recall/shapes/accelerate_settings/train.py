import torch
from accelerate import Accelerator
from torch import nn

accelerator = Accelerator()


class Policy(nn.Module):
    def forward(self, x):
        return self.decoder(x)

    def respond(self, x):
        return self._sample(x)

    def _sample(self, x):
        return self.decoder.generate(x)


class Trainer:
    def __init__(self, policy, reference, optimizer, loader):
        self.policy, self.reference, self.optimizer = accelerator.prepare(policy, reference, optimizer)  # FSDP808
        self.loader = accelerator.prepare(loader)

    def step(self, batch):
        for part in batch:
            with self.policy.no_sync():  # FSDP311
                accelerator.backward(self.policy(part))
        with accelerator.accumulate(self.policy):
            self.policy.clip_grad_norm_(1.0)  # FSDP301
            total = accelerator.clip_grad_norm_(self.policy.parameters(), 1.0)
            print(total.item(), f"{total.item():.3f}", f"{total}")
            print(f"{total:.3f}")  # FSDP808
            print(torch.as_tensor(total).reshape(-1).cpu().numpy())  # FSDP808
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)  # FSDP302
            norm = torch.stack([p.norm() for p in self.trained]).norm()  # FSDP507
        if self.policy.sharding_strategy:  # FSDP808
            self.optimizer.step()
        return norm

    @property
    def trained(self):
        return [p for p in self.policy.parameters() if p.requires_grad]

    def warm_up(self, inputs):
        self.policy(inputs)  # FSDP808
        raw = accelerator.unwrap_model(self.policy)
        return raw.respond(inputs)  # FSDP808

    def sync(self, reference):
        states = accelerator.unwrap_model(self.policy).state_dict()  # FSDP808
        loader = accelerator.unwrap_model(self.loader).state_dict()
        reference.load_state_dict(states)
        return loader

    def save(self):
        torch.save(self.policy.state_dict(), "policy.pt")  # FSDP808
        torch.save(accelerator.get_state_dict(self.policy), "policy.pt")
        raw = self.policy.module if hasattr(self.policy, "module") else self.policy
        return raw, self.policy.module  # FSDP808


def build(kind):
    model = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    if kind == "apart":
        model = accelerator.prepare(model)  # FSDP808
        optimizer = accelerator.prepare(optimizer)  # FSDP808
        return accelerator.prepare_model(model), optimizer  # FSDP808
    if kind == "deepspeed":
        model = accelerator.prepare(model)
    elif kind == "frozen":
        model = accelerator.prepare_model(model, evaluation_mode=True)
    else:
        model, optimizer = accelerator.prepare(model, optimizer)
    return model, optimizer
