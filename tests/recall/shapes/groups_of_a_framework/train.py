from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from groups import Constructor

model = FSDP(build(), use_orig_params=True)
groups = Constructor({}).groups(model)
