"""Trainer with callbacks, config dataclass, optional EMA, resume; the model returns a dict of losses."""
import argparse
import json
import os
from dataclasses import asdict

import torch
import torch.distributed as dist

from conf import Config
from callbacks import CheckpointCallback, GradNormCallback, LRMonitor
from model import AcousticModel
from trainer import Trainer


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=4)
    ap.add_argument("--resume", default="")
    args = ap.parse_args()
    cfg = Config(max_steps=args.steps)
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(cfg.seed)
    model = AcousticModel(cfg)
    trainer = Trainer(cfg, model, callbacks=[GradNormCallback(), LRMonitor(), CheckpointCallback("exp", every=2)])
    trainer.fit()
    print("R", json.dumps(trainer.history))
    again = Trainer(cfg, AcousticModel(cfg), callbacks=[])
    again.load("exp/last.pt")
    print("R restored", again.step, again.validate() == trainer.validate())
    cfg.max_steps += 2
    again.fit()
    print("R", json.dumps(again.history), json.dumps(asdict(cfg)))
    dist.barrier()
    dist.destroy_process_group()


main()
