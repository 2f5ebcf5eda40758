"""What stands for a gradient that is not reduced yet: FSDP2 keeps it apart from its parameter until then."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from .refusals import UnsupportedInFSDP2


class NotReduced(torch.Tensor):
    """A tensor without values, which can be set to zero and asked for its shape; all else raises what says what to do."""

    @staticmethod
    def like(shard: torch.Tensor) -> NotReduced:
        """What stands for the gradient of ``shard``."""
        return NotReduced._of(shard.shape, shard)

    @staticmethod
    def _of(shape: torch.Size, like: torch.Tensor) -> NotReduced:
        tensor = torch.Tensor._make_wrapper_subclass(
            NotReduced, shape, dtype=like.dtype, device=like.device
        )
        assert isinstance(tensor, NotReduced)
        return tensor

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        packet = func.overloadpacket
        if packet in _ZEROES:
            if packet is torch.ops.aten._foreach_zero_:
                return None
            return args[0]
        if packet in _VIEWS:  # the same without values
            on_meta = tree_map_only(NotReduced, _on_meta, args)
            return NotReduced._of(func(*on_meta, **(kwargs or {})).shape, args[0])
        raise UnsupportedInFSDP2(
            "FSDP311",
            "a gradient is read inside no_sync(), before it is reduced",
            "read it after the backward pass outside no_sync(), because FSDP2 stores it separately until then",
        )

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return "a gradient that is not reduced yet"


_ZEROES = {torch.ops.aten.zero_, torch.ops.aten._foreach_zero_}
_VIEWS = {torch.ops.aten.detach, torch.ops.aten.view, torch.ops.aten.alias, torch.ops.aten.view_as}


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
