import torch
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

model = fully_shard(torch.nn.Linear(8, 8), mp_policy=MixedPrecisionPolicy())
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
assert isinstance(model, FSDPModule)
print([p.grad.norm() for p in model.parameters()], getattr(torch.distributed.fsdp, "fully_shard"))
for name in ("fully_shard", "FSDPModule"):
    print(getattr(torch.distributed.fsdp, name))
