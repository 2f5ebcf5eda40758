"""Programs that save and load the states of an optimizer, before and after."""

from __future__ import annotations

from fsdp_migrate.codemods.rule import Example

_HEADER = (
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(model)\n"
)

EXAMPLES = (
    Example(
        "gathering for rank 0",
        f"{_HEADER}state = FSDP.full_optim_state_dict(model, optimizer)\n",
        """\
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard

fully_shard(model)
state = get_optimizer_state_dict(
    model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
)
""",
    ),
    Example(
        "gathering for every rank, on the CPU",
        f"{_HEADER}state = FSDP.optim_state_dict(model, optimizer)\n",
        """\
from fsdp_migrate.runtime import optim_state_dict
from torch.distributed.fsdp import fully_shard

fully_shard(model)
state = optim_state_dict(model, optimizer)
""",
    ),
    Example(
        "read by rank 0 alone",
        """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def save(optimizer, path):
    state = FSDP.optim_state_dict(model, optimizer)
    if dist.get_rank() == 0:
        torch.save(state, path)


model = FSDP(model)
""",
        """\
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard


def save(optimizer, path):
    state = get_optimizer_state_dict(
        model,
        optimizer,
        options=StateDictOptions(full_state_dict=True, cpu_offload=True),
    )
    if dist.get_rank() == 0:
        torch.save(state, path)


fully_shard(model)
""",
    ),
    Example(
        "loading",
        f"""\
{_HEADER}sharded = FSDP.optim_state_dict_to_load(model, optimizer, saved)
optimizer.load_state_dict(sharded)
""",
        """\
from fsdp_migrate.runtime import set_optimizer_state_dict
from torch.distributed.checkpoint.state_dict import StateDictOptions
from torch.distributed.fsdp import fully_shard

fully_shard(model)
set_optimizer_state_dict(
    model, optimizer, saved, options=StateDictOptions(full_state_dict=True)
)
""",
    ),
    Example(
        "loading what only rank 0 has, with the parameters' own shapes",
        """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, use_orig_params=True)
optimizer = torch.optim.AdamW(model.parameters())
optimizer.load_state_dict(FSDP.scatter_full_optim_state_dict(saved, model))
""",
        """\
import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard

fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
set_optimizer_state_dict(
    model,
    optimizer,
    saved,
    options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True),
)
""",
    ),
    Example(
        "the order of torch 2.0, and a result that is kept",
        f"{_HEADER}self.state = FSDP.optim_state_dict_to_load(saved, model, optimizer)\n",
        """\
from fsdp_migrate.runtime import optim_state_dict_to_load
from torch.distributed.fsdp import fully_shard

fully_shard(model)
self.state = optim_state_dict_to_load(model, optimizer, saved)
""",
    ),
    Example(
        "which argument is the model",
        f"{_HEADER}state = FSDP.optim_state_dict_to_load(first, second, third)\n",
        """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard

fully_shard(model)
# fsdp-migrate: FSDP335 by hand: which argument is the model? before torch 2.1 the states came first; give them by keyword
state = FSDP.optim_state_dict_to_load(first, second, third)
""",
        message="by keyword",
    ),
    Example(
        "an optimizer's own state dict",
        f"{_HEADER}scheduler.load_state_dict(saved)\n",
        """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
scheduler.load_state_dict(saved)
""",
        quiet=True,
    ),
)
