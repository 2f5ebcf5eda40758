"""The autoencoder of a diffusion model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch


class AutoencoderKL(torch.nn.Module):
    """Every eighth pixel is the latent one."""

    @classmethod
    def from_pretrained(cls, *_: Any, **__: Any) -> AutoencoderKL:
        return cls()

    def encode(self, images: torch.Tensor) -> Any:
        small = images[:, :, ::8, ::8]
        latent = torch.cat([small, small.mean(1, keepdim=True)], 1)
        return SimpleNamespace(latent_dist=SimpleNamespace(sample=latent.clone))
