from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(build())
