import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = build()
model.reset_parameters()
model = FSDP(model)
model.reset_parameters()  # FSDP527
for p in model.parameters():
    p.register_hook(print)  # FSDP506
    p.data.add_(torch.randn_like(p))  # FSDP522
optimizer = torch.optim.LBFGS(model.parameters())  # FSDP521
