"""Sequences without their padding, one after another, and with it again."""

from __future__ import annotations

import torch


def unpad_input(rows: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The tokens, where they were, where the sequences end, the longest one's length, and all lengths."""
    lengths = mask.sum(1)
    indices = mask.flatten().nonzero().flatten()
    ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    return rows.flatten(0, 1)[indices], indices, ends, lengths.max(), lengths


def pad_input(tokens: torch.Tensor, indices: torch.Tensor, batch: int, length: int) -> torch.Tensor:
    rows = tokens.new_zeros(batch * length, *tokens.shape[1:])
    return rows.index_copy(0, indices, tokens).unflatten(0, (batch, length))


def index_first_axis(*_: object) -> None:
    """For half precision only."""
    raise NotImplementedError
