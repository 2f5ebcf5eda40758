"""Optimizers choose as on CUDA: one operation for all tensors of a group (`foreach`) where none is asked for.

On the CPU torch takes them one by one. That hides what happens on CUDA to a group with sharded and plain parameters:
an operation for all of them raises for a mixture.
"""

from torch.optim import optimizer, swa_utils
from torch.utils import _foreach_utils

from ..patch import Method, around

_NAME = "_get_foreach_kernels_supported_devices"


def install() -> None:
    """Add the CPU to the devices with such operations, which it has, only slower."""

    def devices(original: Method) -> list[str]:
        return [*original(), "cpu"]

    # The others have the function under a name of their own.
    for module in (_foreach_utils, optimizer, swa_utils):
        around(module, _NAME, devices)
