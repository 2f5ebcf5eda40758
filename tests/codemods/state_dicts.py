"""What programs that save and load state dicts begin with."""

HEADER = """\
import torch
from torch.distributed.fsdp import (
    FullStateDictConfig,  # noqa: F401
    FullyShardedDataParallel as FSDP,
    StateDictType,  # noqa: F401
)


"""
FULL = "FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(True, True))"


SAVING = (
    f"def save(model):\n    with {FULL}:\n        state = model.state_dict()\n    return state\n"
)
