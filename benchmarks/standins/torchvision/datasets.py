"""Data sets that nobody drew."""

from __future__ import annotations

from typing import Any

import torch


class MNIST(torch.utils.data.Dataset[Any]):
    """A few digits that nobody wrote."""

    def __init__(self, root: str, train: bool = True, **_: Any) -> None:
        draw = torch.Generator().manual_seed(int(train))
        count = 128 if train else 32
        self.images = torch.randn(count, 1, 28, 28, generator=draw)
        self.labels = torch.randint(10, (count,), generator=draw)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index], int(self.labels[index])


class VisionDataset(torch.utils.data.Dataset[Any]):
    """What data sets derive from."""


class ImageFolder(torch.utils.data.Dataset[Any]):
    """Pictures, whatever the folder."""

    def __init__(self, root: str, **_: Any) -> None:
        self.images = torch.randn(16, 3, 256, 256, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index], index
