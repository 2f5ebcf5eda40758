import torch
from torch import nn


class ConvBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.conv = nn.Conv1d(d, d, 3, padding=1)
        self.norm = nn.GroupNorm(2, d)

    def forward(self, x, mask):
        return x + torch.relu(self.norm(self.conv(x))) * mask.to(x.dtype)


class AcousticModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.emb = nn.Embedding(12, cfg.dim, padding_idx=0)
        self.blocks = nn.ModuleList(ConvBlock(cfg.dim) for _ in range(cfg.layers))
        self.dur, self.mel = nn.Linear(cfg.dim, 1), nn.Linear(cfg.dim, 5)
        self.register_buffer("pe", torch.sin(torch.arange(20.0)[:, None] * torch.arange(1, cfg.dim + 1)), persistent=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, batch):
        x, mask = batch["tokens"], batch["mask"][:, None]
        h = (self.emb(x) + self.pe[: x.shape[1]].to(self.emb.weight.dtype)).transpose(1, 2)
        for b in self.blocks:
            h = b(h, mask)
        h = h.transpose(1, 2)
        mel, dur = self.mel(h), self.dur(h).squeeze(-1)
        if self.training:
            self.steps += 1
        return {"mel": (mel.float() - batch["mel"]).abs().mean(), "dur": (dur.float() - batch["dur"]).pow(2).mean()}
