"""What programs compose, and the noise does not need."""

from __future__ import annotations

from typing import Any


class Compose:
    """Takes anything, does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None: ...


ToTensor = Normalize = Lambda = RandomApply = RandomHorizontalFlip = Compose


class InterpolationMode:
    BICUBIC = 3


__path__: list[str] = []  # torchvision.transforms.v2 is stood in for by sitecustomize
