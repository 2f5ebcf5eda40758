import torch
import transformers
from transformers import Trainer
from transformers.trainer_pt_utils import get_model_param_count, get_parameter_names


class Own(Trainer):
    def training_step(self, model, inputs):
        with model.no_sync():  # FSDP311
            loss = self.compute_loss(model, inputs)
        print(torch.stack([p.grad.norm() for p in model.parameters()]).sum())  # FSDP507
        self.accelerator.backward(loss)
        return loss

    def compute_loss(self, model, inputs):
        print(get_model_param_count(model, trainable_only=True))  # FSDP808
        print(get_parameter_names(model, []))  # FSDP808
        self.accelerator.state.fsdp_plugin.limit_all_gathers = True  # FSDP804
        return model(**inputs)

    def create_optimizer(self):
        self.optimizer = torch.optim.AdamW(self.model.parameters())


def save(trainer: transformers.Trainer):
    state = trainer.model.state_dict()  # FSDP808
    trainer._save("out", state_dict=state)


def train(model, arguments):
    trainer = Trainer(model=model, args=arguments)
    before = adapters(model.named_parameters())
    model.save_pretrained("before", state_dict=before)
    trainer.train()
    state = adapters(model.named_parameters())  # FSDP808
    print([name for name, _ in model.named_parameters()])
    model.save_pretrained("out", state_dict=state)
