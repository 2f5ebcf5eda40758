"""`ShardedGradScaler`: a GradScaler whose ranks skip a step together, which `torch.amp.GradScaler` does for DTensors."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.annotations import is_annotation, quoted, renamed_inside
from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.arguments import ArgumentEdits
from fsdp_migrate.codemods.loop.clip_calls import ignores
from fsdp_migrate.codemods.rule import Draft, Edit, Example, Need, Rule
from fsdp_migrate.findings import Action
from fsdp_migrate.index.module import Module

RULE = Rule(
    "FSDP351",
    "sharded-grad-scaler",
    "ShardedGradScaler becomes torch.amp.GradScaler",
    """FSDP1 needed a scaler of its own: it reduces the flag of infinite gradients over the ranks, so that all of them skip a
step. For DTensors torch does so in the operator (`tensor/_dispatch.py`, `found_inf_reduce_handler`), and
`torch.amp.GradScaler` scales, skips and grows in the same steps. The two have the same defaults, the device among them
("cuda": without one, both warn and are switched off), but not the same order of arguments, so that all go by keyword. A
`process_group` may be wider than the ranks that share a model, gradients in float16 are refused by `torch.amp.GradScaler`,
and plain (ignored) parameters beside DTensors by the operator itself: these are left to be done by hand. So
is a scaler whose class a test asks for, or without an FSDP1 model around.""",
    (
        Example(
            "by default",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

model = FSDP(model)
scaler = ShardedGradScaler(enabled=args.fp16)
""",
            """\
import torch
from torch.distributed.fsdp import fully_shard

fully_shard(model)
scaler = torch.amp.GradScaler(enabled=args.fp16)
""",
        ),
        Example(
            "by position, and with the group of all ranks",
            """\
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

model = FSDP(model)
scaler = ShardedGradScaler("cuda", 1024.0, 0.25, process_group=dist.group.WORLD)
""",
            """\
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.amp import GradScaler

fully_shard(model)
scaler = GradScaler("cuda", init_scale=1024.0, backoff_factor=0.25)
""",
        ),
        Example(
            "an annotation",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler


def train(model: FSDP, scaler: ShardedGradScaler, other: "ShardedGradScaler | None" = None): ...


train(FSDP(model), ShardedGradScaler())
""",
            """\
import torch
from torch.distributed.fsdp import FSDPModule, fully_shard


def train(model: FSDPModule, scaler: torch.amp.GradScaler, other: "torch.amp.GradScaler | None" = None): ...


train(fully_shard(model), torch.amp.GradScaler())
""",
        ),
        Example(
            "a group of its own",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

model = FSDP(model)
scaler = ShardedGradScaler(process_group=group)
""",
            """\
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

fully_shard(model)
scaler = ShardedGradScaler(process_group=group)
""",
            message="its group may be wider",
        ),
        Example(
            "parameters in float16",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

model = FSDP(Net().half())
scaler = ShardedGradScaler()
""",
            """\
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

model = fully_shard(Net().half())
scaler = ShardedGradScaler()
""",
            message="refuses gradients in float16",
        ),
        Example(
            "a test that tells scalers apart",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

model = FSDP(model)
scaler = ShardedGradScaler() if args.fp16 else torch.amp.GradScaler(enabled=False)
print(isinstance(scaler, ShardedGradScaler))
""",
            """\
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

fully_shard(model)
scaler = ShardedGradScaler() if args.fp16 else torch.amp.GradScaler(enabled=False)
print(isinstance(scaler, ShardedGradScaler))
""",
            message="a test asks for its class",
        ),
        Example(
            "no FSDP1 model in sight",
            """\
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

scaler = ShardedGradScaler()
""",
            message="no FSDP1 model in sight",
        ),
        Example(
            "another scaler",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
scaler = torch.amp.GradScaler()
""",
            """\
import torch
from torch.distributed.fsdp import fully_shard

fully_shard(model)
scaler = torch.amp.GradScaler()
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_NAME = "ShardedGradScaler"
_SIGNATURE = (
    "device",
    "init_scale",
    "backoff_factor",
    "growth_factor",
    "growth_interval",
    "enabled",
    "process_group",
)
_SKIPS = "torch.amp.GradScaler skips a step on all ranks together as well"
_STAYS = "works with FSDP2 as it is, as long as torch has it"


def find(context: Context) -> Iterator[Draft]:
    """References to `ShardedGradScaler`."""
    yield from _quoted(context)
    for reference in context.references():
        if context.fsdp1(reference) != _NAME:
            continue
        parent = context.module.parents[reference]
        call = parent if isinstance(parent, ast.Call) and parent.func is reference else None
        reason = _reason(context)
        if call is not None:
            reason = reason or _reason_in(context, call)
        elif not is_annotation(context, reference):
            reason = reason or "used as a value, write torch.amp.GradScaler where it is called"
        if reason is not None:
            yield Draft(RULE, reference, Action.MANUAL, f"{_STAYS}; {reason}", _NAME)
            continue
        name, needs = _scaler(context, reference)
        edit = context.rename(reference, name) if call is None else _edit(context, call, name)
        yield Draft(
            RULE,
            reference,
            Action.REWRITE,
            _SKIPS,
            _NAME,
            edits=(edit,),
            needs=needs,
            gone=(reference, *(_group(call) if call else ())),
        )


def _quoted(context: Context) -> Iterator[Draft]:
    """Annotations in quotes."""
    for string, written in quoted(context, _NAME):
        if written is None or _reason(context) is not None:
            continue  # it goes on naming a class that stays
        name, needs = _scaler(context, written)
        construct, edit = context.source(string), renamed_inside(context, string, written.id, name)
        yield Draft(
            RULE,
            string,
            Action.REWRITE,
            _SKIPS,
            construct,
            edits=(edit,),
            needs=needs,
            gone=(string,),
        )


def _scaler(context: Context, reference: ast.expr) -> tuple[str, tuple[Need, ...]]:
    """How a file says `torch.amp.GradScaler`, and what it has to import for that."""
    spelled = context.spelled("torch.amp.GradScaler", reference)
    return (spelled, ()) if spelled else context.name("torch.amp", "GradScaler", reference)


def _reason(context: Context) -> str | None:
    """Why scalers of this file cannot change, whatever their arguments."""
    around = context.project.connected(context.module)
    plans = [p for p in context.plans.values() if p.constructor.context.module in around]
    if not plans:
        return "with no FSDP1 model in sight nothing says that its gradients are DTensors"
    if any(ignores(plan) for plan in plans):
        return (
            "plain (ignored) parameters beside DTensors need an optimizer and a scaler of their own"
        )
    if any(_halves(call) for module in around for call in module.calls):
        return "torch.amp.GradScaler refuses gradients in float16"
    if any(_asks(context, module, call) for module in around for call in module.calls):
        return "a test asks for its class"
    return None


def _asks(context: Context, module: Module, call: ast.Call) -> bool:
    """Whether a call is `isinstance(scaler, ShardedGradScaler)`: it may be there to tell the two kinds apart."""
    return (
        isinstance(call.func, ast.Name)
        and call.func.id in {"isinstance", "issubclass"}
        and any(
            isinstance(node, ast.Name | ast.Attribute)
            and context.project.fsdp1(node, module) == _NAME
            for argument in call.args[1:]
            for node in ast.walk(argument)
        )
    )


def _halves(call: ast.Call) -> bool:
    """Whether a call may give parameters in float16: `.half()`, `.to(torch.float16)`, `torch_dtype=torch.float16`."""
    function = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if function == "half":
        return True
    given = [k.value for k in call.keywords if k.arg in {"torch_dtype", "dtype"}]
    if function in {"to", "from_pretrained", "set_default_dtype"}:
        given += call.args
        return any(ast.unparse(value) in {"torch.float16", "torch.half"} for value in given)
    return False


def _reason_in(context: Context, call: ast.Call) -> str | None:
    """Why one call cannot change."""
    if any(isinstance(a, ast.Starred) for a in call.args) or any(
        keyword.arg is None for keyword in call.keywords
    ):
        return "its arguments are known only when the program runs"
    first = call.args[0] if call.args else None
    if isinstance(first, ast.Constant) and not isinstance(first.value, str):
        return "its first argument was the scale before torch 2.3 and is the device now"
    for group in _group(call):
        given = group.value if isinstance(group, ast.keyword) else group
        world = context.project.dotted(given, context.module)
        if not isinstance(given, ast.Constant) and world != {"torch.distributed.group.WORLD"}:
            return "its group may be wider than the ranks that share a model"
    return None


def _group(call: ast.Call) -> list[ast.expr | ast.keyword]:
    """The argument `process_group` of a call."""
    last = len(_SIGNATURE) - 1
    return [*call.args[last:], *(k for k in call.keywords if k.arg == _SIGNATURE[last])]


def _edit(context: Context, call: ast.Call, name: str) -> Edit:
    given = [*call.args, *call.keywords]
    dropped = frozenset(given.index(group) for group in _group(call))
    keywords = {i: _SIGNATURE[i] for i in range(1, len(call.args)) if i not in dropped}
    return context.edit_call(call, ArgumentEdits(drop=dropped, rename=keywords), name)


Command = command(find, __doc__ or "")
