from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from optimization import Clipping

model = FSDP(build())
steps = Clipping(torch.optim.SGD(model.parameters()), limit=1.0)
