"""What is checked without FSDP1 beside it. Each check runs on every rank and asserts for itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

CHECKS: dict[str, Callable[[], Any]] = {}
