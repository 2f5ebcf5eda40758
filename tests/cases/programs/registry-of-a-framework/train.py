import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from mm import MODELS, MODEL_WRAPPERS, BaseModel, OptimWrapper, build
from mm.wrappers import FullStateDictConfig, MMFullyShardedDataParallel, StateDictType

cfg = dict(
    model=dict(type="Classifier", dim=16, classes=4),
    model_wrapper_cfg=dict(
        type="MMFullyShardedDataParallel",
        sharding_strategy="SHARD_GRAD_OP",
        auto_wrap_policy=dict(type="size_based_auto_wrap_policy", min_num_params=200),
        mixed_precision=dict(param_dtype="bfloat16", reduce_dtype="float32"),
    ),
)


@MODELS.register_module()
class Classifier(BaseModel):
    def __init__(self, dim, classes):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, dim), nn.BatchNorm1d(dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU())
        self.head = nn.Linear(dim, classes)

    def forward(self, inputs, labels=None, mode="tensor"):
        out = self.head(self.net(inputs)).float()
        if mode == "loss":
            return {"loss_cls": F.cross_entropy(out, labels), "acc": (out.argmax(1) == labels).float()}
        return out.argmax(1) if mode == "predict" else out


class Runner:
    def __init__(self, cfg):
        model = MODELS.build(cfg["model"])
        self.model = MODEL_WRAPPERS.build(cfg["model_wrapper_cfg"], module=model)
        self.optim_wrapper = OptimWrapper(torch.optim.AdamW(self.model.parameters(), lr=1e-2), accumulative_counts=2, clip_grad={"clip_value": 0.1})

    def train(self, n):
        g = torch.Generator().manual_seed(dist.get_rank())
        for i in range(n):
            data = dict(inputs=torch.randn(4, 8, generator=g).cuda(), labels=torch.randint(0, 4, (4,), generator=g).cuda())
            log = self.model.train_step(data, self.optim_wrapper)
            print("R", i, {k: round(float(v), 4) for k, v in log.items()})
        self.model.eval()
        with torch.no_grad():
            print("R", self.model.val_step({"inputs": data["inputs"]}).tolist())

    def save(self, path):
        MMFullyShardedDataParallel.set_state_dict_type(self.model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=True, offload_to_cpu=True))
        state = self.model.state_dict()
        if dist.get_rank() == 0:
            torch.save(state, path)
        print("R", {k: round(v.float().sum().item(), 3) for k, v in state.items()})


if __name__ == "__main__":
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    r = Runner(cfg)
    r.train(4)
    r.save("mm.pth")
    dist.destroy_process_group()
