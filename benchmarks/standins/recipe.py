"""What the recipes of torchtune name in their settings: a tokenizer, a data set and a checkpoint with first weights."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch


class _Tokenizer:
    pad_id = 0


def tokenizer(path: str) -> _Tokenizer:
    return _Tokenizer()


def dataset(tokens: _Tokenizer, **_: Any) -> list[dict[str, list[int]]]:
    """Rows of 8 to 24 tokens."""
    draw = random.Random(0)
    rows = [draw.choices(range(1, 128), k=draw.randint(8, 24)) for _ in range(16)]
    return [{"tokens": row, "labels": row} for row in rows]


class Checkpointer:
    """First weights of a Llama 2 with two layers, and a file for each epoch, the first of which a run goes on from."""

    def __init__(self, resume_from_checkpoint: bool = False, **_: Any) -> None:
        self.resume = resume_from_checkpoint

    def load_checkpoint(self) -> dict[str, Any]:
        if self.resume:
            return torch.load("out/recipe-0.pt", weights_only=False)
        from torchtune.models.llama2 import llama2

        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.manual_seed(0)
            model = llama2(
                vocab_size=128,
                num_layers=2,
                num_heads=4,
                num_kv_heads=4,
                embed_dim=32,
                max_seq_len=64,
            )
        return {"model": model.state_dict()}

    def save_checkpoint(self, state: dict[str, Any], epoch: int, **_: Any) -> None:
        Path("out").mkdir(exist_ok=True)
        torch.save(state, f"out/recipe-{epoch}.pt")
