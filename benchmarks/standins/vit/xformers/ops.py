"""Attention within blocks of a sequence, and residuals of a part of a batch, in torch's words."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import torch
from torch import Tensor, unbind
from torch.nn.functional import scaled_dot_product_attention

__all__ = ["fmha", "index_select_cat", "memory_efficient_attention", "scaled_index_add", "unbind"]


class BlockDiagonalMask:
    """Sequences one after another, each of which sees itself alone."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths
        self._batch_sizes = [1] * len(lengths)

    @classmethod
    def from_seqlens(cls, lengths: list[int]) -> BlockDiagonalMask:
        return cls(lengths)

    @classmethod
    def from_tensor_list(cls, tensors: list[Tensor]) -> tuple[BlockDiagonalMask, Tensor]:
        mask = cls([each.shape[1] for each in tensors for _ in range(each.shape[0])])
        mask._batch_sizes = [each.shape[0] for each in tensors]
        return mask, torch.cat([each.reshape(1, -1, *each.shape[2:]) for each in tensors], 1)

    def split(self, tensor: Tensor) -> list[Tensor]:
        """The batches that were put one after another."""
        starts = torch.tensor([0, *self._batch_sizes]).cumsum(0).tolist()
        batches = [self.lengths[a:b] for a, b in itertools.pairwise(starts)]
        parts = tensor.split([sum(lengths) for lengths in batches], 1)
        return [
            part.reshape(len(lengths), lengths[0], *tensor.shape[2:])
            for part, lengths in zip(parts, batches, strict=True)
        ]


fmha = SimpleNamespace(BlockDiagonalMask=BlockDiagonalMask)


def memory_efficient_attention(
    q: Tensor, k: Tensor, v: Tensor, attn_bias: BlockDiagonalMask | None = None
) -> Tensor:
    """Attention over (batch, length, heads, width)."""
    lengths = attn_bias.lengths if attn_bias else [q.shape[1]]
    parts = zip(*(each.transpose(1, 2).split(lengths, 2) for each in (q, k, v)), strict=True)
    return torch.cat([scaled_dot_product_attention(*part) for part in parts], 2).transpose(1, 2)


def index_select_cat(sources: list[Tensor], indices: list[Tensor]) -> Tensor:
    pairs = zip(sources, indices, strict=True)
    return torch.cat([source[index].flatten() for source, index in pairs])


def scaled_index_add(
    rows: Tensor, index: Tensor, source: Tensor, scaling: Tensor, alpha: float
) -> Tensor:
    return torch.index_add(rows, 0, index, source * scaling, alpha=alpha)
