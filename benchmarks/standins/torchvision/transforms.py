"""What the tutorial composes, and the noise does not need."""

from __future__ import annotations

from typing import Any


class Compose:
    """Takes anything, does nothing."""

    def __init__(self, *_: Any) -> None: ...


ToTensor = Normalize = Compose
