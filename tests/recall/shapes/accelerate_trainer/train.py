import torch
import transformers
from transformers import Trainer


class Own(Trainer):
    def training_step(self, model, inputs):
        with model.no_sync():  # FSDP311
            loss = self.compute_loss(model, inputs)
        print(torch.stack([p.grad.norm() for p in model.parameters()]).sum())  # FSDP507
        self.accelerator.backward(loss)
        return loss

    def create_optimizer(self):
        self.optimizer = torch.optim.AdamW(self.model.parameters())


def save(trainer: transformers.Trainer):
    state = trainer.model.state_dict()  # FSDP808
    trainer._save("out", state_dict=state)
