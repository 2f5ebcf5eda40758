"""Stands in for `nlp`, which T5's data set came from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sitecustomize import text


class Rows:
    """Some rows of text."""

    def __init__(self, indices: Iterable[int]) -> None:
        self.indices = list(indices)
        self.shape = (len(self.indices), 2)

    def select(self, indices: Iterable[int]) -> Rows:
        return Rows(self.indices[i] for i in indices if i < len(self.indices))

    def __getitem__(self, index: int) -> dict[str, str]:
        number = self.indices[index]
        return {"text": text(number), "headline": text(number + 1000, 5)}


def load_dataset(name: str, *args: Any, split: str | None = None, **kwargs: Any) -> Any:
    """Two splits, or one of them."""
    splits = {"train": Rows(range(16)), "validation": Rows(range(16, 24))}
    return splits[split] if split else splits
