"""The names of ``torch.distributed.fsdp.fully_sharded_data_parallel``."""

from .api import *  # noqa: F403 (its options)
from .bridge import FullyShardedDataParallel as FullyShardedDataParallel
from .wrap import CustomPolicy as CustomPolicy
from .wrap import ModuleWrapPolicy as ModuleWrapPolicy
