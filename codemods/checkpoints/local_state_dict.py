"""LOCAL_STATE_DICT, the flat shard of a rank: what is said of it wherever it stands."""

from __future__ import annotations

from fsdp_migrate.codemods.rule import Example, Rule

LOCAL = Rule(
    "FSDP334",
    "local-state-dict",
    "LOCAL_STATE_DICT is the flat shard of a rank, which FSDP2 does not have",
    """The files hold slices of flat parameters, and only FSDP1 on the same number of ranks can read them. Load them there
once and save them as FULL_STATE_DICT or SHARDED_STATE_DICT; FSDP2 reads both. Left behind, the context fails on an FSDP2 model
with a KeyError. Around `optimizer.state_dict()` alone it has no effect and goes away. That state dict is one of shards under
both, of flat tensors before and of DTensors now: each rank can load its own file again, on as many ranks. What FSDP1 wrote
fails, when it is loaded or at the first step. `get_optimizer_state_dict` makes states for any number of ranks.""",
    (
        Example(
            "shards of a model",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

model = FSDP(model)
with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
    state = model.state_dict()
""",
            """\
from fsdp_migrate.runtime import StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard

fully_shard(model)
# fsdp-migrate: FSDP334 by hand: not in FSDP2: with FSDP1 on as many ranks load the files and save them as FULL or SHARDED
with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
    state = model.state_dict()
""",
            message="save them as FULL or SHARDED",
        ),
        Example(
            "around the optimizer's own state dict",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

model = FSDP(model)
with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
    torch.save(optimizer.state_dict(), f"optimizer.{rank}.pth")
""",
            """\
import torch
from torch.distributed.fsdp import fully_shard

fully_shard(model)
torch.save(optimizer.state_dict(), f"optimizer.{rank}.pth")
""",
            message="DTensors",
        ),
    ),
)
NO_LOCAL = (
    "not in FSDP2: with FSDP1 on as many ranks load the files and save them as FULL or SHARDED"
)
