import torch
from packaging import version
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

OLD = version.parse(torch.__version__)
model = FSDP(build())
if version.parse(torch.__version__) < version.parse("2.7.1"):
    handles = model._all_handles
elif torch.__version__ >= "2.1":
    handles = model._handles  # FSDP366
else:
    handles = model._handles
if OLD >= version.parse("2.0") and OLD < version.parse("2.1"):
    print(model._handle)
if OLD >= version.parse("2.9"):
    print(model._handle)  # FSDP366


class Scaler:
    def __call__(self, parameters, strategy, limit):
        assert strategy != "fsdp", "it has a scaler of its own"
        torch.nn.utils.clip_grad_norm_(parameters, limit)

    def sharded(self, parameters, model, limit):
        assert isinstance(model, FSDP)
        torch.nn.utils.clip_grad_norm_(parameters, limit)  # FSDP302


def clip(parameters, use_fsdp):
    if use_fsdp:
        raise ValueError("not here")
    return torch.nn.utils.clip_grad_norm_(parameters, 1.0)


Scaler()(model.parameters(), "ddp", 1.0)
Scaler().sharded(model.parameters(), model, 1.0)
clip(model.parameters(), False)
