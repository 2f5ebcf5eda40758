"""Process groups for models whose gradients live on the CPU."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Draft, Edit, Edited, Example, Rule
from fsdp_migrate.findings import Action

RULE = Rule(
    "FSDP202",
    "offload-backend",
    "gradient scaling of an offloaded model needs a CPU backend",
    """FSDP1 moved what it reduced to the GPU, so programs with `CPUOffload` never needed another backend than NCCL. FSDP2's
own reductions run on the GPU as well, a full state dict is gathered there (`_state_dict_utils.py`), and the clipping of
`fsdp_migrate.runtime` moves the norm there. A gradient scaler is what is left: it reduces its flag for overflow on the mesh of
the gradients, which are on the CPU (`torch/distributed/tensor/_dispatch.py`, `found_inf_reduce_handler`). So where a model is
offloaded and a scaler is used, `init_process_group("nccl")` becomes `init_process_group("cpu:gloo,cuda:nccl")`: collectives of
CUDA tensors go on as before, and those of CPU tensors have a backend.""",
    (
        Example(
            "with a scaler",
            """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP

dist.init_process_group("nccl")
model = FSDP(model, cpu_offload=CPUOffload(offload_params=True))
scaler = torch.amp.GradScaler("cuda")
""",
            """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

dist.init_process_group("cpu:gloo,cuda:nccl")
fully_shard(model, offload_policy=CPUOffloadPolicy())
scaler = torch.amp.GradScaler("cuda")
""",
        ),
        Example(
            "a backend that is out of sight",
            """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP

dist.init_process_group(backend=args.backend)
model = FSDP(model, cpu_offload=CPUOffload(offload_params=True))
scaler = torch.amp.GradScaler("cuda")
""",
            """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

# fsdp-migrate: FSDP202 by hand: the scaler reduces on the CPU: the backend must be "cpu:gloo,cuda:nccl"
dist.init_process_group(backend=args.backend)
fully_shard(model, offload_policy=CPUOffloadPolicy())
scaler = torch.amp.GradScaler("cuda")
""",
            message="cpu:gloo,cuda:nccl",
        ),
        Example(
            "nothing that reduces on the CPU",
            """\
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP

dist.init_process_group("nccl")
model = FSDP(model, cpu_offload=CPUOffload(offload_params=True))
""",
            """\
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

dist.init_process_group("nccl")
fully_shard(model, offload_policy=CPUOffloadPolicy())
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_BOTH = "cpu:gloo,cuda:nccl"
_INIT = {
    "torch.distributed.init_process_group",
    "torch.distributed.distributed_c10d.init_process_group",
}
_SCALERS = {
    "torch.amp.GradScaler",
    "torch.amp.grad_scaler.GradScaler",
    "torch.cuda.amp.GradScaler",
    "torch.cuda.amp.grad_scaler.GradScaler",
    "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler",
}


def find(context: Context) -> Iterator[Draft]:
    """Calls of `init_process_group` around a model that is offloaded and a scaler."""
    calls = [
        call
        for call in context.module.calls
        if context.project.dotted(call.func, context.module) & _INIT
    ]
    around = context.project.connected(context.module)
    sites = frozenset(
        plan.site
        for plan in context.plans.values()
        if plan.constructor.context.module in around
        and not plan.constructor.is_none("cpu_offload")
        and (plan.translations["cpu_offload"].plain is None or _offloads(plan.merged().shared))
    )
    if not calls or not sites or not _scales(context):
        return
    for call in calls:
        backend = _backend(call)
        if backend is None:
            continue  # torch's default: a backend for each kind of device
        if not isinstance(backend, ast.Constant):
            message = f'the scaler reduces on the CPU: the backend must be "{_BOTH}"'
            construct = "init_process_group(...)"
            yield Draft(RULE, call, Action.MANUAL, message, construct, sites, mark=True)
        elif backend.value == "nccl":
            message = "the scaler reduces on the CPU as well, where the gradients are"
            construct = f"init_process_group({context.source(backend)})"
            edit = _edit(context, backend)
            yield Draft(RULE, backend, Action.REWRITE, message, construct, sites, edits=(edit,))


def _offloads(shared: dict[str, str]) -> bool:
    return "offload_policy" in shared


def _scales(context: Context) -> bool:
    """Whether a file around uses a gradient scaler."""
    return any(
        context.project.dotted(call.func, module) & _SCALERS
        for module in context.project.connected(context.module)
        for call in module.calls
    )


def _backend(call: ast.Call) -> ast.expr | None:
    given = [keyword.value for keyword in call.keywords if keyword.arg == "backend"]
    return call.args[0] if call.args else next(iter(given), None)


def _edit(context: Context, backend: ast.Constant) -> Edit:
    node = context.syntax.find(backend, cst.SimpleString)
    quote = node.quote
    return Edit(node, lambda updated: Edited(cst.SimpleString(f"{quote}{_BOTH}{quote}")))


Command = command(find, __doc__ or "")
