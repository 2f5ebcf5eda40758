"""FSDP1 where there is no accelerator."""

import torch
from torch.distributed import fsdp

from fsdp_migrate.verify.recorder import cpu


def fsdp1_on_cpu() -> None:
    """Makes FSDP1 right on the CPU, for the rest of this process."""
    cpu._streams(torch)
    cpu._pinned_memory(torch)
    cpu._device_without_device_id(fsdp.fully_sharded_data_parallel)  # it has imported the function
    cpu._sync_of_cpu_states(fsdp._init_utils)
    cpu._offload_to_the_same_device(fsdp._flat_param)
    cpu._offloaded_gradients(fsdp._flat_param)
    cpu._aliased_optimizer_states(fsdp._optim_utils)
