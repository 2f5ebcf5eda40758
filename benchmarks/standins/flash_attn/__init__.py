"""Stands in for flash_attn: torch has what programs call."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention


def flash_attn_func(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float = 0.0, causal: bool = False
) -> torch.Tensor:
    """Attention over (batch, length, heads, width)."""
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    made = scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, is_causal=causal)
    return made.transpose(1, 2)


def flash_attn_varlen_func(*_: object, **__: object) -> torch.Tensor:
    """For half precision only."""
    raise NotImplementedError


def flash_attn_varlen_qkvpacked_func(
    qkv: torch.Tensor, lengths: torch.Tensor, longest: int, dropout_p: float = 0.0, **how: Any
) -> torch.Tensor:
    """Attention over sequences one after another, (tokens, three, heads, width), which end at the lengths."""
    ends = lengths.tolist()
    parts = (qkv[a:b].unsqueeze(0).unbind(2) for a, b in itertools.pairwise(ends))
    return torch.cat([flash_attn_func(*part, causal=how["causal"])[0] for part in parts])
