"""``ShardedGradScaler``: FSDP1's gradient scaler, for DTensors and plain tensors."""

from typing import Any

import torch
import torch.distributed as dist
from torch.amp.grad_scaler import GradScaler

from .gather import local_shard

__all__ = ["ShardedGradScaler"]


class ShardedGradScaler(GradScaler):
    """``torch.amp.GradScaler`` whose ranks, those of ``process_group``, agree on whether to skip a step.

    torch's own does so for DTensors alone, and cannot take them together with the plain gradients of ignored
    parameters.
    """

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        backoff_factor: float = 0.5,
        growth_factor: float = 2.0,
        growth_interval: int = 2000,
        enabled: bool = True,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(
            device,
            init_scale=init_scale,
            backoff_factor=backoff_factor,
            growth_factor=growth_factor,
            growth_interval=growth_interval,
            enabled=enabled,
        )
        self.process_group = process_group

    def scale(self, outputs: Any) -> Any:
        """As ``GradScaler``'s, in the dtype of ``outputs``, which may be ``param_dtype``."""
        return _in_dtypes_of(outputs, super().scale(outputs))

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: torch.Tensor,
        found_inf: torch.Tensor,
        allow_fp16: bool,
    ) -> dict[torch.device, torch.Tensor]:
        """Unscales this rank's shards, fp16 ones too, and asks the other ranks what they found."""
        by_kind: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shard = local_shard(parameter.grad)
                    if shard.is_sparse:
                        shard = shard._values()
                    by_kind.setdefault((shard.device, shard.dtype), []).append(shard)
        found = {device: found_inf.to(device) for device, _ in by_kind}
        for (device, _), shards in by_kind.items():
            torch._amp_foreach_non_finite_check_and_unscale_(
                shards, found[device], inv_scale.to(device)
            )
        total = found_inf.clone()
        for each in found.values():
            total += each.to(total.device)
        dist.all_reduce(total, group=self.process_group)
        return {device: total.to(device) for device in found} or {total.device: total}


def _in_dtypes_of(given: Any, scaled: Any) -> Any:
    if isinstance(given, torch.Tensor):
        return scaled.type(given.dtype)
    if isinstance(given, (list, tuple)):
        return type(given)(map(_in_dtypes_of, given, scaled))
    return scaled
