import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def save(model, optimizer):
    torch.save(FSDP.optim_state_dict(model, optimizer, optimizer.state_dict()), "optimizer.pt")


def load(model, optimizer):
    state = FSDP.optim_state_dict_to_load(model, optimizer, torch.load("optimizer.pt"))
    optimizer.load_state_dict(state)


model = FSDP(build())
critic = torch.optim.SGD(nn.Linear(8, 8).parameters())
save(model, torch.optim.AdamW(model.parameters()))
torch.save(critic.state_dict(), "critic.pt")
scheduler = torch.optim.lr_scheduler.StepLR(critic, 1)
torch.save(scheduler.state_dict(), "scheduler.pt")
